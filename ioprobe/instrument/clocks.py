"""The clocks of a thread: wall, CPU, and the time it stood in line for a core."""

from __future__ import annotations

import os
import resource
import time

now = time.perf_counter
"""Monotonic, and on Linux the same in every process of the host [s]."""
thread_cpu = time.thread_time
process_cpu = time.process_time


def children_cpu() -> float:
    """Return the CPU of this process's children that have ended and were waited for, and of theirs [s].

    Costs about 1 us.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _ProcFile:
    """A file of /proc that is kept open; -1 where there is none: not Linux, hidden from us, or not in this kernel."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except OSError:
            self._fd = -1

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class RunQueue(_ProcFile):
    """Time for which the opening thread was runnable but had no core [s], from schedstat.

    Must be made in the thread that is to be read. Reads cost about 2 us.
    """

    def __init__(self) -> None:
        super().__init__("/proc/thread-self/schedstat")
        self._own_bytes = self._own_calls = 0

    @property
    def known(self) -> bool:
        """False where the kernel does not tell; then :meth:`read` stays 0."""
        return self._fd >= 0

    def read(self) -> float:
        """Return the time waited for a core since the thread began [s]."""
        if self._fd < 0:
            return 0.0
        try:
            data = os.pread(self._fd, 64, 0)
            self._own_bytes += len(data)
            self._own_calls += 1
            return int(data.split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return 0.0

    def take_own(self) -> tuple[int, int]:
        """Return (bytes, calls) of read(2) that these looks took since the last time."""
        own = self._own_bytes, self._own_calls
        self._own_bytes = self._own_calls = 0
        return own


class ReadCounter(_ProcFile):
    """Bytes and calls of read(2) of this process, all threads."""

    def __init__(self) -> None:
        super().__init__("/proc/self/io")

    def read(self) -> tuple[float, float]:
        """Return (bytes, calls) so far; (-1, -1) where the kernel does not tell."""
        if self._fd < 0:
            return -1.0, -1.0
        try:
            lines = os.pread(self._fd, 256, 0).split()
            return float(lines[1]), float(lines[5])
        except (OSError, IndexError, ValueError):
            return -1.0, -1.0


def device_read_bytes(pids: list[int]) -> int | None:
    """Return bytes that processes caused to be read from block devices; None where it cannot be known."""
    total, found = 0, False
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io", "rb") as file:
                for line in file:
                    if line.startswith(b"read_bytes:"):
                        total += int(line.split()[1])
                        found = True
        except (OSError, ValueError):
            continue
    return total if found else None
