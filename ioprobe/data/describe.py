"""What headers and listings say of a dataset; no sample is read."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ioprobe.data.formats import load_format
from ioprobe.data.shards import Shard
from ioprobe.data.urls import ShardSet, list_shards
from ioprobe.run import DatasetFacts

MAX_LISTED = 10_000
"""Shards whose sizes are kept."""
MAX_COUNTED = 10_000
"""Shards whose headers are read; with more, the samples stay unknown."""


def describe(
    url: str,
    *,
    format: str | None = None,  # noqa: A002 - the word that users know from the command line
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetFacts:
    """Return the facts of the dataset at a URL, from headers and listings alone.

    Args:
        url: See :func:`ioprobe.data.urls.list_shards`.
        format: One of the formats; None to tell by the files.
        storage_options: For the fsspec file system.

    Returns:
        ``num_samples`` is None where only reading the data would tell: compressed
        streams, JSON lines, and tar or TFRecord in an object store.

    Raises:
        TargetError, DataError: the dataset is missing, or a header is damaged.
    """
    return describe_shards(list_shards(url, format=format, storage_options=storage_options))


def describe_shards(found: ShardSet) -> DatasetFacts:
    """Return the facts of listed shards; see :func:`describe`."""
    return DatasetFacts(
        url=found.name,
        format=found.format,
        num_shards=len(found.shards),
        num_samples=count_samples(found),
        total_bytes=found.total_bytes,
        shard_bytes=[s.size_bytes for s in found.shards[:MAX_LISTED] if s.size_bytes is not None],
        compression=compression(found),
        row_group_rows=row_group_rows(found),
        filesystem=found.filesystem,
    )


def count_samples(found: ShardSet) -> int | None:
    """Return the samples of all shards, or None where a header does not tell."""
    if found.format == "imagefolder":
        return len(found.shards)
    if len(found.shards) > MAX_COUNTED:
        return None
    count = load_format(found.format).count_samples
    total = 0
    for shard in found.shards:
        samples = count(shard)
        if samples is None:
            return None
        total += samples
    return total


def compression(found: ShardSet) -> str | None:
    """Return the codec of the first shard: of the whole file, or within it as its format tells."""
    first = found.shards[0]
    if first.compression is not None:
        return first.compression
    if found.format == "parquet":
        return _parquet_codec(first)
    module = importlib.import_module(f"ioprobe.data.formats.{found.format}")
    codec: str | None = module.compression(first) if hasattr(module, "compression") else None
    return codec


def _parquet_codec(shard: Shard) -> str | None:
    from ioprobe.data.formats.parquet import open_file

    metadata = open_file(shard).metadata
    if metadata.num_row_groups == 0 or metadata.num_columns == 0:
        return None
    group = metadata.row_group(0)
    codecs = {group.column(i).compression.lower() for i in range(metadata.num_columns)} - {"uncompressed"}
    return "+".join(sorted(codecs)) or None


def row_group_rows(found: ShardSet) -> list[int]:
    """Return the rows of each row group of (at most 1000) Parquet shards."""
    if found.format != "parquet":
        return []
    from ioprobe.data.formats.parquet import open_file

    rows: list[int] = []
    for shard in found.shards[:1000]:
        metadata = open_file(shard).metadata
        rows += [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    return rows[:MAX_LISTED]
