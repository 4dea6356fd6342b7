"""Where the time of a loader's workers goes while a loop is watched, from the clocks that ``analyze`` uses."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ioprobe.instrument.clocks import now
from ioprobe.instrument.hooks import IteratorTrace, Recorder, install
from ioprobe.instrument.ring import FIELDS, Ring
from ioprobe.instrument.stacks import DEFAULT_HZ, named_rows
from ioprobe.instrument.stages import Frame, classify
from ioprobe.run import Stage

FETCH_STAGES = (Stage.READ, Stage.DECODE, Stage.TRANSFORM, Stage.LOCK)
FEWEST_STACKS = 12
"""Below so many stacks of dataset code, fetching is not divided."""
_LOOK_COST = 200
"""Stacks are looked at again after so many times the time that a look took: at most 0.5% of the loop."""
Seconds = dict[str, float]
_patching = threading.Lock()


def worker_seconds(rows: Iterable[Mapping[str, float]]) -> Seconds:
    """Return what workers did [s]: ``wait`` for a task, ``fetch``, ``collate``, and ``transport`` (handing over).

    Args:
        rows: One per batch, with the fields of :data:`ioprobe.instrument.ring.FIELDS`.
    """
    total = {"wait": 0.0, "fetch": 0.0, "collate": 0.0, "transport": 0.0}
    for row in rows:
        busy = row["fetch_wall_s"] + row["collate_wall_s"]
        total["wait"] += max(0.0, row["idle_s"])
        total["fetch"] += row["fetch_wall_s"]
        total["collate"] += row["collate_wall_s"]
        total["transport"] += max(0.0, row["put_s"] - row["start_s"] - busy)
    return total


def stage_shares(seconds: Mapping[str, float], stacks: Mapping[Stage, int]) -> Seconds:
    """Return the shares of the workers' time, which add up to 1; empty where there is no time to divide.

    Args:
        seconds: What :func:`worker_seconds` returned.
        stacks: Counted stacks by stage; they divide fetching into reading, decoding, transforming and waiting for
            locks. With few of them it stays ``fetch``.

    >>> stage_shares({"wait": 1.0, "fetch": 2.0, "collate": 1.0}, {Stage.READ: 25, Stage.DECODE: 75, Stage.WAIT: 9})
    {'read': 0.125, 'decode': 0.375, 'wait': 0.25, 'collate': 0.25}
    """
    total = sum(seconds.values())
    if total <= 0:
        return {}
    counts = {stage: stacks.get(stage, 0) for stage in FETCH_STAGES}
    seen = sum(counts.values())
    fetch = seconds.get("fetch", 0.0)
    if seen < FEWEST_STACKS:
        parts = {"fetch": fetch}
    else:
        parts = {stage.value: fetch * count / seen for stage, count in counts.items()}
    parts |= {name: value for name, value in seconds.items() if name != "fetch"}
    return {name: value / total for name, value in parts.items() if value > 0}


class StackCounts:
    """Counts workers' stacks by stage; each different stack is judged once."""

    def __init__(self) -> None:
        self._known: dict[str, Stage] = {}

    def of(self, data: bytes) -> Counter[Stage]:
        """Return the counts in the stacks of one worker, as it encoded them.

        Raises:
            ValueError: it is no such thing; the worker was ended while it wrote.
        """
        found: Counter[Stage] = Counter()
        for main, count, frames in named_rows(data):
            if not main or not frames:
                continue
            key = repr(frames)
            if key not in self._known:
                self._known[key] = classify([Frame(*frame) for frame in frames], "worker").stage
            found[self._known[key]] += count
        return found


