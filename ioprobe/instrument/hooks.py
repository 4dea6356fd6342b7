"""Hooks on PyTorch's DataLoader iterators in the main process.

:func:`install` patches the iterator classes, so that every DataLoader of the
process is seen, also one hidden inside a wrapper or driven by another thread.
Each iterator gets an :class:`IteratorTrace`; the user's loader, dataset and
batches stay what they are.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ioprobe.instrument.clocks import now, thread_cpu
from ioprobe.instrument.ring import FIELDS, Ring
from ioprobe.instrument.stacks import DEFAULT_HZ
from ioprobe.instrument.worker import BatchClock, WorkerEntry

_ATTRIBUTE = "_ioprobe_trace"


class IteratorTrace:
    """What was seen of one DataLoader iterator.

    The columns hold one entry per call of ``__next__``; times on the monotonic clock [s].
    """

    def __init__(self, loader: Any, stacks_hz: float) -> None:
        self.loader_id = id(loader)
        self.num_workers = int(getattr(loader, "num_workers", 0))
        self.thread = threading.get_ident()
        self.begin_s = now()
        self.init_s = 0.0
        self.ring = Ring(max(1, self.num_workers))
        self.stacks_hz = stacks_hz
        self.pids: list[int] = []
        self.processes: list[Any] = []
        """The workers' ``Process`` objects, for their exit codes."""
        self.call_s: list[float] = []
        self.return_s: list[float] = []
        self.cpu_s: list[float] = []
        self.sampler_s: list[float] = []
        self.transport_s: list[float] = []
        self.ready: list[int] = []
        self.ends: list[float] = []
        """When ``__next__`` raised StopIteration."""
        self.end_calls: list[float] = []
        """When ``__next__`` was called that raised it."""
        self.resets: list[tuple[float, float]] = []
        """Begin and end of each rewind of an iterator with persistent workers."""
        self._sampler_now = 0.0
        self._transport_now = 0.0

    def add_sampler(self, seconds: float) -> None:
        """Time spent drawing indices since the last batch."""
        self._sampler_now += seconds

    def add_transport(self, seconds: float) -> None:
        """Time spent receiving and deserialising since the last batch."""
        self._transport_now += seconds

    def add_next(self, call_s: float, return_s: float, cpu_s: float, ready: int) -> None:
        """One batch was delivered."""
        self.call_s.append(call_s)
        self.return_s.append(return_s)
        self.cpu_s.append(cpu_s)
        self.ready.append(ready)
        self.sampler_s.append(self._sampler_now)
        self.transport_s.append(self._transport_now)
        self._sampler_now = self._transport_now = 0.0

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the iterator's next batch, timed."""
        ready = ready_batches(iterator)
        call, cpu = now(), thread_cpu()
        try:
            batch = original(iterator)
        except StopIteration:
            self.ends.append(now())
            self.end_calls.append(call)
            raise
        self.add_next(call, now(), thread_cpu() - cpu, ready)
        return batch

    def worker_rows(self) -> list[dict[str, float]]:
        """Return the rows that workers wrote since the last call, with their worker's number."""
        rows = []
        for worker in range(self.ring.workers):
            for row in self.ring.drain(worker):
                rows.append({"worker": float(worker), **dict(zip(FIELDS, row, strict=True))})
        return rows


class Recorder:
    """Collects the traces of all iterators made while its hooks are installed."""

    def __init__(self, stacks_hz: float = DEFAULT_HZ) -> None:
        self.stacks_hz = stacks_hz
        self.traces: list[IteratorTrace] = []

    def open(self, loader: Any) -> IteratorTrace:
        """Begin the trace of a new iterator."""
        trace = IteratorTrace(loader, self.stacks_hz)
        self.traces.append(trace)
        return trace

    def forget(self) -> None:
        """Drop finished traces and their memory."""
        for trace in self.traces:
            trace.ring.close()
        self.traces = []


_lock = threading.RLock()


def install(recorder: Recorder, *, stateful: bool = True) -> Callable[[], None]:
    """Patch the iterator classes; returns the function that takes the patches off again.

    Args:
        recorder: Gets the traces.
        stateful: torchdata's classes as well, where it was imported; False leaves them to :func:`install_stateful`.
    """
    from torch.utils.data import dataloader

    base: Any = dataloader._BaseDataLoaderIter
    next_of_base, index_of_base = base.__next__, base._next_index

    def next_index(self: Any) -> Any:
        trace = getattr(self, _ATTRIBUTE, None)
        if trace is None:
            return index_of_base(self)
        start = now()
        try:
            return index_of_base(self)
        finally:
            trace.add_sampler(now() - start)

    def next_batch(self: Any) -> Any:
        trace = getattr(self, _ATTRIBUTE, None)
        return next_of_base(self) if trace is None else trace.next(self, next_of_base)

    base.__next__, base._next_index = next_batch, next_index
    undo = [_patch_family(_plain_family(), recorder)]
    if stateful:
        undo.append(install_stateful(recorder))

    def uninstall() -> None:
        base.__next__, base._next_index = next_of_base, index_of_base
        for take_off in undo:
            take_off()

    return uninstall


def install_stateful(recorder: Recorder) -> Callable[[], None]:
    """Patch the iterators of torchdata's StatefulDataLoader, where it was imported; to follow :func:`install`.

    Returns the function that takes the patches off again.
    """
    family = _stateful_family()
    return _patch_family(family, recorder) if family is not None else lambda: None


