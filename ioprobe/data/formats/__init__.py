"""One module a format; all have the surface of :class:`Format`.

A module imports its package inside its functions, so that a missing optional
package matters only to those who use that format.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

from ioprobe.data.shards import Sample, Shard
from ioprobe.errors import UsageError

# Name -> suffixes of its files (those of whole-file compression left out).
FORMATS: dict[str, tuple[str, ...]] = {
    "webdataset": (".tar", ".tgz"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "tfrecord": (".tfrecord", ".tfrecords", ".tfrec"),
    "mds": (".mds",),
    "litdata": (".litdata",),
    "hdf5": (".h5", ".hdf5"),
    "npz": (".npz",),
    "npy": (".npy",),
    "imagefolder": (".jpg", ".jpeg", ".png", ".webp", ".bmp"),
    "jsonl": (".jsonl", ".ndjson"),
    "tokens": (".bin",),
}
MAP_STYLE = frozenset({"parquet", "hdf5", "npz", "npy", "imagefolder", "tokens", "litdata"})
"""Formats whose samples are reached by index; the others are streams."""
GROUPED = frozenset({"parquet", "npz", "litdata"})
"""Map-style formats in which one sample costs the reading of its whole group."""


INDEXED = frozenset({"mds", "litdata"})
"""Formats whose folder has an ``index.json``."""


@dataclass(frozen=True)
class WriteOptions:
    """How a shard is written."""

    compression: str | None = None
    """Codec in the format's own words, or ``gzip``/``zstd`` for a whole file; None for none."""
    row_group_size: int | None = None
    """Rows per row group or record batch; None for the format's default."""
    samples: int = 0
    """Samples that the shard will hold; dense formats state it up front."""


class Reader(Protocol):
    """Random access to the samples of one shard. Picklable until first used."""

    groups: Sequence[int]
    """Samples of each unit that is read at once (a row group; one for the whole shard otherwise)."""

    def __len__(self) -> int: ...

    def read_sample(self, index: int) -> Sample:
        """Return one sample as stored."""
        ...

    def close(self) -> None:
        """Let go of open files and cached data; the next read opens them again."""
        ...


class Format(Protocol):
    """What each format's module offers."""

    COMPRESSIONS: tuple[str, ...]
    """Codecs that ``write_shard`` knows."""

    def suffix(self, options: WriteOptions) -> str:
        """Return the suffix of a shard written with these options."""
        ...

    def read_samples(self, shard: Shard) -> Iterator[Sample]:
        """Yield the samples as stored, in order."""
        ...

    def decode_fields(self, sample: Sample) -> Sample:
        """Return the fields of a stored record (parses protobuf or JSON; otherwise the sample itself)."""
        ...

    def count_samples(self, shard: Shard) -> int | None:
        """Return the samples by headers alone; None where only reading the data would tell."""
        ...

    def write_shard(self, file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> dict[str, Any] | None:
        """Write a whole shard to an open file; return its entry for the dataset's index, where the format has one."""
        ...


def load_format(name: str) -> Format:
    """Return the module of a format.

    Raises:
        UsageError: there is no such format.
    """
    if name not in FORMATS:
        raise UsageError(f"unknown format '{name}'", hint=f"choose one of {', '.join(FORMATS)}")
    return cast(Format, importlib.import_module(f"ioprobe.data.formats.{name}"))


def load_index_maker(name: str) -> Callable[[Sequence[tuple[str, dict[str, Any]]]], bytes]:
    """Return the function of an indexed format that makes ``index.json`` of shard names and their entries."""
    maker: Callable[[Sequence[tuple[str, dict[str, Any]]]], bytes] = importlib.import_module(
        f"ioprobe.data.formats.{name}"
    ).make_index
    return maker


def open_reader(name: str, shard: Shard, **options: Any) -> Reader:
    """Return random access to a shard of a map-style format.

    Args:
        name: One of :data:`MAP_STYLE`.
        shard: What to read.
        options: Of the format's reader, such as ``columns`` or ``sequence_length``.
    """
    module = importlib.import_module(f"ioprobe.data.formats.{name}")
    return cast(Reader, module.Reader(shard, **options))
