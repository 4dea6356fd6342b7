"""Parquet: samples are rows, read one row group at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

from ioprobe.data.columns import column_items, table_from
from ioprobe.data.formats import WriteOptions
from ioprobe.data.shards import Sample, Shard, first_line, reading
from ioprobe.errors import DataError

COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "brotli")
ROW_GROUP_ROWS = 1024
"""Default of the writer: about 100 MB of photographs."""
CACHED_ROW_GROUPS = 2
"""Row groups that a reader keeps, so that a run through one costs one read."""


def suffix(options: WriteOptions) -> str:
    """Return ``.parquet``; its compression lies inside."""
    return ".parquet"


def open_file(shard: Shard) -> Any:
    """Return the shard as a ``pyarrow.parquet.ParquetFile``.

    Raises:
        DataError: it is no Parquet file, or its footer is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(shard):
        source = shard.open()  # clear errors for a missing file, before pyarrow's
        try:
            if shard.path is not None:
                source.close()
                return pq.ParquetFile(pa.memory_map(shard.path) if shard.size_bytes else shard.path)
            return pq.ParquetFile(source, pre_buffer=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"cannot read Parquet shard '{shard.name}': {first_line(error)}", hint="write or download it again"
            ) from None


class Reader:
    """Rows by index. The last row groups stay in memory, so neighbours cost no read."""

    def __init__(self, shard: Shard, *, columns: Sequence[str] | None = None) -> None:
        self.shard = shard
        self.columns = list(columns) if columns is not None else None
        metadata = open_file(shard).metadata
        self.groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self._starts = [0]
        for rows in self.groups:
            self._starts.append(self._starts[-1] + rows)
        self._file: Any = None
        self._cache: OrderedDict[int, dict[str, Sequence[Any]]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        # An open file and cached rows do not travel to a worker.
        return {**self.__dict__, "_file": None, "_cache": OrderedDict()}

    def __len__(self) -> int:
        return self._starts[-1]

    def close(self) -> None:
        """Close the file and forget the cached row groups."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._cache.clear()

    def read_sample(self, index: int) -> Sample:
        """Return one row."""
        from bisect import bisect_right

        group = bisect_right(self._starts, index) - 1
        rows = self._cache.get(group)
        if rows is None:
            rows = self.read_group(group)
            self._cache[group] = rows
            while len(self._cache) > CACHED_ROW_GROUPS:
                self._cache.popitem(last=False)
        row = index - self._starts[group]
        return {name: values[row] for name, values in rows.items()}

    def read_group(self, group: int) -> dict[str, Sequence[Any]]:
        """Return a row group's columns.

        Raises:
            DataError: it cannot be decompressed or decoded.
        """
        if self._file is None:
            self._file = open_file(self.shard)
        return read_row_group(self._file, group, self.shard.name, self.columns)


def read_row_group(file: Any, group: int, shard_name: str, columns: list[str] | None) -> dict[str, Sequence[Any]]:
    """Return the columns of one row group as sequences of Python values (binary ones without a copy)."""
    import pyarrow as pa

    try:
        table = file.read_row_group(group, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"cannot read row group {group} of '{shard_name}': {first_line(error)}", hint="write or download it again"
        ) from None
    return {name: column_items(table.column(name)) for name in table.column_names}


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield the rows in order, one row group in memory at a time.

    Raises:
        DataError: no rows, or a damaged file; names shard and row group.
    """
    file = open_file(shard)
    if file.metadata.num_rows == 0:
        raise DataError(f"Parquet shard '{shard.name}' has no rows", hint="write it again, or leave it out")
    for group in range(file.metadata.num_row_groups):
        columns = read_row_group(file, group, shard.name, None)
        names = list(columns)
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(names, values, strict=True))


def count_samples(shard: Shard) -> int | None:
    """Return the rows that the footer states."""
    return int(open_file(shard).metadata.num_rows)


def decode_fields(sample: Sample) -> Sample:
    """Return the row: its columns are its fields."""
    return sample


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write samples as rows: bytes as binary, numbers as int64, token arrays as lists."""
    import pyarrow.parquet as pq

    rows = options.row_group_size or ROW_GROUP_ROWS
    stream = iter(samples)
    writer: Any = None
    while chunk := list(islice(stream, rows)):
        table = table_from(chunk)
        if writer is None:
            writer = pq.ParquetWriter(file, table.schema, compression=options.compression or "NONE")
        writer.write_table(table, row_group_size=rows)
    if writer is not None:
        writer.close()
