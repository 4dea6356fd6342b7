"""Arrow columns and samples, shared by Parquet and Arrow IPC."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ioprobe.data.encode import encode_field
from ioprobe.data.shards import Sample


class BinaryItems(Sequence[Any]):
    """The values of a binary column as views of Arrow's memory: no copy per value."""

    def __init__(self, chunk: Any) -> None:
        import pyarrow as pa

        wide = pa.types.is_large_binary(chunk.type)
        _, offsets, data = chunk.buffers()
        kind = np.dtype(np.int64 if wide else np.int32)
        view = np.frombuffer(offsets, kind, len(chunk) + 1, chunk.offset * kind.itemsize)
        self._offsets: list[int] = view.tolist()
        self._data = memoryview(data) if data is not None else memoryview(b"")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        return self._data[self._offsets[index] : self._offsets[index + 1]]

    def __iter__(self) -> Any:
        data, last = self._data, self._offsets[0]
        for offset in self._offsets[1:]:
            yield data[last:offset]
            last = offset


def column_items(column: Any) -> Sequence[Any]:
    """Return a column's values: views for binary, arrays for lists of numbers, Python values otherwise."""
    import pyarrow as pa

    chunk = column
    if isinstance(column, pa.ChunkedArray):
        chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(chunk, pa.ChunkedArray):  # too large for one array
            return [value for part in chunk.chunks for value in column_items(part)]
    kind = chunk.type
    if (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) and chunk.null_count == 0 and len(chunk):
        return BinaryItems(chunk)
    if (
        (pa.types.is_list(kind) or pa.types.is_large_list(kind))
        and chunk.null_count == 0
        and _is_number(kind.value_type)
    ):
        offsets = chunk.offsets.to_numpy().tolist()
        values = chunk.values.to_numpy(zero_copy_only=False)
        return [values[a:b] for a, b in pairwise(offsets)]
    items: list[Any] = chunk.to_pylist()
    return items


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def table_from(samples: Sequence[Sample]) -> Any:
    """Return samples as an Arrow table; ``__key__`` becomes the column ``key``."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name, first in samples[0].items():
        values = [s[name] for s in samples]
        if isinstance(first, np.ndarray) and first.ndim == 1 and name == "tokens":
            offsets = np.concatenate([[0], np.cumsum([v.size for v in values])]).astype(np.int32)
            columns[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(values)))
        elif isinstance(first, (np.ndarray, bytes, memoryview)):
            columns[name] = pa.array([b"".join(encode_field(v)) for v in values], pa.binary())
        else:
            columns["key" if name == "__key__" else name] = pa.array(values)
    return pa.table(columns)
