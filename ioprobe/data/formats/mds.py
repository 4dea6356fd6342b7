"""MosaicML's MDS, written and decoded by its own package; shards are read here, as streams.

A shard is: count u32, count + 1 offsets u32, a JSON of the columns, the samples.
Columns that hold pickles are refused: unpickling runs code from the data.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ioprobe.data.formats import WriteOptions
from ioprobe.data.indexed import file_of, read_index
from ioprobe.data.shards import Sample, Shard, extra, first_line, reading
from ioprobe.errors import DataError

COMPRESSIONS: tuple[str, ...] = ()
_PACKAGE = ("streaming", "mds", "decoding MDS")


def suffix(options: WriteOptions) -> str:
    """Return ``.mds``."""
    return ".mds"


def _entry(shard: Shard) -> dict[str, Any]:
    """Return what the index says of the shard.

    Raises:
        DataError: nothing, or a column holds pickles.
    """
    name = file_of(shard)
    for entry in read_index(shard).get("shards", []):
        if name in {(entry.get(kind) or {}).get("basename") for kind in ("raw_data", "zip_data")}:
            unsafe = [c for c, e in zip(entry["column_names"], entry["column_encodings"], strict=True) if e == "pkl"]
            if unsafe:
                raise DataError(
                    f"column '{unsafe[0]}' of '{shard.name}' holds pickles, which are never loaded",
                    hint="write it with a typed encoding",
                )
            return dict(entry)
    raise DataError(f"the index of '{shard.name}' does not list it", hint="write or download the dataset again")


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield samples, decoded to their columns' Python values.

    Raises:
        DataError: the shard is empty, cut short, or not in its index.
    """
    entry = _entry(shard)
    base = extra("streaming.base.format.mds.reader", *_PACKAGE[1:])
    decode = base.MDSReader.from_json("", None, entry).decode_sample
    with reading(shard), shard.open_decompressed() as file:
        for number, data in enumerate(read_records(file, shard.name)):
            try:
                fields = decode(data)
            except (ValueError, KeyError, IndexError) as error:
                raise DataError(
                    f"cannot decode sample {number} of '{shard.name}': {first_line(error)}", hint="write it again"
                ) from None
            yield {"__key__": str(number), **fields}


def read_records(file: BinaryIO, shard_name: str) -> Iterator[bytes]:
    """Yield the bytes of each sample of a shard."""
    head = file.read(4)
    count = int.from_bytes(head, "little")
    table = file.read(4 * (count + 1))
    if count == 0 or len(table) < 4 * (count + 1):
        raise DataError(f"shard '{shard_name}' is empty or cut short", hint="write or download it again")
    offsets: list[int] = np.frombuffer(table, "<u4").tolist()
    file.read(offsets[0] - 4 - len(table))  # the JSON of the columns, which the index repeats
    for number, (first, end) in enumerate(pairwise(offsets)):
        data = file.read(end - first)
        if len(data) < end - first:
            raise DataError(
                f"shard '{shard_name}' is cut short: sample {number} at byte {first} is incomplete",
                hint="write or download it again",
            )
        yield data


def count_samples(shard: Shard) -> int | None:
    """Return what the index states."""
    return int(_entry(shard)["samples"])


def compression(shard: Shard) -> str | None:
    """Return the codec that the index states, without its level."""
    codec: str | None = _entry(shard).get("compression")
    return codec.partition(":")[0] if codec else None


def decode_fields(sample: Sample) -> Sample:
    """Return the sample: its columns are its fields."""
    return sample


def _encoding(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"ndarray:{value.dtype.name}"
    return "int" if isinstance(value, int) else "str" if isinstance(value, str) else "bytes"


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> dict[str, Any]:
    """Write samples through ``MDSWriter``; return the shard's entry in the index."""
    streaming = extra(*_PACKAGE)
    writer: Any = None
    with tempfile.TemporaryDirectory(prefix="ioprobe-mds-") as folder:
        out = f"{folder}/out"
        for sample in samples:
            row = {"key" if n == "__key__" else n: v for n, v in sample.items()}
            if writer is None:
                columns = {name: _encoding(value) for name, value in row.items()}
                writer = streaming.MDSWriter(columns=columns, out=out, size_limit=None)
            writer.write(row)
        if writer is not None:
            writer.finish()
        index = json.loads((Path(out) / "index.json").read_text())
        entry: dict[str, Any] = index["shards"][0]
        file.write((Path(out) / entry["raw_data"]["basename"]).read_bytes())
    return entry


def make_index(entries: Sequence[tuple[str, dict[str, Any]]]) -> bytes:
    """Return the bytes of ``index.json`` for shards under their final names."""
    shards = [{**entry, "raw_data": {**entry["raw_data"], "basename": name}} for name, entry in entries]
    return json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode()
