"""A table of per-batch rows in shared memory, one section a worker, written without locks.

The memory is a ``memfd``: it has no name in any file system, so that nothing is
left behind whatever dies. Workers that are forked inherit it; spawned ones open
it through ``/proc/PID/fd/N`` of the process that made it.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from typing import Any

FIELDS = (
    "index",
    "start_s",
    "idle_s",
    "fetch_wall_s",
    "fetch_cpu_s",
    "fetch_runq_s",
    "collate_wall_s",
    "collate_cpu_s",
    "collate_runq_s",
    "other_cpu_s",
    "child_cpu_s",
    "put_s",
    "nbytes",
    "tensors",
    "read_bytes",
    "read_ops",
)
_ROW = struct.Struct(f"<{len(FIELDS)}d")
_COUNT = struct.Struct("<q")
_TIMES = struct.Struct("<2d")
_STACKS_AT = 64
_STACKS_ROOM = 48 * 1024
STACKS_BYTES = _STACKS_ROOM - _COUNT.size
"""Room for a worker's stacks."""
_ROWS_AT = _STACKS_AT + _STACKS_ROOM


class Ring:
    """Sections of rows, one per worker; each wraps round when it is full.

    Args:
        workers: Number of sections.
        capacity: Rows that a section keeps; older ones are overwritten.
    """

    def __init__(self, workers: int, capacity: int = 16384) -> None:
        self.workers = workers
        self.capacity = capacity
        self._stride = -(-(_ROWS_AT + capacity * _ROW.size) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._read = [0] * workers
        self._fd = _anonymous_file(self._stride * max(1, workers))
        self._map = mmap.mmap(self._fd, self._stride * max(1, workers))

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (f"/proc/{os.getpid()}/fd/{self._fd}", self.workers, self.capacity)

    def close(self) -> None:
        """Give the memory back; sections still mapped by workers live until they end."""
        if self._fd >= 0:
            self._map.close()
            os.close(self._fd)
            self._fd = -1

    def append(self, worker: int, row: tuple[float, ...]) -> None:
        """Add a row (one value per field) to a worker's section; only that worker may call it."""
        base = worker * self._stride
        (count,) = _COUNT.unpack_from(self._map, base)
        _ROW.pack_into(self._map, base + _ROWS_AT + (count % self.capacity) * _ROW.size, *row)
        # The count goes last: a reader never sees a row that is half written.
        _COUNT.pack_into(self._map, base, count + 1)

    def mark_times(self, worker: int, entered_s: float, ready_s: float) -> None:
        """Note when the worker's process began and when it asked for its first task."""
        _TIMES.pack_into(self._map, worker * self._stride + 16, entered_s, ready_s)

    def times(self, worker: int) -> tuple[float, float]:
        """Return (entered_s, ready_s) on the monotonic clock; 0.0 where it never happened."""
        entered, ready = _TIMES.unpack_from(self._map, worker * self._stride + 16)
        return entered, ready

    def put_stacks(self, worker: int, data: bytes) -> None:
        """Store the worker's stack counts; what does not fit is dropped by the caller."""
        base = worker * self._stride + _STACKS_AT
        if len(data) <= STACKS_BYTES:
            _COUNT.pack_into(self._map, base, 0)
            self._map[base + _COUNT.size : base + _COUNT.size + len(data)] = data
            _COUNT.pack_into(self._map, base, len(data))

    def stacks(self, worker: int) -> bytes:
        """Return what the worker stored last."""
        base = worker * self._stride + _STACKS_AT
        (size,) = _COUNT.unpack_from(self._map, base)
        return bytes(self._map[base + _COUNT.size : base + _COUNT.size + max(0, size)])

    def count(self, worker: int) -> int:
        """Return how many rows the worker ever wrote."""
        (count,) = _COUNT.unpack_from(self._map, worker * self._stride)
        return int(count)

    def drain(self, worker: int) -> list[tuple[float, ...]]:
        """Return the rows since the last call, oldest first; overwritten ones are gone."""
        base = worker * self._stride
        count = self.count(worker)
        first = max(self._read[worker], count - self.capacity)
        self._read[worker] = count
        return [
            _ROW.unpack_from(self._map, base + _ROWS_AT + (k % self.capacity) * _ROW.size) for k in range(first, count)
        ]


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("ioprobe", getattr(os, "MFD_CLOEXEC", 0))
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def _attach(path: str, workers: int, capacity: int) -> Ring:
    ring = Ring.__new__(Ring)
    ring.workers, ring.capacity = workers, capacity
    ring._stride = -(-(_ROWS_AT + capacity * _ROW.size) // mmap.PAGESIZE) * mmap.PAGESIZE
    ring._read = [0] * workers
    ring._fd = os.open(path, os.O_RDWR)
    ring._map = mmap.mmap(ring._fd, ring._stride * max(1, workers))
    return ring
