"""What the block engines share: opening, marks on a common time grid, latencies folded to a histogram."""

from __future__ import annotations

import array
import errno
import mmap
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.offsets import Pass
from ioprobe.probe.pagecache import process_device_bytes

SLICE_NS = 20_000_000
BINS_PER_OCTAVE = 128
"""A bin is 0.54% wide."""
_BINS = 64 * BINS_PER_OCTAVE
RAW_LIMIT = 4 << 20
"""Latencies kept raw per process before they are folded."""

Read = Callable[[int, list[memoryview], int], int]


@dataclass
class Task:
    """One round of one process."""

    path: str
    block_bytes: int
    depth: int
    random: bool
    direct: bool
    size_bytes: int
    seed: int
    stream: int
    streams: int
    once: bool
    advise: bool
    at_ns: int
    keep_ns: int
    """End of the ramp: marks and latencies count from here."""
    end_ns: int
    slot: int

    @classmethod
    def of(cls, job: dict[str, Any], command: dict[str, Any]) -> Task:
        """Return the task of a round from the child's job and the parent's command."""
        merged = {**job, **command}
        merged["keep_ns"] = merged["at_ns"] + merged["ramp_ns"]
        return cls(**{name: merged[name] for name in cls.__dataclass_fields__})

    @property
    def step_bytes(self) -> int:
        """Distance of buffers [bytes]: whole pages."""
        return -(-self.block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def open(self) -> int:
        """Open for reading, with the hint that fits the pattern.

        Raises:
            OSError: EINVAL where O_DIRECT is refused.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if self.direct else 0))
        if self.advise and not self.direct:
            hint = os.POSIX_FADV_RANDOM if self.random else os.POSIX_FADV_SEQUENTIAL
            try:
                os.posix_fadvise(fd, 0, 0, hint)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESPIPE):
                    raise
        return fd

    def offsets(self, part: int = 0, parts: int = 1) -> Pass:
        """Return the pass of one of this process's streams."""
        blocks = self.size_bytes // self.block_bytes
        if self.random or parts == 1:
            return Pass(
                blocks,
                self.block_bytes,
                random=self.random,
                seed=self.seed,
                stream=self.stream * parts + part,
                streams=self.streams * parts,
                once=self.once,
                contiguous=parts == 1,
            )
        return Pass(
            blocks, self.block_bytes, random=False, seed=self.seed, stream=self.stream * parts + part,
            streams=self.streams * parts, once=self.once,
        )  # fmt: skip


class Tally:
    """Marks and latencies of one stream."""

    def __init__(self, task: Task, board: Board, slot: int) -> None:
        self.marks = array.array("q")
        """Operations completed by each point of the grid, from the end of the ramp on."""
        self.bins = np.zeros(_BINS, np.int64)
        self.max_ns = 0
        self.sum_ns = 0
        self.next_ns = task.at_ns + SLICE_NS
        self.task, self.board, self.at = task, board, Board.at(slot)

    def mark(self, now_ns: int, ops: int) -> bool:
        """Note the operations up to the grid points passed by now; return whether to go on."""
        task, words = self.task, self.board.words
        while self.next_ns <= now_ns:
            if self.next_ns >= task.keep_ns:
                self.marks.append(ops)
            self.next_ns += SLICE_NS
        words[self.at], words[self.at + 1] = ops, ops * task.block_bytes
        return now_ns < task.end_ns and not words[0]

    def fold(self, latencies_ns: NDArray[np.int64]) -> None:
        """Add raw latencies to the histogram."""
        if latencies_ns.size:
            keys = (np.log2(np.maximum(latencies_ns, 1)) * BINS_PER_OCTAVE).astype(np.int64)
            self.bins += np.bincount(keys, minlength=_BINS)[:_BINS]
            self.max_ns = max(self.max_ns, int(latencies_ns.max()))
            self.sum_ns += int(latencies_ns.sum())


class Submission:
    """Whether requests go to the kernel one by one or together.

    Past the page cache it is one by one, as other tools do: the device starts on
    the first while the next is prepared. Through the cache together may cost a
    third less CPU, which is what those reads wait for; so both are tried in turn
    during the ramp, and the better one is kept.
    """

    _BETTER = 1.03
    """Together must bring this much to be chosen."""

    def __init__(self, task: Task, now_ns: int) -> None:
        self.fixed = task.direct or task.depth == 1 or task.keep_ns <= task.at_ns
        """Nothing to try: direct neighbours sent together would be merged, and not be reads of that size any more."""
        self.single = task.depth > 1 and (task.direct or not self.fixed)
        self._rates: dict[bool, list[float]] = {True: [], False: []}
        self._ops, self._since_ns = 0, now_ns
        self._keep_ns = task.keep_ns

    def tried(self, now_ns: int, ops: int) -> bool:
        """Note what the present way brought since the last call; return the way to go on."""
        if self.fixed:
            return self.single
        self._rates[self.single].append((ops - self._ops) / max(1, now_ns - self._since_ns))
        self._ops, self._since_ns = ops, now_ns
        if now_ns < self._keep_ns:
            self.single = not self.single
        else:
            one, many = (float(np.median(self._rates[way] or [0.0])) for way in (True, False))
            self.single = many <= self._BETTER * one
            self.fixed = True
        return self.single


class Usage:
    """CPU and device bytes of this process over the kept window."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._device = process_device_bytes()
        self._cpu_s: float | None = None
        self._end_cpu_s: float | None = None
        self._ops = 0

    def start(self, ops: int) -> None:
        """Note the end of the ramp."""
        self._cpu_s, self._ops = _cpu_s(), ops

    def end(self) -> None:
        """Note the end of the window: what evaluation takes afterwards is not the reads'."""
        self._end_cpu_s = _cpu_s()

    def facts(self, ops: int) -> dict[str, Any]:
        """Return CPU seconds and operations from start to end, and device bytes since the beginning."""
        end_cpu_s = _cpu_s() if self._end_cpu_s is None else self._end_cpu_s
        device = process_device_bytes()
        return {
            "cpu_s": None if self._cpu_s is None else end_cpu_s - self._cpu_s,
            "cpu_ops": ops - self._ops,
            "ops": ops,
            "elapsed_ns": time.perf_counter_ns() - self._task.at_ns,
            "device_bytes": None if device is None or self._device is None else device - self._device,
        }


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def answer(tallies: list[Tally], facts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
    """Return a round's facts and columns for all streams of this process."""
    shortest = min((len(t.marks) for t in tallies), default=0)
    marks = np.sum([np.frombuffer(t.marks, np.int64)[:shortest] for t in tallies], axis=0) if shortest else []
    bins = np.sum([t.bins for t in tallies], axis=0)
    used = np.flatnonzero(bins)
    columns = {
        "marks": array.array("q", [int(m) for m in marks]),
        "latency_bins": array.array("q", used.tolist()),
        "latency_counts": array.array("q", bins[used].tolist()),
    }
    return {**facts, "max_ns": max(t.max_ns for t in tallies), "sum_ns": sum(t.sum_ns for t in tallies)}, columns


def page_memory(nbytes: int) -> mmap.mmap:
    """Return page-aligned memory, faulted in.

    It is private, since the kernel does more for each page of shared memory. It is
    not of huge pages, although those double the rate of large direct reads on a
    virtual disk (fewer segments a request): neither other tools nor loaders have them.
    """
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
    return memory


def words_of(values: NDArray[Any]) -> memoryview:
    """Return an array as a memoryview: single elements are read and written faster than through numpy."""
    return memoryview(values)  # type: ignore[arg-type]


def sleep_until(at_ns: int) -> None:
    """Wait for the common start."""
    time.sleep(max(0.0, (at_ns - time.perf_counter_ns()) / 1e9))


def short_read(task: Task, offset: int, got: int) -> OSError:
    """Return the error for a block that came back incomplete."""
    found = OSError(None, f"{got} of {task.block_bytes} bytes came back at offset {offset}: the file shrank")
    found.filename = task.path
    return found


def io_error(task: Task, code: int, offset: int) -> OSError:
    """Return the error for a failed completion, naming the file and offset."""
    found = OSError(code, f"{os.strerror(code)} at offset {offset}")
    found.filename = task.path
    return found