class _Trace(IteratorTrace):
    """An iterator of whose own calls only the last one is kept."""

    returned_s = 0.0

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the next batch."""
        batch = original(iterator)
        self.returned_s = now()
        return batch


class _Workers:
    """What is kept of an iterator: the table that its workers write, which they do until it is gone."""

    def __init__(self, trace: _Trace) -> None:
        self.ring = trace.ring
        self.trace = weakref.ref(trace)
        self.in_loop = False
        self.counted: Counter[Stage] = Counter()
        """Stacks that were taken already."""


class StageMeter(Recorder):
    """Looks at the workers of iterators that are made between :meth:`begin` and :meth:`end`.

    Args:
        stacks_hz: Stack samples per second in each worker.
    """

    def __init__(self, stacks_hz: float = DEFAULT_HZ) -> None:
        super().__init__(stacks_hz)
        self._take_off: Callable[[], None] | None = None
        self._kept: list[_Workers] = []
        self._seconds: Seconds = {}
        self._judge = StackCounts()
        self._new: Counter[Stage] = Counter()
        self._stacks: Counter[Stage] = Counter()
        self._look_s = 0.0
        weakref.finalize(self, _meter_gone, self._kept).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return StageMeter, (self.stacks_hz,)  # a callback travels to spawned ranks before it has seen anything

    def begin(self) -> None:
        """Look at iterators that are made from now on, unless somebody does so already (``ioprobe run``)."""
        if "torch" not in sys.modules or not _patching.acquire(blocking=False):
            return
        try:
            from torch.utils.data import dataloader

            base: Any = dataloader._BaseDataLoaderIter
            if base.__next__.__module__ == dataloader.__name__:
                self._take_off = install(self)
        except Exception:  # a torch of an unusual make: the loop goes on unseen
            pass
        finally:
            if self._take_off is None:
                _patching.release()

    def end(self) -> None:
        """Look at no further iterators."""
        take_off, self._take_off = self._take_off, None
        if take_off is not None:
            take_off()
            _patching.release()
        self._retire()

    def open(self, loader: Any) -> IteratorTrace:
        """Begin the trace of a new iterator; it ends with it."""
        self._retire()
        trace = _Trace(loader, self.stacks_hz)
        self._kept.append(_Workers(trace))
        weakref.finalize(trace, _iterator_gone, weakref.ref(self), trace.ring).atexit = False
        return trace

    def delivered(self, since_s: float) -> None:
        """A batch has come: iterators that gave one since a time belong to the loop, others (validation) do not."""
        for one in self._kept:
            trace = one.trace()
            one.in_loop = one.in_loop or (trace is not None and trace.returned_s >= since_s)

    def drain(self) -> None:
        """Take what the workers have written so far."""
        for one in self._kept:
            if one.in_loop:
                self._drain(one.ring)

    def take(self) -> Seconds:
        """Return the shares of the workers' time since the last call; empty where nothing was seen."""
        self._retire()
        self.drain()
        self._look([one for one in self._kept if one.in_loop])
        if sum(self._new[stage] for stage in FETCH_STAGES) >= FEWEST_STACKS:
            self._stacks, self._new = self._new, Counter()
        seconds, self._seconds = self._seconds, {}
        return stage_shares(seconds, self._stacks)

    def _drain(self, ring: Ring) -> None:
        rows = (dict(zip(FIELDS, row, strict=True)) for worker in range(ring.workers) for row in ring.drain(worker))
        for name, value in worker_seconds(rows).items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value

    def _look(self, workers: list[_Workers]) -> None:
        """Count the stacks that came since the last time."""
        begin = now()
        if begin < self._look_s:
            return
        for one in workers:
            total: Counter[Stage] = Counter()
            for worker in range(one.ring.workers):
                try:
                    total += self._judge.of(one.ring.stacks(worker))
                except ValueError:  # the worker writes just now
                    continue
            self._new += total - one.counted
            one.counted |= total
        self._look_s = now() + _LOOK_COST * (now() - begin)

    def _retire(self) -> None:
        """Take what is left of iterators that are gone: their workers wrote it as they ended."""
        gone = [one for one in self._kept if one.trace() is None]
        self._look([one for one in gone if one.in_loop])
        for one in gone:
            if one.in_loop:
                self._drain(one.ring)
            one.ring.close()
            self._kept.remove(one)


def _iterator_gone(meter: weakref.ref[StageMeter], ring: Ring) -> None:
    """Close the table where nobody is left to read it; never sooner, for without workers the iterator writes there."""
    if meter() is None:
        ring.close()


def _meter_gone(kept: list[_Workers]) -> None:
    for one in kept:
        if one.trace() is None:
            one.ring.close()
