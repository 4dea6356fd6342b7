"""End a measuring child with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from ioprobe.probe.segments import remove_segments

_GRACE_S = 0.5
_TRACKERS_S = 1.5


def family(pid: int) -> set[int]:
    """Return a process and its descendants; asked while it lives, for what left its session is not found without it."""
    import psutil

    try:
        return {pid, *(p.pid for p in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        return {pid}


def end_family(process: subprocess.Popen[bytes], pids: set[int]) -> None:
    """End a child that leads its own session, and its descendants; remove their shared memory.

    Args:
        process: The child; it has half a second to end by itself.
        pids: Its :func:`family`.
    """
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
    pids = pids | _session_of(process.pid)
    # Python's resource trackers go last: they unlink the semaphores of processes that were killed.
    trackers = {pid for pid in pids if _is_tracker(pid)}
    for pid in pids - trackers:
        _kill(pid)
    deadline = time.monotonic() + _TRACKERS_S
    while any(_alive(pid) for pid in trackers) and time.monotonic() < deadline:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    remove_segments(pids)


def _session_of(leader: int) -> set[int]:
    """Return the processes of a session, also those whose parents are gone."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(place.name)) == leader:
                found.add(int(place.name))
    return found


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
