"""Lightning's litdata chunks, written and read by their own package; local folders only.

The layout of a chunk has changed between its releases, so the package alone
reads it. Chunks that hold pickles are refused: unpickling runs code from the data.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ioprobe.data.formats import WriteOptions
from ioprobe.data.indexed import INDEX, file_of, folder_of, read_index
from ioprobe.data.shards import Sample, Shard, extra, first_line
from ioprobe.errors import DataError, TargetError

COMPRESSIONS: tuple[str, ...] = ()
_PACKAGE = ("litdata", "litdata", "reading litdata")


def suffix(options: WriteOptions) -> str:
    """Return ``.bin``."""
    return ".bin"


def _index(shard: Shard) -> dict[str, Any]:
    """Return the index beside a shard (or the index of a folder), refusing pickles."""
    index = read_index(shard)
    formats = (index.get("config") or {}).get("data_format") or []
    if any(str(f).partition(":")[0] == "pickle" for f in formats):
        raise DataError(f"'{folder_of(shard)}' holds pickles, which are never loaded", hint="write typed fields")
    return index


class Reader:
    """All samples of a folder by index, through ``litdata.StreamingDataset``."""

    def __init__(self, shard: Shard) -> None:
        """Read the index.

        Args:
            shard: Any file of the folder.
        """
        if shard.path is None:
            raise TargetError(f"litdata is read from local folders only, not from '{shard.name}'", hint="copy it here")
        extra(*_PACKAGE)
        self.shard = shard
        self.groups = [int(chunk["chunk_size"]) for chunk in _index(shard)["chunks"]]
        self._dataset: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": None}

    def __len__(self) -> int:
        return sum(self.groups)

    def close(self) -> None:
        """Let go of the dataset."""
        self._dataset = None

    def read_sample(self, index: int) -> Sample:
        """Return one sample's fields.

        Raises:
            DataError: its chunk is damaged.
        """
        if self._dataset is None:
            self._dataset = extra(*_PACKAGE).StreamingDataset(folder_of(self.shard))
        try:
            row = self._dataset[index]
        except Exception as error:  # the package raises many kinds, by layout
            raise DataError(
                f"cannot read sample {index} of '{folder_of(self.shard)}': {first_line(error)}", hint="write it again"
            ) from None
        fields = row if isinstance(row, dict) else {"data": row}
        return {"__key__": str(index), **{n: v for n, v in fields.items() if n != "__key__"}}


def _first_of(shard: Shard) -> tuple[int, int]:
    """Return the first sample of a chunk within its folder, and the samples in it."""
    first = 0
    for chunk in _index(shard)["chunks"]:
        if chunk["filename"] == file_of(shard):
            return first, int(chunk["chunk_size"])
        first += int(chunk["chunk_size"])
    raise DataError(f"the index of '{shard.name}' does not list it", hint="write or download the dataset again")


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield the samples of one chunk."""
    first, count = _first_of(shard)
    reader = Reader(shard)
    for index in range(first, first + count):
        yield reader.read_sample(index)


def count_samples(shard: Shard) -> int | None:
    """Return what the index states."""
    return _first_of(shard)[1]


def compression(shard: Shard) -> str | None:
    """Return the codec that the index states."""
    codec: str | None = (_index(shard).get("config") or {}).get("compression")
    return codec


def decode_fields(sample: Sample) -> Sample:
    """Return the sample: its fields are typed already."""
    return sample


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> dict[str, Any]:
    """Write samples as one chunk through litdata's writer; return chunk and config for the index."""
    writers = extra("litdata.streaming.writer", *_PACKAGE[1:])
    with tempfile.TemporaryDirectory(prefix="ioprobe-litdata-") as folder:
        writer = writers.BinaryWriter(folder, chunk_size=options.samples)
        for number, sample in enumerate(samples):
            writer[number] = {"key" if n == "__key__" else n: v for n, v in sample.items()}
        writer.done()
        writer.merge(1)
        index = json.loads((Path(folder) / INDEX).read_text())
        chunk = index["chunks"][0]
        file.write((Path(folder) / chunk["filename"]).read_bytes())
    return {"chunk": chunk, "config": index["config"]}


def make_index(entries: Sequence[tuple[str, dict[str, Any]]]) -> bytes:
    """Return the bytes of ``index.json`` for chunks under their final names."""
    chunks = [{**entry["chunk"], "filename": name} for name, entry in entries]
    return json.dumps({"chunks": chunks, "config": entries[0][1]["config"]}, sort_keys=True).encode()
