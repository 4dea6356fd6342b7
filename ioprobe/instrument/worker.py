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
from ioprobe.instrument.clocks import ReadCounter, RunQueue, now, process_cpu, thread_cpu
from ioprobe.instrument.ring import Ring
from ioprobe.instrument.stacks import StackSampler

_IO_FILE_BYTES = 110
"""About what one read of /proc/self/io takes."""
_SHORT_S = 0.008
"""Batches shorter than this would feel the price of the looks into /proc [s] ..."""
_EVERY = 7
"""... so only every seventh has them all; a prime, so as not to beat with what repeats in the data."""
_FIRST_ROWS = 16


class BatchClock:
    """Turns the moments of one batch into a row of the ring."""

    def __init__(self, ring: Ring, worker: int) -> None:
        self._ring, self._worker = ring, worker
        self._runq = RunQueue()
        self._reads = ReadCounter()
        self._asked = now()
        self._entered = self._asked
        self._ready = 0.0
        self._sizes = (0, 0)
        self._rows = 0
        self._took_s = 0.0
        self._brief = False
        """Whether this batch goes without the looks that short batches would feel."""
        self._io = (-1.0, -1.0)
        """Bytes and calls of read(2) of the batch looked at last."""
        self._collated: tuple[float, float, float, float, float, float] | None = None
        self._begin()
        self._others_seen = process_cpu() - thread_cpu()

    def _begin(self) -> None:
        self._brief = self._rows >= _FIRST_ROWS and self._took_s < _SHORT_S and self._rows % _EVERY > 0
        self._t0, self._c0, self._r0 = now(), thread_cpu(), self._runq.read()
        if not self._brief:
            self._bytes0, self._ops0 = self._reads.read()
            self._runq.own_bytes = 0

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
        t0, c0, r0 = now(), thread_cpu(), 0.0 if self._brief else self._runq.read()
        result = inner(samples)
        t1, c1, r1 = now(), thread_cpu(), self._runq.read()
        # Without the look in between, all of the waiting for a core counts with the fetch.
        self._collated = (t0, c0, r1 if self._brief else r0, t1, c1, r1)
        return result

    def put(self, index: int, data: Any) -> None:
        """The batch went to the result queue; write its row."""
        if self._collated is None:  # an exception or the end of a stream: not a batch
            return
        t1, c1, r1, t2, c2, r2 = self._collated
        if not self._brief:
            self._io = self._read_since()
        # Walking a large batch costs more than a look at a clock; sizes change slowly.
        if self._rows < 4 or self._rows % 16 == 0:
            self._sizes = size_of(data)
        self._rows += 1
        others = process_cpu() - thread_cpu()
        row = (
            float(index),
            self._t0,
            self._t0 - self._asked,
            t1 - self._t0,
            c1 - self._c0,
            r1 - self._r0,
            t2 - t1,
            c2 - c1,
            r2 - r1,
            max(0.0, others - self._others_seen),
            now(),
            float(self._sizes[0]),
            float(self._sizes[1]),
            *self._io,
        )
        self._took_s = t2 - self._t0
        self._others_seen = others
        self._collated = None
        self._ring.append(self._worker, row)

    def _read_since(self) -> tuple[float, float]:
        """Return (bytes, calls) of read(2) since the batch began; (-1, -1) where the kernel does not tell."""
        nbytes, ops = self._reads.read()
        if nbytes < 0:
            return -1.0, -1.0
        # The clocks' own reads of /proc are in the counters, too: two of schedstat and one of io.
        own = self._runq.own_bytes + _IO_FILE_BYTES
        return max(0.0, nbytes - self._bytes0 - own), max(0.0, ops - self._ops0 - 3)


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
            sampler = StackSampler(self._hz, on_flush=lambda data: ring.put_stacks(worker, data))
            sampler.start()
        try:
            loop(*bound.args, **bound.kwargs)
        finally:
            if sampler:
                sampler.stop(wait=False)


def time_collate(clock: BatchClock) -> None:
    """Make every fetcher of this process time its collate function; for worker processes only."""
    from torch.utils.data._utils import fetch

    base: Any = fetch._BaseDatasetFetcher
    original = base.__init__

    def init(self: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any) -> None:
        original(self, dataset, auto_collation, lambda samples: clock.collate(collate_fn, samples), drop_last)

    base.__init__ = init
