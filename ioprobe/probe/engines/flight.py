"""What io_uring and Linux AIO share: a slot for each request in flight, offsets to come, and the books between."""

from __future__ import annotations

import array
import ctypes
import functools
import time
from typing import Any

import numpy as np

from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.common import (
    RAW_LIMIT,
    Submission,
    Tally,
    Task,
    Usage,
    answer,
    io_error,
    page_memory,
    short_read,
    sleep_until,
    words_of,
)

_TAKE, _MORE = 1 << 18, 1 << 14
_MOST_AT_ONCE = 4096
"""Completions that one look at the queue can bring: as many raw latencies are kept free."""


@functools.cache
def system_call() -> Any:
    """Return ``syscall`` for hot loops: pass small integers as they are, pointers and handles as ctypes objects.

    Declared argument types would cost more than the call itself (0.7 of 1.1 us, measured), and
    letting go of the interpreter lock is of no use in a process of one thread.
    """
    call = ctypes.PyDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return call


class Flight:
    """Depth requests in flight of one thread. The engines fill and empty the kernel's queue; this keeps the rest."""

    def __init__(self, task: Task, board: Board) -> None:
        self.task = task
        self.tally, self.usage = Tally(task, board, task.slot), Usage(task)
        self._buffer = np.frombuffer(page_memory(task.step_bytes * task.depth), np.uint8)
        self.base = self._buffer.ctypes.data
        self.slots = np.arange(task.depth, dtype=np.uint64)
        self.addresses = self.base + self.slots * task.step_bytes
        """Of each slot's buffer."""
        self.latencies = np.empty(RAW_LIMIT, np.int64)
        self._offsets = task.offsets()
        self.ahead = self._offsets.take(_TAKE)
        """Offsets to read next [bytes]; the engine counts how many of them it took."""
        self.kept = False

    def start(self) -> int:
        """Wait for the common start; return the time [ns]."""
        sleep_until(self.task.at_ns)
        now_ns = time.perf_counter_ns()
        self._submission = Submission(self.task, now_ns)
        if self.task.keep_ns <= self.task.at_ns:
            self._keep(0)
        return now_ns

    @property
    def single(self) -> bool:
        """Whether requests go to the kernel one by one now."""
        return self._submission.single

    def _keep(self, ops: int) -> None:
        self.kept = True
        self.usage.start(ops)

    def mark(self, now_ns: int, ops: int, count: int, recorded: int) -> tuple[bool, int]:
        """Do what is due when a point of the grid has passed.

        Args:
            now_ns: The time.
            ops: Completions so far.
            count: Those of them that came with the last look, after the point.
            recorded: Raw latencies kept so far.

        Returns:
            Whether to go on, and the raw latencies kept from now on.
        """
        going = self.tally.mark(now_ns, ops - count)
        if not self.kept and now_ns >= self.task.keep_ns:
            self._keep(ops)
            recorded = 0
        if recorded > RAW_LIMIT - _MOST_AT_ONCE:
            self.tally.fold(self.latencies[:recorded])
            recorded = 0
        if going:
            self._submission.tried(now_ns, ops)
        else:
            self.usage.end()
        return going, recorded

    def refill(self, taken: int) -> memoryview:
        """Drop the offsets taken and look further ahead; return those to come."""
        self.ahead = np.concatenate([self.ahead[taken:], self._offsets.take(_MORE)])
        return words_of(self.ahead)

    def complain(self, result: int, offset: int) -> None:
        """Raise what a completion means that is not a whole block."""
        raise io_error(self.task, -result, offset) if result < 0 else short_read(self.task, offset, result)

    def finish(
        self, now_ns: int, ops: int, recorded: int, *, exhausted: bool
    ) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
        """Return the round's facts and columns."""
        if exhausted:
            self.tally.mark(now_ns, ops)
        if self.kept or exhausted:
            self.tally.fold(self.latencies[:recorded])
        return answer([self.tally], {**self.usage.facts(ops), "exhausted": exhausted})
