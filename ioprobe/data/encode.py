"""Field values to bytes, as the formats without types of their own store them."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np

Buffer = bytes | memoryview


def encode_field(value: Any) -> list[Buffer]:
    """Return the parts of a field's bytes; arrays are not copied.

    Bytes stay, text is UTF-8, numbers are decimal text, arrays become ``.npy``.
    """
    if isinstance(value, (bytes, memoryview)):
        return [value]
    if isinstance(value, np.ndarray):
        return [npy_header(value.dtype, value.shape), array_bytes(value)]
    return [str(value).encode()]


def array_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Return an array's memory without a copy (with one, where it is not contiguous)."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an ``.npy`` file (version 1.0)."""
    out = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, description)
    return out.getvalue()


def wav_header(data_bytes: int, rate_hz: int) -> bytes:
    """Return the RIFF header of mono 16-bit PCM."""
    format_chunk = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate_hz, 2 * rate_hz, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", 36 + data_bytes, b"WAVE")
        + format_chunk
        + struct.pack("<4sI", b"data", data_bytes)
    )
