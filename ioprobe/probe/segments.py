"""Shared memory that workers left: PyTorch names a segment by the process that made it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

_SHM = Path("/dev/shm")
_PREFIX = "torch_"


def remove_segments(pids: Iterable[int]) -> None:
    """Remove the segments of processes that were ours and are dead."""
    # No pattern of its own for each process: pathlib and re keep hundreds of those, which a long-lived process
    # that measures again and again would show as growth.
    ours = {str(pid) for pid in pids}
    if not ours:
        return
    with contextlib.suppress(OSError):
        for place in _SHM.iterdir():
            pid, mark, _ = place.name.removeprefix(_PREFIX).partition("_")
            if place.name.startswith(_PREFIX) and mark and pid in ours:
                with contextlib.suppress(OSError):
                    place.unlink()
