"""One ``.npz`` a shard: arrays of equal length along their first axis. Never unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, cast

import numpy as np

from ioprobe.data.formats import WriteOptions
from ioprobe.data.formats.npy import read_header
from ioprobe.data.shards import Sample, Shard, first_line, reading
from ioprobe.errors import DataError, UsageError

COMPRESSIONS = ("deflate",)


def suffix(options: WriteOptions) -> str:
    """Return ``.npz``; its compression lies inside."""
    return ".npz"


class Reader:
    """Samples by index; a zip cannot be mapped, so the arrays are read whole on first use."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.groups = [count_samples(shard)]
        self._arrays: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}

    def __len__(self) -> int:
        return self.groups[0]

    def close(self) -> None:
        """Let go of the arrays."""
        self._arrays = None

    def read_sample(self, index: int) -> Sample:
        """Return ``{"__key__": "5", "x": ..., "y": ...}``, one entry an array."""
        if self._arrays is None:
            self._arrays = read_arrays(self.shard)
        return {"__key__": str(index), **{name: values[index] for name, values in self._arrays.items()}}


def read_arrays(shard: Shard) -> dict[str, Any]:
    """Return the arrays by name.

    Raises:
        DataError: the file is damaged or holds Python objects.
    """
    with reading(shard), shard.open() as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"cannot read '{shard.name}': {first_line(error)}", hint="write it again") from None


def count_samples(shard: Shard) -> int:
    """Return the common length of the arrays, by their headers.

    Raises:
        DataError: no array, no sample, or lengths that differ.
    """
    lengths: dict[str, int] = {}
    with reading(shard), shard.open() as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    with archive.open(name) as member:
                        shape, _ = read_header(cast(BinaryIO, member), f"{shard.name}/{name}")
                    lengths[name] = shape[0]
        except zipfile.BadZipFile as error:
            raise DataError(f"cannot read '{shard.name}': {first_line(error)}", hint="write it again") from None
    if not lengths or 0 in lengths.values():
        raise DataError(f"shard '{shard.name}' holds no sample", hint="write it again, or leave it out")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{n} {c}" for n, c in lengths.items())
        raise DataError(f"the arrays of '{shard.name}' differ in length: {told}", hint="samples lie along axis 0")
    return next(iter(lengths.values()))


def compression(shard: Shard) -> str | None:
    """Return ``deflate`` where a member is compressed."""
    with reading(shard), shard.open() as file, zipfile.ZipFile(file) as archive:
        return "deflate" if any(m.compress_type == zipfile.ZIP_DEFLATED for m in archive.infolist()) else None


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield the samples in order."""
    reader = Reader(shard)
    for index in range(len(reader)):
        yield reader.read_sample(index)


def decode_fields(sample: Sample) -> Sample:
    """Return the sample: it is decoded already."""
    return sample


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write the samples' arrays and numbers, stacked."""
    rows = list(samples)
    columns: dict[str, Any] = {}
    for name in rows[0]:
        if name == "__key__":
            continue
        try:
            columns[name] = np.stack([np.asarray(r[name]) for r in rows])
        except ValueError:
            raise UsageError(
                "an .npz shard holds samples of one size", hint="leave out the variation of --sample-bytes"
            ) from None
    save = np.savez_compressed if options.compression else np.savez
    save(file, **columns)
