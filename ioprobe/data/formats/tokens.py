"""Flat token files as language-model trainers map them: a ``.bin`` of uint16 or uint32 numbers.

Three layouts are told apart: no header (nanoGPT; uint16), llm.c's 1024-byte
header (magic 20240520: uint16; 20240801: uint32), and Megatron's, whose type
stands in the ``.idx`` beside the ``.bin``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from ioprobe.data.encode import array_bytes
from ioprobe.data.formats import WriteOptions
from ioprobe.data.shards import Sample, Shard, reading
from ioprobe.errors import DataError, TargetError

COMPRESSIONS: tuple[str, ...] = ()
SEQUENCE_LENGTH = 1024
"""Tokens of a sample, unless the reader is told otherwise."""
_LLMC: dict[int, np.dtype[Any]] = {20240520: np.dtype("<u2"), 20240801: np.dtype("<u4")}
_LLMC_HEADER_BYTES = 1024
_MEGATRON = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def suffix(options: WriteOptions) -> str:
    """Return ``.bin``."""
    return ".bin"


def layout(shard: Shard) -> tuple[np.dtype[Any], int]:
    """Return the type of a token and where the tokens begin [bytes].

    Raises:
        DataError: the file is empty.
    """
    with reading(shard), shard.open() as file:
        head = file.read(8)
    if not head:
        raise DataError(f"shard '{shard.name}' is empty", hint="write it again, or leave it out")
    if len(head) == 8:
        magic, version = struct.unpack("<ii", head)
        if magic in _LLMC and version == 1:
            return _LLMC[magic], _LLMC_HEADER_BYTES
    try:
        with Shard(shard.url[: -len(".bin")] + ".idx", None, shard.storage_options).open() as file:
            index = file.read(18)
    except TargetError:
        return np.dtype("<u2"), 0
    if index.startswith(b"MMIDIDX\0\0") and len(index) == 18 and index[17] in _MEGATRON:
        return np.dtype(_MEGATRON[index[17]]), 0
    return np.dtype("<u2"), 0


class Reader:
    """Windows by index: sample i is tokens [i*T, i*T + T], one more than T, for input and target."""

    def __init__(self, shard: Shard, *, sequence_length: int = SEQUENCE_LENGTH) -> None:
        self.shard = shard
        self.sequence_length = sequence_length
        self.dtype, self.start_bytes = layout(shard)
        size = shard.size_bytes
        if size is None:
            with shard.open() as file:
                size = file.seek(0, 2)
        tokens = (size - self.start_bytes) // self.dtype.itemsize
        self.groups = [(tokens - 1) // sequence_length]
        if self.groups[0] < 1:
            raise DataError(
                f"shard '{shard.name}' holds {max(tokens, 0)} tokens, fewer than one sample of {sequence_length} + 1",
                hint="use a shorter sequence",
            )
        self._tokens: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": None}

    def __len__(self) -> int:
        return int(self.groups[0])

    def close(self) -> None:
        """Let go of the map."""
        self._tokens = None

    def read_sample(self, index: int) -> Sample:
        """Return ``{"__key__": "3", "tokens": array of T + 1}``, copied from the map."""
        first = index * self.sequence_length
        return {"__key__": str(index), "tokens": self._read_window(first, self.sequence_length + 1)}

    def _read_window(self, first: int, count: int) -> Any:
        if self.shard.path is None:
            with reading(self.shard), self.shard.open() as file:
                file.seek(self.start_bytes + first * self.dtype.itemsize)
                return np.frombuffer(file.read(count * self.dtype.itemsize), self.dtype)
        if self._tokens is None:
            with reading(self.shard):
                self._tokens = np.memmap(self.shard.path, self.dtype, "r", self.start_bytes)
        return np.array(self._tokens[first : first + count])


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield the windows in order."""
    reader = Reader(shard)
    for index in range(len(reader)):
        yield reader.read_sample(index)


def count_samples(shard: Shard) -> int | None:
    """Return the windows of the default length, by the file's size."""
    return len(Reader(shard))


def decode_fields(sample: Sample) -> Sample:
    """Return the sample: it is decoded already."""
    return sample


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write the samples' tokens one after the other; the last gets one more token, so that its target is whole."""
    last: Any = None
    for sample in samples:
        last = sample["tokens"]
        file.write(array_bytes(last))
    if last is not None:
        file.write(array_bytes(last[-1:]))
