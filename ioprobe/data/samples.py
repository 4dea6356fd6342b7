"""What synthesized samples hold: each depends on the seed and its own number alone.

Photographs cost what they cost because of their spectrum: fine texture makes
many non-zero DCT coefficients, and Huffman decoding of those is most of a
JPEG's decode time. A base image is therefore made of what natural images are made
of: regions with sharp outlines (level sets of smooth noise), shading, and
texture with a 1/f spectrum whose strength differs from place to place. Samples
are shifted, mirrored and re-exposed windows of a few periodic bases, so that
making one costs little more than its JPEG encoding. ``benchmarks/synth.py``
compares them with scikit-image's photographs at the same quality; on the machine
where they were tuned: 1.08 times the bytes per pixel, 1.04 (0.94 to 1.19) times
the decode time per pixel.
"""

from __future__ import annotations

import io
import math
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ioprobe.data.encode import wav_header
from ioprobe.data.shards import Sample

JPEG_QUALITY = 95
JPEG_BYTES_PER_PIXEL = 0.41
"""Mean of the synthesized JPEGs; turns a wanted file size into an image size."""
VOCABULARY = 50_257
AUDIO_RATE_HZ = 16_000
CLASSES = 1000
_BASE_SIDE = 512
_BASES = 6
_BANK_BYTES = 32 << 20
_MASK = (1 << 64) - 1

Floats = NDArray[np.float32]


