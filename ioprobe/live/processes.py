"""A running job as the kernel shows it: who trains, who are the DataLoader workers, what they use and wait for."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ioprobe.errors import UsageError
from ioprobe.run import ProcessLoad

_WORKER_NAME = "pt_data_worker"  # what torch calls a worker's main thread, since 2.6
_HELPERS = ("resource_tracker", "semaphore_tracker", "forkserver import main", "resource_sharer")
_SPAWNED = "multiprocessing.spawn import spawn_main"
_TREE_S = 1.0
"""Time between looks for new processes, at least [s]."""
_TREE_COST = 500
"""New processes are looked for after so many times what it took: at most 0.2% of a core."""
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "mpirun")


class Process(NamedTuple):
    """One process, as ``/proc`` shows it."""

    pid: int
    parent: int
    name: str
    """Of its main thread, at most 15 characters."""
    command: tuple[str, ...]
    threads: int
    started: int
    """Clock ticks since boot; with the pid it names the process for good."""


def process(pid: int, root: Path = Path("/")) -> Process | None:
    """Return one process, or None where it is gone or is not ours to see."""
    try:
        stat = (root / f"proc/{pid}/stat").read_text(errors="replace")
        command = (root / f"proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    head, _, tail = stat.rpartition(")")
    words = tail.split()
    if len(words) < 20:
        return None
    return Process(
        pid=pid,
        parent=int(words[1]),
        name=head.partition("(")[2],
        command=tuple(part.decode("utf-8", "replace") for part in command),
        threads=int(words[17]),
        started=int(words[19]),
    )


def descendants(pid: int, root: Path = Path("/")) -> list[Process]:
    """Return a process and all its living descendants, parents before children; empty where it is gone."""
    children: dict[int, list[Process]] = {}
    for place in (root / "proc").glob("[0-9]*"):
        if place.name.isdecimal() and (found := process(int(place.name), root)) is not None:
            children.setdefault(found.parent, []).append(found)
    top = process(pid, root)
    ordered = [top] if top is not None else []
    for parent in ordered:
        ordered += sorted(children.get(parent.pid, []), key=lambda p: p.pid)
    return ordered


def is_worker(child: Process, parent: Process | None) -> bool:
    """Return whether a process is a DataLoader worker, as far as names tell.

    Torch names its workers since 2.6. Before, a forked worker has its parent's very command line, and a spawned one
    multiprocessing's; other children of that kind (a pool of the user's) cannot be told from them without stacks.
    """
    if child.name == _WORKER_NAME:
        return True
    if parent is None or parent.name == _WORKER_NAME or is_helper(child):
        return False
    return child.command == parent.command or any(_SPAWNED in part for part in child.command)


def is_helper(one: Process) -> bool:
    """Return whether a process is one of multiprocessing's own: resource tracker, fork server."""
    return any(helper in part for part in one.command for helper in _HELPERS)


def is_launcher(one: Process) -> bool:
    """Return whether a process starts ranks instead of training itself."""
    return any(Path(part).name in _LAUNCHERS or part in _LAUNCHERS for part in one.command[:6])


def is_python(one: Process, root: Path = Path("/")) -> bool:
    """Return whether a process runs Python, by its executable or the libraries that it maps."""
    try:
        if "python" in os.path.basename((root / f"proc/{one.pid}/exe").readlink()).lower():  # noqa: PTH119
            return True
        return "libpython" in (root / f"proc/{one.pid}/maps").read_text(errors="replace")
    except OSError:
        return bool(one.command) and "python" in Path(one.command[0]).name.lower()


class Roles(NamedTuple):
    """The processes of a job by what they do."""

    root: int
    """Process below which all of the job is."""
    mains: tuple[Process, ...]
    """Training processes, one a rank, by pid."""
    workers: dict[int, int]
    """DataLoader workers: pid to the pid of its training process."""
    note: str = ""
    """What was done about the pid that was given; empty where it was taken as it is."""


def roles(pid: int, root: Path = Path("/")) -> Roles:
    """Return who is who in the job of a process: a training process, one of its workers, or a launcher of ranks.

    Raises:
        UsageError: there is no such process, or no Python in it.
    """
    asked = process(pid, root)
    if asked is None:
        raise UsageError(f"there is no process {pid}", hint="pass the pid of the training process: pgrep -af python")
    parent = process(asked.parent, root)
    note = ""
    top = asked
    if is_worker(asked, parent) and parent is not None:
        note = f"process {pid} is a DataLoader worker of process {parent.pid}: attached to that one"
        top = parent
    tree = descendants(top.pid, root)
    by_pid = {p.pid: p for p in tree}
    named = any(p.name == _WORKER_NAME for p in tree)
    workers = {
        p.pid: p.parent
        for p in tree
        if p.pid != top.pid and (p.name == _WORKER_NAME if named else is_worker(p, by_pid.get(p.parent)))
    }
    others = [p for p in tree if p.pid not in workers and not is_helper(p) and is_python(p, root)]
    if not others:
        name = Path(top.command[0]).name if top.command else top.name
        raise UsageError(
            f"process {pid} ({name}) runs no Python, nor do its children",
            hint="pass the pid of the training process: pgrep -af python",
        )
    owners = set(workers.values())
    outer = [p for p in others if p.parent not in {o.pid for o in others}]
    if len(outer) > 1 and not is_launcher(top):
        listed = ", ".join(str(p.pid) for p in outer[:5])
        raise UsageError(
            f"process {pid} is no training process: {len(outer)} Python processes run below it ({listed}, ...)",
            hint="pass the pid of one of them",
        )
    # Below a launcher the ranks train; without one, whoever has workers, or the process that was named.
    mains = [p for p in others if p.pid in owners]
    mains += [p for p in others if p not in mains and is_launcher(by_pid.get(p.parent, p)) and not is_launcher(p)]
    mains = mains or [p for p in others if not is_launcher(p)][:1] or others[:1]
    return Roles(top.pid, tuple(sorted(mains, key=lambda p: p.pid)), workers, note)


