"""One ``.npy`` array a shard: samples lie along its first axis. Never unpickled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from ioprobe.data.encode import array_bytes, npy_header
from ioprobe.data.formats import WriteOptions
from ioprobe.data.shards import Sample, Shard, first_line, reading
from ioprobe.errors import DataError, UsageError

COMPRESSIONS: tuple[str, ...] = ()


def suffix(options: WriteOptions) -> str:
    """Return ``.npy``."""
    return ".npy"


def read_header(file: BinaryIO, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of the array in an open ``.npy``.

    Raises:
        DataError: it is no ``.npy`` array of one axis or more, or it holds Python objects.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise DataError(f"'{name}' is no .npy array: {first_line(error)}", hint="write it again") from None
    if dtype.hasobject:
        raise DataError(f"'{name}' holds pickled Python objects, which are never loaded", hint="store plain numbers")
    if not shape:
        raise DataError(f"'{name}' is a single number, not an array of samples", hint="samples lie along axis 0")
    return shape, dtype


class Reader:
    """Samples by index through a memory map (a remote array is read once)."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.groups = [count_samples(shard)]
        self._array: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def __len__(self) -> int:
        return self.groups[0]

    def close(self) -> None:
        """Let go of the map."""
        self._array = None

    def read_sample(self, index: int) -> Sample:
        """Return ``{"__key__": "5", "array": ...}``, copied from the map (so it is read here)."""
        if self._array is None:
            self._array = read_array(self.shard)
        return {"__key__": str(index), "array": np.array(self._array[index])}


def read_array(shard: Shard) -> Any:
    """Return the array: mapped where it is a local file, else read.

    Raises:
        DataError: it is damaged, cut short, or holds Python objects.
    """
    with reading(shard):
        try:
            if shard.path is not None:
                return np.load(shard.path, mmap_mode="r", allow_pickle=False)
            with shard.open() as file:
                return np.load(file, allow_pickle=False)
        except ValueError as error:
            raise DataError(f"cannot read '{shard.name}': {first_line(error)}", hint="write it again") from None


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield the array's rows in order."""
    reader = Reader(shard)
    for index in range(len(reader)):
        yield reader.read_sample(index)


def count_samples(shard: Shard) -> int:
    """Return the length of the first axis, by the header.

    Raises:
        DataError: no samples, or no array.
    """
    with reading(shard), shard.open() as file:
        shape, dtype = read_header(file, shard.name)
        need = file.tell() + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if shape[0] == 0:
        raise DataError(f"shard '{shard.name}' holds no sample", hint="write it again, or leave it out")
    if shard.size_bytes is not None and shard.size_bytes < need:
        raise DataError(
            f"shard '{shard.name}' is cut short: it needs {need} bytes, {shard.size_bytes} are there",
            hint="write or download it again",
        )
    return shape[0]


def decode_fields(sample: Sample) -> Sample:
    """Return the sample: it is decoded already."""
    return sample


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write the samples' array (their only one) as one array; labels have no place here and are dropped."""
    first: Any = None
    for sample in samples:
        array = next(v for v in sample.values() if isinstance(v, np.ndarray))
        if first is None:
            first = array
            file.write(npy_header(array.dtype, (options.samples, *array.shape)))
        elif array.shape != first.shape:
            raise UsageError(
                "an .npy shard holds samples of one size", hint="leave out the variation of --sample-bytes"
            )
        file.write(array_bytes(array))