class _Family(NamedTuple):
    """The iterator classes of one DataLoader implementation."""

    multi: Any
    single: Any
    holder: Any
    """Module in which the name ``_worker_loop`` is looked up when a process is made."""
    loop_module: str
    """Module from which a spawned worker imports the loop."""


def _plain_family() -> _Family:
    from torch.utils.data import dataloader
    from torch.utils.data._utils import worker

    plain: Any = dataloader
    return _Family(plain._MultiProcessingDataLoaderIter, plain._SingleProcessDataLoaderIter, worker, worker.__name__)


def _stateful_family() -> _Family | None:
    """torchdata's StatefulDataLoader has iterators and a worker loop of its own."""
    stateful: Any = sys.modules.get("torchdata.stateful_dataloader.stateful_dataloader")
    if not hasattr(stateful, "_StatefulMultiProcessingDataLoaderIter"):  # absent, or still being imported
        return None
    return _Family(
        stateful._StatefulMultiProcessingDataLoaderIter,
        stateful._StatefulSingleProcessDataLoaderIter,
        stateful,
        "torchdata.stateful_dataloader.worker",
    )


def _patch_family(family: _Family, recorder: Recorder) -> Callable[[], None]:
    multi, single = family.multi, family.single
    saved = (multi.__init__, single.__init__, multi._reset)

    def init_multi(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        _init_multi(saved[0], family, recorder, self, loader, *args, **kwargs)

    def init_single(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        trace = recorder.open(loader)
        setattr(self, _ATTRIBUTE, trace)
        saved[1](self, loader, *args, **kwargs)
        trace.init_s = now() - trace.begin_s
        _time_single(self, trace)

    def reset(self: Any, loader: Any, first_iter: bool = False, *args: Any, **kwargs: Any) -> None:
        begin = now()
        saved[2](self, loader, first_iter, *args, **kwargs)
        trace = getattr(self, _ATTRIBUTE, None)
        if trace is not None and not first_iter:
            trace.resets.append((begin, now()))

    multi.__init__, single.__init__, multi._reset = init_multi, init_single, reset

    def take_off() -> None:
        multi.__init__, single.__init__, multi._reset = saved

    return take_off


def _init_multi(
    original: Any, family: _Family, recorder: Recorder, self: Any, loader: Any, *args: Any, **kwargs: Any
) -> None:
    trace = recorder.open(loader)
    setattr(self, _ATTRIBUTE, trace)
    # The loop is looked up by name when each process is made. Two loaders may start at once in two threads, so the
    # swap is under a lock.
    with _lock:
        loop = family.holder._worker_loop
        family.holder._worker_loop = WorkerEntry(family.loop_module, trace.ring, trace.stacks_hz, loop)
        try:
            original(self, loader, *args, **kwargs)
        finally:
            family.holder._worker_loop = loop
    trace.init_s = now() - trace.begin_s
    trace.processes = list(getattr(self, "_workers", []))
    trace.pids = [w.pid for w in trace.processes if w.pid]
    _time_transport(self, trace)


def _time_transport(iterator: Any, trace: IteratorTrace) -> None:
    """Time receiving and deserialising in the result queue's ``get``."""
    queue = iterator._worker_result_queue
    needed = ("_rlock", "_poll", "_recv_bytes", "_sem")
    if not all(hasattr(queue, name) for name in needed):
        return  # not a plain multiprocessing queue: leave it alone
    from multiprocessing.reduction import ForkingPickler
    from queue import Empty

    # A queue that its own attribute kept alive would hold its pipes until the garbage collector comes by.
    weak = weakref.ref(queue)

    def get(block: bool = True, timeout: float | None = None) -> Any:
        queue: Any = weak()
        # As multiprocessing.Queue.get does it, with a clock between waiting and receiving.
        deadline = None if timeout is None else now() + timeout
        if not queue._rlock.acquire(block, timeout):
            raise Empty
        try:
            if block and deadline is None:
                queue._poll(None)
            elif not queue._poll(max(0.0, deadline - now()) if block and deadline is not None else 0.0):
                raise Empty
            start = now()
            data = queue._recv_bytes()
            queue._sem.release()
        finally:
            queue._rlock.release()
        try:
            return ForkingPickler.loads(data)
        finally:
            trace.add_transport(now() - start)

    queue.get = get


def _time_single(iterator: Any, trace: IteratorTrace) -> None:
    """Without workers the main process fetches: give it a row per batch, as a worker would write it."""
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if fetcher is None:
        return
    clock = BatchClock(trace.ring, 0, shared=True)
    clock.asked()
    # As with queues: no cycle, else the dataset outlives its iterator.
    collate, fetch, weak = fetcher.collate_fn, type(fetcher).fetch, weakref.ref(fetcher)
    fetcher.collate_fn = lambda samples: clock.collate(collate, samples)
    count = iter(range(1 << 62))

    def timed(index: Any) -> Any:
        clock.asked()
        clock.got()
        batch = fetch(weak(), index)
        clock.put(next(count), batch)
        return batch

    fetcher.fetch = timed


def ready_batches(iterator: Any) -> int:
    """Return how many batches lie ready for the main process; -1 where it cannot be known."""
    info = getattr(iterator, "_task_info", None)
    if info is None:
        return -1
    arrived = sum(1 for task in info.values() if len(task) == 2)
    try:
        return arrived + int(iterator._data_queue.qsize())
    except (NotImplementedError, AttributeError, OSError):
        return -1
