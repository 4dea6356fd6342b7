"""CRC-32C (Castagnoli), as TFRecord and many stores use it.

Where the package ``google_crc32c`` or ``crc32c`` is installed it is used (a CPU
instruction); otherwise numpy: the buffer is cut into equal lanes, all lanes
advance together, and neighbours are merged pairwise, for a CRC is linear:
``crc(a || b) = shift(crc(a), len(b)) ^ crc(b)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
Words = NDArray[np.uint32]


@lru_cache(maxsize=1)
def _tables() -> Words:
    """Return tables, shape (4, 256): entry [k][b] is byte b followed by k zero bytes."""
    tables = np.zeros((4, 256), np.uint32)
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(_POLYNOMIAL), first >> 1)
    tables[0] = first
    for k in range(1, 4):
        tables[k] = (tables[k - 1] >> 8) ^ first[tables[k - 1] & 0xFF]
    return tables


@lru_cache(maxsize=1)
def _byte_table() -> list[int]:
    table: list[int] = _tables()[0].tolist()
    return table


def _apply(operator: Words, states: Words) -> Words:
    """Return a linear operator, given as tables of shape (4, 256), applied to each state."""
    out: Words = (
        operator[0][states & 0xFF]
        ^ operator[1][(states >> 8) & 0xFF]
        ^ operator[2][(states >> 16) & 0xFF]
        ^ operator[3][states >> 24]
    )
    return out


@lru_cache(maxsize=64)
def _shift(zero_bytes: int) -> Words:
    """Return the operator that advances a state over zero bytes, shape (4, 256)."""
    states = (np.arange(256, dtype=np.uint32)[None, :] << (8 * np.arange(4, dtype=np.uint32)[:, None])).astype(
        np.uint32
    )
    one = _tables()[0]
    operator: Words = ((states >> 8) ^ one[states & 0xFF]).astype(np.uint32)
    result = states
    while zero_bytes:
        if zero_bytes & 1:
            result = _apply(operator, result)
        operator = _apply(operator, operator)
        zero_bytes >>= 1
    return result


def _small(data: bytes | memoryview, state: int) -> int:
    table = _byte_table()
    for byte in data:
        state = (state >> 8) ^ table[(state ^ byte) & 0xFF]
    return state


def crc32c_numpy(data: bytes | memoryview) -> int:
    """Return the CRC-32C of a buffer, with numpy alone.

    >>> hex(crc32c_numpy(b"123456789"))
    '0xe3069283'
    """
    view = memoryview(data).cast("B")
    if len(view) < 256:
        return _small(view, 0xFFFFFFFF) ^ 0xFFFFFFFF
    # A power of two of lanes, each a multiple of four bytes; about 64 bytes a lane serves both ends.
    lanes = 1 << max(2, (len(view) // 64).bit_length() - 1)
    lanes = min(lanes, 4096)
    width = len(view) // lanes // 4 * 4
    head, tail = view[: lanes * width], view[lanes * width :]
    columns = np.frombuffer(head, "<u4").reshape(lanes, width // 4).T.copy()
    table = _tables()[::-1]
    states = np.zeros(lanes, np.uint32)
    states[0] = 0xFFFFFFFF
    for column in columns:
        states = _apply(table, states ^ column)
    length = width
    while states.size > 1:
        states = _apply(_shift(length), states[0::2]) ^ states[1::2]
        length *= 2
    return _small(tail, int(states[0])) ^ 0xFFFFFFFF


@lru_cache(maxsize=1)
def _fastest() -> Callable[[Any], int]:
    import importlib

    for module, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        try:
            found: Callable[[Any], int] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        return found
    return crc32c_numpy


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of a buffer."""
    return _fastest()(bytes(data) if isinstance(data, memoryview) and _fastest() is not crc32c_numpy else data)


def masked(data: bytes | memoryview) -> int:
    """Return TFRecord's masked CRC: rotated right by 15 bits plus a constant.

    >>> hex(masked(b"123456789"))
    '0xc78ab0e5'
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
