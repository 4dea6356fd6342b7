"""Arrow IPC and Feather v2: samples are rows of record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO

from ioprobe.data.columns import column_items, table_from
from ioprobe.data.formats import WriteOptions
from ioprobe.data.shards import Sample, Shard, first_line, reading
from ioprobe.errors import DataError

COMPRESSIONS = ("lz4", "zstd")
BATCH_ROWS = 256
_FILE_MAGIC = b"ARROW1"


def suffix(options: WriteOptions) -> str:
    """Return ``.arrow``; its compression lies inside."""
    return ".arrow"


def _open(shard: Shard) -> tuple[Any, bool]:
    """Return a record batch reader and whether it is of the file kind (with a footer).

    Hugging Face's datasets are written as streams, which have none.
    """
    import pyarrow as pa

    with reading(shard):
        file = shard.open()
        head = file.read(6)
        if not head:
            file.close()
            raise DataError(f"Arrow shard '{shard.name}' is empty", hint="write it again, or leave it out")
        has_footer = head == _FILE_MAGIC
        file.seek(0)
        source: Any = file
        if shard.path is not None:
            file.close()
            source = pa.memory_map(shard.path)
        try:
            return (pa.ipc.open_file(source), True) if has_footer else (pa.ipc.open_stream(source), False)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"cannot read Arrow shard '{shard.name}': {first_line(error)}", hint="write or download it again"
            ) from None


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield the rows in order, one record batch at a time.

    Raises:
        DataError: no rows, or a damaged file; names shard and record batch.
    """
    found = False
    for batch in _read_batches(shard):
        found = found or batch.num_rows > 0
        names = batch.schema.names
        for values in zip(*(column_items(batch.column(n)) for n in names), strict=True):
            yield dict(zip(names, values, strict=True))
    if not found:
        raise DataError(f"Arrow shard '{shard.name}' has no rows", hint="write it again, or leave it out")


def _read_batches(shard: Shard) -> Iterator[Any]:
    import pyarrow as pa

    reader, has_footer = _open(shard)
    number = 0
    while True:
        try:
            if has_footer:
                if number == reader.num_record_batches:
                    return
                batch = reader.get_batch(number)
            else:
                batch = reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"cannot read record batch {number} of '{shard.name}': {first_line(error)}",
                hint="write or download it again",
            ) from None
        yield batch
        number += 1


def count_samples(shard: Shard) -> int | None:
    """Return the rows by the batches' headers; memory-mapped, so the data itself is not touched."""
    if shard.path is None:
        return None
    return sum(batch.num_rows for batch in _read_batches(shard)) if not compression(shard) else None


def compression(shard: Shard) -> str | None:
    """Return None for an uncompressed file, else ``compressed``: pyarrow does not tell the codec."""
    import pyarrow as pa

    reader, has_footer = _open(shard)
    if not has_footer or shard.path is None or reader.num_record_batches == 0:
        return None
    before = pa.total_allocated_bytes()
    batch = reader.get_batch(0)  # only decompression allocates; a mapped batch does not
    return "compressed" if pa.total_allocated_bytes() - before >= batch.nbytes / 2 > 0 else None


def decode_fields(sample: Sample) -> Sample:
    """Return the row: its columns are its fields."""
    return sample


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write samples as record batches of the IPC file format (Feather v2)."""
    import pyarrow as pa

    rows = options.row_group_size or BATCH_ROWS
    settings = pa.ipc.IpcWriteOptions(compression=options.compression)
    stream = iter(samples)
    writer: Any = None
    while chunk := list(islice(stream, rows)):
        table = table_from(chunk)
        if writer is None:
            writer = pa.ipc.new_file(file, table.schema, options=settings)
        writer.write_table(table, max_chunksize=rows)
    if writer is not None:
        writer.close()
