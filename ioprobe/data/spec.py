"""What to synthesize: a dataset's specification, its defaults, and how its sizes are written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ioprobe.data.formats import FORMATS, load_format
from ioprobe.data.samples import JPEG_BYTES_PER_PIXEL
from ioprobe.errors import UsageError
from ioprobe.units import parse_bytes

KINDS = ("image", "array", "tokens", "audio")
# 500 x 375 is ImageNet's commonest size; 1024 tokens of two bytes; ten seconds of 16 kHz PCM.
DEFAULT_BYTES = {"image": 76_875, "array": 131_072, "tokens": 2_048, "audio": 320_044}
DEFAULT_IMAGE_SIZE = (500, 375)
_HOLDS = {"tokens": ("tokens",), "imagefolder": ("image",), "npy": ("array", "tokens"), "npz": ("array", "tokens")}


@dataclass(frozen=True)
class Spec:
    """What to write. Equal specs give equal bytes."""

    format: str = "webdataset"
    kind: str = "image"
    """``image`` (JPEG), ``array`` (uint8), ``tokens`` (uint16) or ``audio`` (WAV)."""
    samples: int = 1024
    shard_samples: int | None = None
    """Samples of a shard; None to divide by ``shard_bytes``."""
    shard_bytes: int | None = None
    """Wanted size of a shard [bytes]; None for 64 MiB, or less so that there are 16 shards for workers to share."""
    sample_bytes: int = 0
    """Mean size of a sample's data [bytes]; 0 for the kind's default."""
    sample_bytes_cv: float = 0.0
    """Coefficient of variation of the size (log-normal) [fraction]."""
    image_size: tuple[int, int] | None = None
    """Width and height [pixels]; None to follow from ``sample_bytes``, or 500 x 375."""
    compression: str | None = None
    row_group_size: int | None = None
    seed: int = 0

    @property
    def per_shard(self) -> int:
        """Samples of each shard but the last."""
        if self.shard_samples is not None:
            return min(self.shard_samples, self.samples)
        if self.shard_bytes is not None:
            return min(self.samples, max(1, round(self.shard_bytes / mean_bytes(self))))
        return max(1, min(math.ceil(self.samples / 16), round((64 << 20) / mean_bytes(self))))

    @property
    def num_shards(self) -> int:
        """How many shards there will be."""
        return math.ceil(self.samples / self.per_shard)


def default_kind(format_name: str) -> str:
    """Return the kind of sample that a format holds by default.

    >>> default_kind("webdataset"), default_kind("tokens"), default_kind("npy")
    ('image', 'tokens', 'array')
    """
    return _HOLDS.get(format_name, KINDS)[0]


def resolve(spec: Spec) -> Spec:
    """Return the spec with its defaults filled in.

    Raises:
        UsageError: an option or a combination that cannot be meant.
    """
    if spec.format not in FORMATS:
        raise UsageError(f"unknown format '{spec.format}'", hint=f"choose one of {', '.join(FORMATS)}")
    if spec.kind not in KINDS:
        raise UsageError(f"unknown kind '{spec.kind}'", hint=f"choose one of {', '.join(KINDS)}")
    holds = _HOLDS.get(spec.format, KINDS)
    if spec.kind not in holds:
        raise UsageError(f"{spec.format} does not hold samples of kind {spec.kind}", hint=f"use --kind {holds[0]}")
    for name in ("samples", "shard_samples", "shard_bytes", "row_group_size"):
        value = getattr(spec, name)
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1", hint="give a positive number")
    if spec.sample_bytes < 0 or not 0 <= spec.sample_bytes_cv < 10:
        raise UsageError(
            f"sample size {spec.sample_bytes}:{spec.sample_bytes_cv} cannot be meant", hint="write it like 110kB:0.5"
        )
    codecs = load_format(spec.format).COMPRESSIONS
    if spec.compression is not None and spec.compression not in codecs:
        raise UsageError(
            f"{spec.format} has no compression '{spec.compression}'",
            hint=f"choose one of {', '.join(codecs)}" if codecs else "leave out --compression",
        )
    return _resolve_sizes(spec)


def _resolve_sizes(spec: Spec) -> Spec:
    if spec.image_size is not None and spec.kind != "image":
        raise UsageError(f"an image size says nothing about {spec.kind}", hint="use --sample-bytes")
    if spec.image_size is not None and spec.sample_bytes:
        raise UsageError("image size and sample bytes exclude each other", hint="give one of them")
    if spec.image_size is not None and not all(1 <= side <= 65_500 for side in spec.image_size):
        raise UsageError(f"image size {spec.image_size} is outside 1..65500", hint="write it like 500x375")
    if spec.kind == "image" and not spec.sample_bytes and spec.image_size is None and not spec.sample_bytes_cv:
        spec = replace(spec, image_size=DEFAULT_IMAGE_SIZE)
    if spec.image_size is None and not spec.sample_bytes:
        spec = replace(spec, sample_bytes=DEFAULT_BYTES[spec.kind])
    if spec.format in {"npy", "npz"} and spec.sample_bytes_cv:
        raise UsageError(f"{spec.format} holds samples of one size", hint="leave out the ':CV' of --sample-bytes")
    return spec


def mean_bytes(spec: Spec) -> float:
    """Return the expected size of a sample's data [bytes]."""
    if spec.image_size is not None:
        return max(400.0, spec.image_size[0] * spec.image_size[1] * JPEG_BYTES_PER_PIXEL)
    return float(spec.sample_bytes or DEFAULT_BYTES[spec.kind])


def parse_sample_bytes(text: str) -> tuple[int, float]:
    """Return mean [bytes] and coefficient of variation of ``MEAN[:CV]``.

    >>> parse_sample_bytes("110kB:0.5"), parse_sample_bytes("4096")
    ((110000, 0.5), (4096, 0.0))
    """
    mean, colon, variation = text.partition(":")
    try:
        cv = float(variation) if colon else 0.0
    except ValueError:
        raise UsageError(f"cannot read variation '{variation}'", hint="write it like 110kB:0.5") from None
    size = parse_bytes(mean)
    if not 1 <= size <= 1 << 40:
        raise UsageError(f"sample size '{text}' is outside 1 B to 1 TiB", hint="write it like 110kB:0.5")
    return size, cv


def parse_shard_size(text: str) -> dict[str, int]:
    """Return the fields of :class:`Spec` for a shard size: a plain number counts samples, one with a unit bytes.

    >>> parse_shard_size("1000"), parse_shard_size("64MiB")
    ({'shard_samples': 1000}, {'shard_bytes': 67108864})
    """
    return {"shard_samples": int(text)} if text.strip().isdigit() else {"shard_bytes": parse_bytes(text)}


def parse_image_size(text: str) -> tuple[int, int]:
    """Return width and height of ``WxH`` or ``N`` (a square).

    >>> parse_image_size("500x375"), parse_image_size("256")
    ((500, 375), (256, 256))
    """
    width, cross, height = text.lower().partition("x")
    if not width.isdigit() or (cross and not height.isdigit()):
        raise UsageError(f"cannot read image size '{text}'", hint="write it like 500x375 or 256")
    return int(width), int(height) if cross else int(width)
