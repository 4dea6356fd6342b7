"""JSON lines, plain, .gz or .zst: one sample a line; binary fields are base64 text."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from ioprobe.data.encode import encode_field
from ioprobe.data.formats import WriteOptions
from ioprobe.data.shards import Sample, Shard, reading, zstandard
from ioprobe.errors import DataError

COMPRESSIONS = ("gzip", "zstd")
_BASE64 = "base64:"


def suffix(options: WriteOptions) -> str:
    """Return ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``."""
    return {None: ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}[options.compression]


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield lines, not parsed: ``{"__key__": "17", "line": bytes, "shard": name}``.

    Raises:
        DataError: the shard is empty, or damaged; names it.
    """
    number = 0
    zstd_error = zstandard().ZstdError if shard.compression == "zstd" else EOFError
    with reading(shard), shard.open_decompressed() as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield {"__key__": str(number), "line": line, "shard": shard.name}
        except zstd_error as error:
            raise DataError(
                f"cannot read '{shard.name}' after line {number}: {error}", hint="write or download it again"
            ) from None
    if number == 0:
        raise DataError(f"shard '{shard.name}' is empty", hint="write it again, or leave it out")


def decode_fields(sample: Sample) -> Sample:
    """Return the object in a line; lists of numbers become arrays, ``base64:`` texts bytes.

    Raises:
        DataError: the line is no JSON object; names shard and line.
    """
    try:
        fields = json.loads(sample["line"])
        if not isinstance(fields, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise DataError(
            f"line {sample['__key__']} of '{sample['shard']}' is no JSON object: {error}", hint="mend or drop the line"
        ) from None
    found: Sample = {"__key__": sample["__key__"]}
    for name, value in fields.items():
        if isinstance(value, str) and value.startswith(_BASE64):
            value = base64.b64decode(value[len(_BASE64) :])
        elif isinstance(value, list) and value and all(type(v) is int for v in value):
            value = np.array(value, np.int64)
        found[name] = value
    return found


def count_samples(shard: Shard) -> int | None:
    """Return None: only reading all lines would tell."""
    return None


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write samples as lines."""
    for sample in samples:
        fields = {}
        for name, value in sample.items():
            if isinstance(value, np.ndarray) and name == "tokens":
                fields[name] = value.tolist()
            elif isinstance(value, (np.ndarray, bytes, memoryview)):
                fields[name] = _BASE64 + base64.b64encode(b"".join(encode_field(value))).decode()
            else:
                fields[name] = value
        file.write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
