"""Who uses the cores while something is measured: /proc/stat against the measured processes' own times."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ioprobe.run import HostLoad

_MOST_PROCESSES = 100_000


class CpuTimes(msgspec.Struct, frozen=True):
    """The machine's CPU time since boot, summed over its cores."""

    busy_s: float
    """User, system and interrupt time; guests are part of user time."""
    steal_s: float
    """Taken by the hypervisor."""
    cores: int


def cpu_times(root: Path = Path("/")) -> CpuTimes | None:
    """Return the machine's CPU times, or None where the kernel does not tell."""
    try:
        lines = (root / "proc/stat").read_text().splitlines()
    except OSError:
        return None
    cores = sum(1 for line in lines if line.startswith("cpu") and line[3:4].isdigit())
    for line in lines:
        words = line.split()
        if words and words[0] == "cpu" and len(words) >= 5:
            ticks = [int(word) for word in words[1:]] + [0] * 8
            user, nice, system, _, _, irq, soft, steal = ticks[:8]
            hz = os.sysconf("SC_CLK_TCK")
            return CpuTimes((user + nice + system + irq + soft) / hz, steal / hz, max(1, cores))
    return None


def tree_cpu_s(pids: tuple[int, ...], root: Path = Path("/")) -> float:
    """Return the CPU time of processes, their living descendants and the children they have buried [s].

    A child that ends is counted on in its parent, so the sum over a tree never
    falls while the parents wait for their children.
    """
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for place in (root / "proc").glob("[0-9]*"):
        if place.name.isdecimal() and len(spent) < _MOST_PROCESSES:
            try:
                # The command's name stands in brackets and may hold blanks and brackets itself.
                words = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(place.name)] = int(words[1])
                spent[int(place.name)] = sum(int(word) for word in words[11:15])
            except (OSError, IndexError, ValueError):
                continue  # it ended while we looked
    total = sum(ticks for pid, ticks in spent.items() if _descends(pid, pids, parents))
    return total / os.sysconf("SC_CLK_TCK")


def _descends(pid: int, ancestors: tuple[int, ...], parents: dict[int, int]) -> bool:
    seen: set[int] = set()
    while pid not in seen:
        if pid in ancestors:
            return True
        seen.add(pid)
        pid = parents.get(pid, pid)
    return False


class LoadMeter:
    """Tells own cores from other load between :meth:`start` and :meth:`stop`.

    Args:
        root: Where ``proc`` is found.
        clock: Monotonic clock [s].
    """

    def __init__(self, *, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._pids: tuple[int, ...] = ()
        self._began: tuple[float, CpuTimes | None, float] | None = None
        self._latest: tuple[float, CpuTimes | None, float] | None = None

    def start(self, *pids: int) -> LoadMeter:
        """Begin the window for the given processes and their descendants; this process by default."""
        self._pids = pids or (os.getpid(),)
        self._began = self._latest = self._read()
        return self

    def sample(self) -> None:
        """Look once more, so that a process that is gone by the end still counts up to here."""
        now = self._read()
        if self._latest is None or now[2] >= self._latest[2]:
            self._latest = now

    def stop(self) -> HostLoad | None:
        """Return who used the cores since :meth:`start`; None where the kernel does not tell.

        Raises:
            ValueError: it was not started.
        """
        if self._began is None or self._latest is None:
            raise ValueError("the meter was not started")
        self.sample()
        (began_s, before, own_before), (ended_s, after, own_after) = self._began, self._latest
        window_s = ended_s - began_s
        if before is None or after is None or window_s <= 0:
            return None
        own = max(0.0, own_after - own_before) / window_s
        busy = max(0.0, after.busy_s - before.busy_s) / window_s
        return HostLoad(
            window_s=window_s,
            own_cores=own,
            # Both clocks tick in hundredths of a second, and not at the same moment.
            other_cores=max(0.0, busy - own),
            steal_cores=max(0.0, after.steal_s - before.steal_s) / window_s,
            cores=float(after.cores),
        )

    def _read(self) -> tuple[float, CpuTimes | None, float]:
        return self._clock(), cpu_times(self._root), tree_cpu_s(self._pids, self._root)
