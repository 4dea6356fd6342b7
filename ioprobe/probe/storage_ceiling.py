"""What the tool itself can do on this host, so that its own limit is not taken for the device's."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from ioprobe.errors import StoreError
from ioprobe.probe import pagecache
from ioprobe.probe.storage_crew import Crew, Reply

TOOL_LIMITED = 0.8
"""From this share of the own ceiling on, a figure says more of the tool than of the device."""
_REGION_BYTES = 16 << 20
_RAMP_S, _WINDOW_S = 0.06, 0.2


def engine_ceiling(crew: Crew, path: str, size_bytes: int, block_bytes: int, slice_ns: int) -> float | None:
    """Return what a crew of block engines reaches [operations/s] when the data costs nothing.

    It reads the file's first pages out of the page cache, which the target's own
    file system serves (memory files would send io_uring through its slow path).

    Args:
        crew: The same children that will measure.
        path: The target; its first 16 MiB are read into the cache, and dropped again unless they were there.
        size_bytes: Size of the target.
        block_bytes: Size of a read; for O_DIRECT a page, since no copy is made there.
        slice_ns: Distance of the engines' marks.
    """
    region = max(block_bytes, min(size_bytes, _REGION_BYTES) // block_bytes * block_bytes)
    before = pagecache.span_residency([(path, 0, region)]).share
    read_through(path, region)
    command = {
        "path": path,
        "block_bytes": block_bytes,
        "size_bytes": region,
        "random": True,
        "direct": False,
        "once": False,
        "advise": False,
        "seed": 1,
        "ramp_ns": int(_RAMP_S * 1e9),
    }
    replies = crew.round(command, _RAMP_S + _WINDOW_S)
    if before is not None and before < 0.5:
        _forget(path, region)
    done = marks_total(replies)
    return None if done.size < 2 else float((done[-1] - done[0]) / ((done.size - 1) * slice_ns / 1e9))


def read_through(path: str, nbytes: int) -> None:
    """Read the first bytes of a file into the page cache.

    Raises:
        StoreError: a read failed.
    """
    buffer = [bytearray(1 << 20)]
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for offset in range(0, nbytes, 1 << 20):
                os.preadv(fd, buffer, offset)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreError(f"cannot read '{path}': {error.strerror}", hint="look at the file and its device") from None


def _forget(path: str, nbytes: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, nbytes, os.POSIX_FADV_DONTNEED)
    except OSError:
        pass  # where it is refused the caller says so: it drops the whole file next
    finally:
        os.close(fd)


def marks_total(replies: list[Reply]) -> NDArray[np.int64]:
    """Return the operations of all children at each grid point that all of them reached."""
    columns = [r.column("marks") for r in replies]
    shortest = min((c.size for c in columns), default=0)
    total = np.zeros(shortest, np.int64)
    for column in columns:
        total += column[:shortest]
    return total
