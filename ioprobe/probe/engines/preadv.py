"""Plain ``preadv`` into page-aligned memory: one thread for each request in flight."""

from __future__ import annotations

import array
import mmap
import os
import threading
import time
from typing import Any

import numpy as np

from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.common import RAW_LIMIT, Read, Tally, Task, Usage, answer, io_error, short_read, sleep_until

_FIRST_TAKE = 1 << 17
_MORE = 1 << 13


class Worker:
    """Depth threads, each with one request in flight."""

    def __init__(self, job: dict[str, Any], board: Board, *, read: Read = os.preadv) -> None:
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
    def __init__(self, task: Task, fd: int, read: Read, tally: Tally, number: int, usage: Usage) -> None:
        self.task, self.fd, self.read, self.tally, self.number, self.usage = task, fd, read, tally, number, usage
        self.ops = 0
        self.exhausted = False
        self.error: BaseException | None = None
        self.offsets = task.offsets(number, task.depth)
        self.ahead = array.array("q", self.offsets.take(_FIRST_TAKE // task.depth or 1).tobytes())

    def run_in_thread(self) -> None:
        try:
            sleep_until(self.task.at_ns)
            self.run()
        except BaseException as error:
            self.error = error
            self.tally.board.stop()

    def run(self) -> None:
        task, tally, read, fd = self.task, self.tally, self.read, self.fd
        clock, size = time.perf_counter_ns, task.block_bytes
        buffer = mmap.mmap(-1, task.step_bytes)
        view = memoryview(buffer)[:size]
        into = [view]
        latencies = array.array("q")
        add = latencies.append
        folded = 0  # operations whose latencies are no longer raw
        kept = task.keep_ns <= task.at_ns
        if kept and self.number == 0:
            self.usage.start(0)
        next_ns = tally.next_ns
        limit = RAW_LIMIT // task.depth
        going = True
        before = clock()
        while going and len(self.ahead):
            for offset in self.ahead:
                try:
                    got = read(fd, into, offset)
                except OSError as error:
                    raise io_error(task, error.errno or 0, offset) from None
                now = clock()
                if got != size:
                    raise short_read(task, offset, got)
                add(now - before)
                before = now
                if now >= next_ns:
                    going = tally.mark(now, folded + len(latencies) - 1)
                    next_ns = tally.next_ns
                    if not kept and now >= task.keep_ns:
                        kept = True
                        folded += len(latencies)
                        del latencies[:]
                        if self.number == 0:
                            self.usage.start(folded * task.depth)
                    if len(latencies) >= limit:
                        tally.fold(np.frombuffer(latencies, np.int64).copy())
                        folded += len(latencies)
                        del latencies[:]
                        before = clock()
                    if not going:
                        break
            else:
                self.ahead = array.array("q", self.offsets.take(_MORE).tobytes())
        self.exhausted = going
        self.ops = folded + len(latencies)
        if self.exhausted:
            tally.mark(before, self.ops)
        tally.fold(np.frombuffer(latencies, np.int64))
        view.release()
        buffer.close()
