"""Shared memory that workers left: PyTorch names a segment by the process that made it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

_SHM = Path("/dev/shm")


def remove_segments(pids: Iterable[int]) -> None:
    """Remove the segments of processes that were ours and are dead."""
    for pid in pids:
        for place in _SHM.glob(f"torch_{pid}_*"):
            with contextlib.suppress(OSError):
                place.unlink()
