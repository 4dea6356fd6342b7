"""Plain ``preadv`` into page-aligned memory: one thread for each request in flight.

Small reads through the page cache go by ``pread``, as fio's psync does: its system
call is a sixth cheaper, which is what such a read waits for.
"""

from __future__ import annotations

import array
import os
import threading
import time
from bisect import bisect_right
from itertools import repeat
from operator import length_hint
from typing import Any

import numpy as np

from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.common import (
    RAW_LIMIT,
    Read,
    Tally,
    Task,
    Usage,
    answer,
    io_error,
    page_memory,
    short_read,
    sleep_until,
)

_FIRST_TAKE = 1 << 17
_MORE = 1 << 13
_MOST, _BUNCH_NS = 512, 1_000_000
_SMALL_BYTES = 64 << 10
"""Up to here ``pread`` finds its memory without asking the kernel for it (malloc maps from 128 KiB on)."""


class Worker:
    """Depth threads, each with one request in flight."""

    def __init__(self, job: dict[str, Any], board: Board, *, read: Read | None = None) -> None:
        self.job, self.board, self.read = job, board, read

    def round(self, command: dict[str, Any]) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
        """Read blocks until the end or the stop flag.

        Raises:
            OSError: opening or reading failed.
        """
        task = Task.of(self.job, command)
        fd = task.open()
        usage = Usage(task)
        tallies = [Tally(task, self.board, task.slot + i) for i in range(task.depth)]
        streams = [_Stream(task, fd, self.read, tally, i, usage) for i, tally in enumerate(tallies)]
        try:
            if task.depth == 1:
                sleep_until(task.at_ns)
                streams[0].run()
            else:
                threads = [threading.Thread(target=s.run_in_thread, daemon=True) for s in streams]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        finally:
            os.close(fd)
        for stream in streams:
            if stream.error is not None:
                raise stream.error
        facts = usage.facts(sum(s.ops for s in streams))
        facts["exhausted"] = all(s.exhausted for s in streams)
        return answer(tallies, facts)

    def close(self) -> None:
        """Nothing is kept between rounds."""


class _Stream:
    """One thread's reads, in bunches that the interpreter's own loops carry out: half the overhead.

    A bunch lasts about a millisecond, so that marks and the stop flag are seen in time.
    """

    def __init__(self, task: Task, fd: int, read: Read | None, tally: Tally, number: int, usage: Usage) -> None:
        self.task, self.fd, self.tally, self.number, self.usage = task, fd, tally, number, usage
        self.read = read or os.preadv
        self.small = read is None and not task.direct and task.block_bytes <= _SMALL_BYTES
        self.ops = 0
        self.exhausted = False
        self.error: BaseException | None = None
        self.offsets = task.offsets(number, task.depth)
        self.ahead: list[int] = self.offsets.take(_FIRST_TAKE // task.depth or 1).tolist()
        self.stamps = array.array("q")
        """Times [ns]: for each bunch when it began, and when each of its reads came back."""
        self.begins: list[int] = []
        """Places in ``stamps`` where bunches begin."""

    def run_in_thread(self) -> None:
        try:
            sleep_until(self.task.at_ns)
            self.run()
        except BaseException as error:
            self.error = error
            self.tally.board.stop()

    def run(self) -> None:
        task, tally, stamps, clock = self.task, self.tally, self.stamps, time.perf_counter_ns
        with memoryview(page_memory(task.step_bytes))[: task.block_bytes] as view:
            kept = False
            limit = RAW_LIMIT // task.depth
            going, at, many = True, 0, 1
            if task.keep_ns <= task.at_ns:
                kept = self._keep()
            while going:
                bunch = self.ahead[at : at + many]
                at += many
                if not bunch:
                    self.ahead, at = self.offsets.take(_MORE).tolist(), 0
                    if not self.ahead:
                        break  # a single pass has ended
                    continue
                self.begins.append(len(stamps))
                before = clock()
                ends = self._read(bunch, view)
                stamps.append(before)
                stamps.extend(ends)
                now = ends[-1]
                if now >= tally.next_ns:
                    going = tally.mark(now, self.ops + bisect_right(ends, tally.next_ns))
                self.ops += len(ends)
                if not kept and now >= task.keep_ns:
                    self._forget()
                    kept = self._keep()
                if len(stamps) >= limit:
                    self._fold()
                many = max(1, min(2 * many, _MOST, many * _BUNCH_NS // max(1, now - before)))
            self.exhausted = going
            if self.number == 0:
                self.usage.end()
            if going:
                tally.mark(clock(), self.ops)
            self._fold()

    def _read(self, bunch: list[int], view: memoryview) -> list[int]:
        """Read blocks one after another; return when each came back [ns]."""
        clock, size = time.perf_counter_ns, self.task.block_bytes
        coming = iter(bunch)
        try:
            if self.small:
                reads = map(len, map(os.pread, repeat(self.fd), repeat(size), coming))
            else:
                reads = map(self.read, repeat(self.fd), repeat([view]), coming)
            ends = [clock() for got in reads if got == size]
        except OSError as error:
            raise io_error(self.task, error.errno or 0, bunch[-1 - length_hint(coming)]) from None
        if len(ends) != len(bunch):
            for offset in bunch:
                got = self.read(self.fd, [view], offset)
                if got != size:
                    raise short_read(self.task, offset, got)
            raise short_read(self.task, bunch[0], len(ends) * size // len(bunch))
        return ends

    def _keep(self) -> bool:
        if self.number == 0:
            self.usage.start(self.ops * self.task.depth)
        return True

    def _fold(self) -> None:
        if self.begins:
            times = np.frombuffer(self.stamps, np.int64)
            self.tally.fold(np.delete(np.diff(times), np.array(self.begins[1:], np.int64) - 1))
            del times  # or the array could not shrink
        self._forget()

    def _forget(self) -> None:
        del self.stamps[:], self.begins[:]
