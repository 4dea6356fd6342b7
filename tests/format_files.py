"""Samples, and shards of them in every format, for tests of the formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ioprobe.data.formats import WriteOptions, load_format
from ioprobe.data.shards import Sample, Shard
from ioprobe.data.store import compressing

TOKENS = np.array([5, 0, 50_256, 300], np.uint16)
SAMPLES: list[Sample] = [
    {"__key__": f"{i:04d}", "image": b"\xff\xd8\xff" + bytes([i]) * (100 + i), "label": i} for i in range(7)
]
ARRAYS: list[Sample] = [{"__key__": str(i), "array": np.arange(12, dtype=np.uint8) + i, "label": i} for i in range(5)]


def write(folder: Path, name: str, samples: list[Sample], compression: str | None = None, rows: int = 3) -> Shard:
    """Write a shard as the synthesizer does; return it."""
    module = load_format(name)
    options = WriteOptions(compression, rows, len(samples))
    place = folder / f"shard{module.suffix(options)}"
    codec = compression if name in {"webdataset", "jsonl", "tfrecord"} else None
    with open(place, "w+b") as file, compressing(file, codec) as out:
        module.write_shard(out, samples, options)
    return Shard(str(place), place.stat().st_size)


def read(name: str, shard: Shard) -> list[Sample]:
    module = load_format(name)
    return [{k: plain(v) for k, v in module.decode_fields(s).items()} for s in module.read_samples(shard)]


def plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def cut(shard: Shard, keep: int) -> Shard:
    data = Path(shard.url).read_bytes()
    Path(shard.url).write_bytes(data[:keep])
    return Shard(shard.url, keep)
