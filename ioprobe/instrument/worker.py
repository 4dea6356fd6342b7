"""What runs inside a DataLoader worker: PyTorch's own loop, with clocks around its three calls.

The loop, the dataset, the collate function and the batches are untouched. The
index queue and the result queue are handed over behind thin proxies, and the
fetcher's ``collate_fn`` is wrapped, in the worker process only.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

from ioprobe.instrument.batches import size_of
from ioprobe.instrument.clocks import ReadCounter, RunQueue, children_cpu, now, process_cpu, thread_cpu
from ioprobe.instrument.ring import STACKS_BYTES, Ring
from ioprobe.instrument.stacks import StackSampler

_IO_FILE_BYTES = 110
"""About what one read of /proc/self/io takes."""
_LOOK_EVERY_S = 0.15
"""Time between two batches with looks into /proc [s]. A look lets the interpreter's lock go, and the thread that sends
the last batch takes it: some 30 us each, of which a batch in a hurry would feel four."""
_FIRST_ROWS = 16
"""So many batches of a worker all have their looks."""
_GOLDEN = 0.618034


class BatchClock:
    """Turns the moments of one batch into a row of the ring.

    Args:
        ring: Where the row goes.
        worker: Its section of the ring.
        shared: Whether this process reads for others than this loader, too, as the main process does: then the reads
            of each batch are counted from its begin. No thread there waits to send a batch, and a look is cheap.
    """

    def __init__(self, ring: Ring, worker: int, *, shared: bool = False) -> None:
        self._ring, self._worker, self._shared = ring, worker, shared
        self._runq = RunQueue()
        self._reads = ReadCounter()
        self._asked = now()
        self._entered = self._asked
        self._ready = 0.0
        self._sizes = (0, 0)
        self._rows = 0
        self._looks = True
        """Whether this batch has looks into /proc; see ``_LOOK_EVERY_S``."""
        self._look_at = 0.0
        self._waited = _Shares()
        self._io = self._reads.read()
        """Bytes and calls of read(2) so far, at the last look."""
        self._collated: tuple[float, float, float, float, float, float] | None = None
        self._begin()
        self._others_seen = process_cpu() - thread_cpu()
        self._children_seen = children_cpu()

    def _begin(self) -> None:
        self._t0 = now()
        self._looks = self._shared or self._rows < _FIRST_ROWS or self._t0 >= self._look_at
        self._r0 = self._runq.read() if self._looks else 0.0
        self._c0 = thread_cpu()
        if self._shared or self._rows == 0:  # what a worker read before its first batch is none of it
            self._count_reads()
            self._children_seen = children_cpu()

    @property
    def counts_reads(self) -> bool:
        """Whether the kernel tells the bytes that this process read."""
        return self._reads.read()[0] >= 0

    def asked(self) -> None:
        """The worker asks for its next task."""
        self._asked = now()
        if not self._ready:
            self._ready = self._asked
            self._ring.mark_times(self._worker, self._entered, self._ready)

    def got(self) -> None:
        """The worker has a task."""
        self._begin()
        self._collated = None

    def collate(self, inner: Callable[[Any], Any], samples: Any) -> Any:
        """Run the user's collate function between two looks at the clocks."""
        t0, c0, r0 = now(), thread_cpu(), self._runq.read() if self._looks else 0.0
        result = inner(samples)
        t1, c1, r1 = now(), thread_cpu(), self._runq.read() if self._looks else 0.0
        self._collated = (t0, c0, r0, t1, c1, r1)
        return result

    def put(self, index: int, data: Any) -> None:
        """The batch went to the result queue; write its row."""
        if self._collated is None:  # an exception or the end of a stream: not a batch
            return
        t1, c1, r1, t2, c2, r2 = self._collated
        fetch_off_s, collate_off_s = (t1 - self._t0) - (c1 - self._c0), (t2 - t1) - (c2 - c1)
        fetch_runq_s, collate_runq_s = r1 - self._r0, r2 - r1
        read = (0.0, 0.0)
        if self._looks:
            self._waited.add(fetch_runq_s, fetch_off_s, collate_runq_s, collate_off_s)
            read = self._count_reads()
            # Never in step with what repeats in the data.
            self._look_at = t2 + _LOOK_EVERY_S * (0.5 + self._rows * _GOLDEN % 1.0)
        else:
            fetch_runq_s, collate_runq_s = self._waited.estimate(fetch_off_s, collate_off_s)
        # Walking a large batch costs more than a look at a clock; sizes change slowly.
        if self._rows < 4 or self._rows % 16 == 0:
            self._sizes = size_of(data)
        self._rows += 1
        others, children = process_cpu() - thread_cpu(), children_cpu()
        row = (
            float(index),
            self._t0,
            self._t0 - self._asked,
            t1 - self._t0,
            c1 - self._c0,
            fetch_runq_s,
            t2 - t1,
            c2 - c1,
            collate_runq_s,
            max(0.0, others - self._others_seen),
            max(0.0, children - self._children_seen),
            now(),
            float(self._sizes[0]),
            float(self._sizes[1]),
            *(read if self._io[0] >= 0 else (-1.0, -1.0)),
        )
        self._others_seen, self._children_seen = others, children
        self._collated = None
        self._ring.append(self._worker, row)

    def _count_reads(self) -> tuple[float, float]:
        """Return (bytes, calls) of read(2) since the last look, without those of the clocks themselves."""
        before, self._io = self._io, self._reads.read()
        own_bytes, own_calls = self._runq.take_own()
        nbytes, calls = self._io[0] - before[0], self._io[1] - before[1]
        return max(0.0, nbytes - own_bytes - _IO_FILE_BYTES), max(0.0, calls - own_calls - 1)