class Plan(Protocol):
    """The parts of a spec that samples depend on."""

    @property
    def kind(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def sample_bytes(self) -> int: ...
    @property
    def sample_bytes_cv(self) -> float: ...
    @property
    def image_size(self) -> tuple[int, int] | None: ...


def draw(seed: int, index: int, salt: int) -> float:
    """Return a number in (0, 1) that depends on the arguments alone (splitmix64).

    >>> draw(0, 1, 2) == draw(0, 1, 2), 0 < draw(0, 1, 2) < 1
    (True, True)
    """
    state = (
        seed * 0x9E3779B97F4A7C15 + index * 0xBF58476D1CE4E5B9 + salt * 0x94D049BB133111EB + 0x2545F4914F6CDD1D
    ) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return ((state >> 11) + 0.5) / (1 << 53)


def draw_size(plan: Plan, index: int) -> int:
    """Return the size of a sample [bytes]: log-normal with the plan's mean and coefficient of variation."""
    if plan.sample_bytes_cv == 0:
        return plan.sample_bytes
    variance = math.log(1 + plan.sample_bytes_cv**2)
    normal = NormalDist().inv_cdf(draw(plan.seed, index, 1))
    return max(16, round(plan.sample_bytes * math.exp(normal * math.sqrt(variance) - variance / 2)))


def make_sample(plan: Plan, index: int) -> Sample:
    """Return sample number ``index``: ``__key__``, its data, and a label (tokens have none)."""
    key = f"{index:09d}"
    if plan.kind == "tokens":
        return {"__key__": key, "tokens": _tokens(plan, index)}
    label = int(draw(plan.seed, index, 2) * CLASSES)
    if plan.kind == "image":
        return {"__key__": key, "image": make_jpeg(plan, index), "label": label}
    if plan.kind == "audio":
        return {"__key__": key, "audio": _audio(plan, index), "label": label}
    return {
        "__key__": key,
        "array": _window(_random_bank(plan.seed), plan, index, draw_size(plan, index)),
        "label": label,
    }


def prepare(plan: Plan) -> None:
    """Make what all samples of a plan share, so that processes forked later inherit it."""
    if plan.kind == "image":
        base_images(plan.seed)
    elif plan.kind == "array":
        _random_bank(plan.seed)
    elif plan.kind == "tokens":
        _token_bank(plan.seed)
    else:
        _audio_bank(plan.seed)


def image_dimensions(plan: Plan, index: int) -> tuple[int, int]:
    """Return width and height of an image [pixels]; from the wanted bytes where no size was given."""
    if plan.image_size is not None:
        return plan.image_size
    pixels = draw_size(plan, index) / JPEG_BYTES_PER_PIXEL
    width = max(16, round(math.sqrt(pixels * 4 / 3)))
    return width, max(16, round(pixels / width))


def make_jpeg(plan: Plan, index: int) -> bytes:
    """Return a JPEG: a window of a base image, shifted, mirrored and re-exposed."""
    from PIL import Image

    width, height = image_dimensions(plan, index)
    bases = base_images(plan.seed)
    base = bases[int(draw(plan.seed, index, 3) * len(bases))]
    left, top = (int(draw(plan.seed, index, s) * _BASE_SIDE) for s in (4, 5))
    image = Image.new("RGB", (width, height))
    for x in range(-left, width, _BASE_SIDE):
        for y in range(-top, height, _BASE_SIDE):
            image.paste(base, (x, y))
    if draw(plan.seed, index, 6) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    gain = 0.85 + 0.3 * draw(plan.seed, index, 7)
    lift = 20 * (draw(plan.seed, index, 8) - 0.5)
    curve = [min(255, max(0, round(128 + gain * (v - 128) + lift))) for v in range(256)]
    image = image.point(curve * 3)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


@lru_cache(maxsize=2)
def base_images(seed: int) -> list[Any]:
    """Return the periodic base images of a seed, as Pillow images of 512 x 512."""
    from PIL import Image

    made = []
    for number in range(_BASES):
        rng = np.random.default_rng([seed & _MASK, 17, number])
        # Busy and calm photographs: the texture's strength differs between bases.
        busy = 0.25 * 6.4 ** (number / (_BASES - 1))
        made.append(Image.fromarray(_base(rng, busy)))
    return made


def _noise(rng: np.random.Generator, exponent: float, cutoff: float = 0.5) -> Floats:
    """Return periodic noise with amplitude ~ 1/f^exponent up to a cutoff [cycles/pixel], unit variance."""
    side = _BASE_SIDE
    fy = np.fft.fftfreq(side)[:, None]
    fx = np.fft.rfftfreq(side)[None, :]
    frequency = np.hypot(fy, fx)
    frequency[0, 0] = np.inf
    amplitude = frequency**-exponent
    amplitude[frequency > cutoff] = 0
    phase = rng.random(amplitude.shape)
    field = np.fft.irfft2(amplitude * np.exp(2j * np.pi * phase), (side, side))
    field /= field.std()
    result: Floats = field.astype(np.float32)
    return result


def _base(rng: np.random.Generator, busy: float) -> NDArray[np.uint8]:
    """Return one base image as RGB, shape (512, 512, 3)."""
    luma = np.full((_BASE_SIDE, _BASE_SIDE), 118, np.float32)
    blue = np.zeros_like(luma)
    red = np.zeros_like(luma)
    for levels, cutoff in ((4, 0.04), (6, 0.05)):
        region = np.floor(_noise(rng, 2.5, cutoff) * levels / 2.5).astype(np.int64) % levels
        luma += rng.normal(0, 26, levels).astype(np.float32)[region]
        blue += rng.normal(0, 9, levels).astype(np.float32)[region]
        red += rng.normal(0, 9, levels).astype(np.float32)[region]
    strength = np.exp(_noise(rng, 1.8, 0.05)).astype(np.float32)
    texture = _noise(rng, 1.0)
    luma += 14 * _noise(rng, 1.7) + busy * 11 * strength / strength.mean() * texture
    blue += 1.5 * _noise(rng, 1.4)
    red += 1.5 * _noise(rng, 1.4)
    rgb = np.stack([luma + 1.402 * red, luma - 0.344 * blue - 0.714 * red, luma + 1.772 * blue], axis=-1)
    result: NDArray[np.uint8] = np.clip(rgb, 0, 255).astype(np.uint8)
    return result


@lru_cache(maxsize=1)
def _random_bank(seed: int) -> NDArray[np.uint8]:
    rng = np.random.Generator(np.random.SFC64([seed & _MASK, 23]))
    return rng.integers(0, 1 << 64, _BANK_BYTES // 8, np.uint64).view(np.uint8)


@lru_cache(maxsize=1)
def _token_bank(seed: int) -> NDArray[np.uint16]:
    """Return tokens whose frequencies follow Zipf's law, as text has them."""
    rng = np.random.Generator(np.random.SFC64([seed & _MASK, 29]))
    weights = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    ranks = np.searchsorted(weights / weights[-1], rng.random(_BANK_BYTES // 16))
    return rng.permutation(VOCABULARY).astype(np.uint16)[np.minimum(ranks, VOCABULARY - 1)]


@lru_cache(maxsize=1)
def _audio_bank(seed: int) -> NDArray[np.int16]:
    """Return 1/f noise as PCM, two minutes of it: as compressible as speech, not as silence."""
    rng = np.random.default_rng([seed & _MASK, 31])
    count = 120 * AUDIO_RATE_HZ
    spectrum = np.fft.rfft(rng.standard_normal(count))
    spectrum[1:] /= np.sqrt(np.arange(1, spectrum.size))
    spectrum[0] = 0
    sound = np.fft.irfft(spectrum, count)
    pcm: NDArray[np.int16] = (sound / np.abs(sound).max() * 20_000).astype(np.int16)
    return pcm


def _window(bank: NDArray[Any], plan: Plan, index: int, count: int) -> NDArray[Any]:
    """Return ``count`` items of a bank from a place that the sample's number decides; a view where it fits."""
    if count > bank.size // 2:
        start = int(draw(plan.seed, index, 9) * bank.size)
        return np.take(bank, np.arange(start, start + count), mode="wrap")
    start = int(draw(plan.seed, index, 9) * (bank.size - count))
    return bank[start : start + count]


def _tokens(plan: Plan, index: int) -> NDArray[np.uint16]:
    return _window(_token_bank(plan.seed), plan, index, max(1, draw_size(plan, index) // 2))


def _audio(plan: Plan, index: int) -> bytes:
    frames = max(1, (draw_size(plan, index) - 44) // 2)
    sound = _window(_audio_bank(plan.seed), plan, index, frames)
    return wav_header(2 * frames, AUDIO_RATE_HZ) + sound.tobytes()