class Size(NamedTuple):
    """How much there is to look at in a job."""

    processes: int
    python_threads: int
    """About: most native threads of torch are none."""
    threads: int


def size_of(found: Roles, root: Path = Path("/")) -> Size:
    """Return the size of a job.

    A training process has its main thread, one that pins, and one for each worker's index queue; a worker its main
    thread and the one that feeds the result queue.
    """
    tree = descendants(found.root, root)
    python = 0
    for one in tree:
        own = sum(1 for owner in found.workers.values() if owner == one.pid)
        python += min(one.threads, 2 + own)
    return Size(len(tree), python, sum(one.threads for one in tree))


@dataclass(slots=True)
class _Seen:
    role: str
    began_s: float
    cpu_s: float
    io: tuple[int, int, int] | None
    last_s: float = 0.0
    last_cpu_s: float = 0.0
    last_io: tuple[int, int, int] | None = None
    states: Counter[str] = field(default_factory=Counter)


class ProcessMeter:
    """Watches the processes of a job: CPU time, reads, and what their main threads sleep in.

    Call :meth:`look` as often as you like; processes that come later are taken in.

    Args:
        pid: Of the job.
        root: Where ``proc`` is found.
        every_s: Time between two looks [s].
        clock: Monotonic clock [s].
    """

    def __init__(
        self,
        pid: int,
        root: Path = Path("/"),
        *,
        every_s: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid, self._every_s, self._clock = pid, every_s, clock
        self._root = root
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._crews: dict[int, Counter[int]] = {}
        self._tree: Roles | None = None
        self._tree_due_s = self._due_s = 0.0

    def look(self) -> bool:
        """Look at every process once, where it is time to; return False when the job is gone."""
        now = self._clock()
        if now < self._due_s:
            return True
        self._due_s = now + self._every_s
        if self._tree is None or now >= self._tree_due_s:
            try:
                self._tree = roles(self._pid, self._root)
            except UsageError:
                return False
            # It reads a file or two of each process of the machine: rarely, where there are many.
            self._tree_due_s = now + max(_TREE_S, _TREE_COST * (self._clock() - now))
        for main in self._tree.mains:
            self._look_at(main.pid, "main", now)
        living = Counter(main for pid, main in self._tree.workers.items() if self._look_at(pid, "worker", now))
        for owner, count in living.items():
            self._crews.setdefault(owner, Counter())[count] += 1
        return True

    def crew(self, pid: int) -> int | None:
        """Return how many workers a main process has at a time; None where none was seen.

        Where each epoch starts new ones there are fewer than ever lived, and for a moment the old beside the new.
        """
        counts = self._crews.get(pid)
        return counts.most_common(1)[0][0] if counts else None

    def _look_at(self, pid: int, role: str, now: float) -> bool:
        """Take in what a process has done; False when it is gone."""
        found = _stat(pid, self._root)
        if found is None:
            return False
        started, cpu_s, state = found
        io = _io(pid, self._root)
        seen = self._seen.get((pid, started))
        if seen is None:
            seen = self._seen[pid, started] = _Seen(role, now, cpu_s, io)
        seen.last_s, seen.last_cpu_s, seen.last_io = now, cpu_s, io
        seen.states[_channel(pid, state, self._root)] += 1
        return True

    def loads(self) -> list[ProcessLoad]:
        """Return what was seen of each process that was looked at twice or more."""
        found = []
        for (pid, _), seen in sorted(self._seen.items()):
            window = seen.last_s - seen.began_s
            if window <= 0:
                continue
            began, ended = seen.io, seen.last_io
            reads = None if began is None or ended is None else tuple(b - a for a, b in zip(began, ended, strict=True))
            found.append(
                ProcessLoad(
                    role=seen.role,
                    pid=pid,
                    window_s=window,
                    cpu_s=seen.last_cpu_s - seen.cpu_s,
                    read_bytes=None if reads is None else reads[0],
                    read_ops=None if reads is None else reads[1],
                    device_read_bytes=None if reads is None else reads[2],
                    states=dict(seen.states),
                )
            )
        return found


def _stat(pid: int, root: Path) -> tuple[int, float, str] | None:
    """Return start [ticks], CPU time of all threads [s] and state of the main thread."""
    try:
        words = (root / f"proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(words[19]), (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"), words[0]
    except (OSError, IndexError, ValueError):
        return None


def _io(pid: int, root: Path) -> tuple[int, int, int] | None:
    """Return bytes read through system calls, calls, and bytes from a device; None where the kernel does not tell."""
    try:
        lines = (root / f"proc/{pid}/io").read_text().splitlines()
        found = {key: int(value) for key, _, value in (line.partition(": ") for line in lines)}
        return found["rchar"], found["syscr"], found["read_bytes"]
    except (OSError, ValueError, KeyError):
        return None


def _channel(pid: int, state: str, root: Path) -> str:
    """Return ``running``, ``disk``, the kernel function that the main thread sleeps in, or ``sleeping``."""
    if state == "R":
        return "running"
    if state == "D":
        return "disk"
    try:
        channel = (root / f"proc/{pid}/wchan").read_text().strip("\0\n ")
    except OSError:
        channel = ""
    return channel if channel not in ("", "0") else "sleeping"


def job_pids(found: Roles) -> Iterable[int]:
    """Return the pids of training processes and workers."""
    return [*(p.pid for p in found.mains), *found.workers]