class _Shares:
    """Of the time that a worker is off its core, the share that it stood in line for one, fetch and collate apart.

    For batches without looks into the run queue; the last twenty or so with them count.
    """

    def __init__(self) -> None:
        self._fetch = self._collate = (0.0, 0.0)

    def add(self, fetch_runq_s: float, fetch_off_s: float, collate_runq_s: float, collate_off_s: float) -> None:
        """Take a batch with looks."""
        self._fetch = (0.95 * self._fetch[0] + fetch_runq_s, 0.95 * self._fetch[1] + max(0.0, fetch_off_s))
        self._collate = (0.95 * self._collate[0] + collate_runq_s, 0.95 * self._collate[1] + max(0.0, collate_off_s))

    def estimate(self, fetch_off_s: float, collate_off_s: float) -> tuple[float, float]:
        """Return the likely (fetch, collate) time in line for a core [s] of a batch without looks."""
        return _part(self._fetch, fetch_off_s), _part(self._collate, collate_off_s)


def _part(seen: tuple[float, float], off_s: float) -> float:
    waited_s, all_s = seen
    return max(0.0, off_s) * min(1.0, waited_s / all_s) if all_s > 0 else 0.0


class _IndexQueue:
    """The worker's index queue, with a look at the clock before and after each get."""

    def __init__(self, queue: Any, clock: BatchClock, main_pid: int) -> None:
        self._queue, self._clock, self._main_pid = queue, clock, main_pid
        self._waiting = False

    def get(self, *args: Any, **kwargs: Any) -> Any:
        if not self._waiting:  # PyTorch polls every few seconds; idle counts from the first poll
            self._clock.asked()
            self._waiting = True
        try:
            task = self._queue.get(*args, **kwargs)
        except Empty:
            # PyTorch compares its parent with the one at start: a worker whose main process died before that
            # would wait for ever.
            if not Path(f"/proc/{self._main_pid}").exists() and Path("/proc/self").exists():
                os._exit(0)
            raise
        self._waiting = False
        self._clock.got()
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _ResultQueue:
    """The worker's result queue; a row is written once the batch has been handed over."""

    def __init__(self, queue: Any, clock: BatchClock) -> None:
        self._queue, self._clock = queue, clock

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        self._queue.put(item, *args, **kwargs)
        if isinstance(item, tuple) and item and isinstance(item[0], int):
            self._clock.put(item[0], item[1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class WorkerEntry:
    """Stands in for PyTorch's ``_worker_loop``; picklable, so that spawned workers get it, too.

    Args:
        module: Module that holds the loop (``torch.utils.data._utils.worker`` or torchdata's).
        ring: Where rows go.
        stacks_hz: Stack samples per second; 0 for none.
    """

    def __init__(self, module: str, ring: Ring, stacks_hz: float, loop: Callable[..., None] | None = None) -> None:
        self._module, self._ring, self._hz, self._loop = module, ring, stacks_hz, loop
        self._main_pid = os.getpid()

    def __getstate__(self) -> tuple[str, Ring, float, int]:
        return self._module, self._ring, self._hz, self._main_pid

    def __setstate__(self, state: tuple[str, Ring, float, int]) -> None:
        self._module, self._ring, self._hz, self._main_pid = state
        self._loop = None

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        import importlib

        loop = self._loop or importlib.import_module(self._module)._worker_loop
        bound = inspect.signature(loop).bind(*args, **kwargs)
        if not {"worker_id", "index_queue", "data_queue"} <= bound.arguments.keys():
            loop(*args, **kwargs)  # someone's own loop: unknown, and so left alone
            return
        worker = int(bound.arguments["worker_id"])
        clock = BatchClock(self._ring, worker)
        bound.arguments["index_queue"] = _IndexQueue(bound.arguments["index_queue"], clock, self._main_pid)
        bound.arguments["data_queue"] = _ResultQueue(bound.arguments["data_queue"], clock)
        time_collate(clock)
        sampler = None
        if self._hz > 0:
            ring = self._ring
            sampler = StackSampler(
                self._hz, on_flush=lambda data: ring.put_stacks(worker, data), room_bytes=STACKS_BYTES
            )
            sampler.start()
        try:
            loop(*bound.args, **bound.kwargs)
        finally:
            if sampler:
                sampler.stop()


def time_collate(clock: BatchClock) -> None:
    """Make every fetcher of this process time its collate function; for worker processes only."""
    from torch.utils.data._utils import fetch

    base: Any = fetch._BaseDatasetFetcher
    original = base.__init__

    def init(self: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any) -> None:
        original(self, dataset, auto_collation, lambda samples: clock.collate(collate_fn, samples), drop_last)

    base.__init__ = init
