"""The workers' rows of one measurement as arrays, cleaned, with what else went on at the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ioprobe.model.profile import Floats, Ints
from ioprobe.run import LoaderRun, WorkerBatches

LEAST_ROWS = 4
ALONE = 0.25
"""Mean number of other workers at work below which a batch counts as made alone."""
CLOCK_ERROR = 0.02
"""Blocked time below this share of the CPU time is the clocks' own error."""


class Extra(NamedTuple):
    """What a batch costs above the usual [s]."""

    cpu_s: float = 0.0
    blocked_s: float = 0.0


@dataclass(frozen=True)
class Rows:
    """Batches in order of their tasks, each worker's first of an epoch left out; shape (batches,)."""

    worker: Ints
    index: Ints
    """Task number; -1 where the same number need not be the same data."""
    start_s: Floats
    put_s: Floats
    fetch_cpu_s: Floats
    fetch_blocked_s: Floats
    collate_cpu_s: Floats
    collate_blocked_s: Floats
    other_cpu_s: Floats
    child_cpu_s: Floats
    crowd: Floats
    """Mean number of other workers at work while the batch was made."""
    overhead_s: float
    """Median time for taking a task and handing a batch over [s]."""
    first: Extra
    """What the first batch of a worker's life costs above the later ones."""
    again: Extra
    """The same of a later epoch's first batch, whether workers persist or not."""

    @property
    def size(self) -> int:
        """Number of batches."""
        return int(self.worker.size)

    @property
    def cpu_s(self) -> Floats:
        """CPU of fetch and collate [s]."""
        return np.asarray(self.fetch_cpu_s + self.collate_cpu_s)

    @property
    def blocked_s(self) -> Floats:
        """Blocked time of fetch and collate [s]."""
        return np.asarray(self.fetch_blocked_s + self.collate_blocked_s)

    def only(self, chosen: Ints | NDMask) -> Rows:
        """Return some of the batches."""
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return Rows(**columns, overhead_s=self.overhead_s, first=self.first, again=self.again)


_COLUMNS = (
    "worker",
    "index",
    "start_s",
    "put_s",
    "fetch_cpu_s",
    "fetch_blocked_s",
    "collate_cpu_s",
    "collate_blocked_s",
    "other_cpu_s",
    "child_cpu_s",
    "crowd",
)
NDMask = np.ndarray[tuple[int], np.dtype[np.bool_]]


def rows_of(source: LoaderRun) -> Rows | None:
    """Return a measurement's rows; None where it has none or too few."""
    table = source.workers
    if table is None or len(table.fetch_wall_s) < LEAST_ROWS or len(table.worker) != len(table.fetch_wall_s):
        return None
    n = len(table.fetch_wall_s)
    worker = np.asarray(table.worker, dtype=np.int64)
    start, put = _column(table.start_s, n), _column(table.put_s, n)
    index = np.asarray(table.index if len(table.index) == n else [-1] * n, dtype=np.int64)
    # With a shuffling sampler, or an iterable, the same number is not the same data.
    fixed = source.settings is not None and source.settings.shuffle is False
    known = bool((index >= 0).all()) and np.unique(index).size == n
    fetch_cpu, collate_cpu = _column(table.fetch_cpu_s, n), _column(table.collate_cpu_s, n)
    fetch, collate = _column(table.fetch_wall_s, n), _column(table.collate_wall_s, n)
    born, again = _first_of_workers(worker, start, index)
    order = np.lexsort((start, index)) if known else np.argsort(start, kind="stable")
    cpu = fetch_cpu + collate_cpu
    waited = np.maximum(0.0, fetch + collate - cpu - _column(table.fetch_runq_s, n) - _column(table.collate_runq_s, n))
    kept, persistent = order, source.settings is not None and source.settings.persistent_workers
    if n - int((born | again).sum()) >= LEAST_ROWS:
        kept = order[~(born | again)[order]]
    lives = born if persistent else born | again
    first = _extra(cpu, waited, lives, kept) if kept.size < n else Extra()
    later = _extra(cpu, waited, again, kept) if kept.size < n else Extra()
    full = Rows(
        worker=worker,
        index=index if known and fixed else np.full(n, -1),
        start_s=start,
        put_s=put,
        fetch_cpu_s=fetch_cpu,
        fetch_blocked_s=_blocked(fetch, fetch_cpu, _column(table.fetch_runq_s, n)),
        collate_cpu_s=collate_cpu,
        collate_blocked_s=_blocked(collate, collate_cpu, _column(table.collate_runq_s, n)),
        other_cpu_s=_column(table.other_cpu_s, n),
        child_cpu_s=_column(table.child_cpu_s, n),
        crowd=_crowd(worker, start, put),
        overhead_s=_overhead(table, worker, start, put, fetch + collate),
        first=first,
        again=later,
    )
    return full.only(kept)


def _column(values: list[float] | list[int], n: int) -> Floats:
    return np.asarray(values, dtype=np.float64) if len(values) == n else np.zeros(n)


def _blocked(wall: Floats, cpu: Floats, runq: Floats) -> Floats:
    blocked = np.maximum(0.0, wall - cpu - runq)
    return np.zeros_like(blocked) if blocked.mean() < CLOCK_ERROR * cpu.mean() else blocked


def _first_of_workers(worker: Ints, start: Floats, index: Ints) -> tuple[NDMask, NDMask]:
    """Return which batches are a worker's very first, and which its first of a later epoch: task numbers start anew."""
    born, again = np.zeros(worker.size, dtype=bool), np.zeros(worker.size, dtype=bool)
    numbered = bool((index >= 0).all())
    for w in np.unique(worker):
        mine = np.flatnonzero(worker == w)
        mine = mine[np.argsort(start[mine], kind="stable")]
        born[mine[0]] = True
        if numbered:
            again[mine[1:][np.diff(index[mine]) <= 0]] = True
    return born, again


def _extra(cpu: Floats, waited: Floats, chosen: NDMask, usual: Ints) -> Extra:
    """Return what some batches cost above the usual ones, by medians."""
    if not chosen.any():
        return Extra()
    more = (float(np.median(column[chosen]) - np.median(column[usual])) for column in (cpu, waited))
    return Extra(*(max(0.0, m) for m in more))


def _crowd(worker: Ints, start: Floats, put: Floats) -> Floats:
    """Overlap of each batch with other workers' batches over its own length."""
    order = np.argsort(start)
    begin, end, who = start[order], put[order], worker[order]
    longest = float((end - begin).max())
    crowd = np.zeros(worker.size)
    for k, i in enumerate(order):
        first = int(np.searchsorted(begin, begin[k] - longest))
        last = int(np.searchsorted(begin, end[k]))
        overlap = np.minimum(end[k], end[first:last]) - np.maximum(begin[k], begin[first:last])
        shared = overlap[(who[first:last] != who[k]) & (overlap > 0)].sum()
        crowd[i] = shared / max(1e-9, end[k] - begin[k])
    return crowd


def _overhead(table: WorkerBatches, worker: Ints, start: Floats, put: Floats, work: Floats) -> float:
    """Median time between collating and asking for the next task, waiting left out [s]."""
    idle = _column(table.idle_s, worker.size)
    gaps = [np.zeros(0)]
    for w in np.unique(worker):
        mine = np.flatnonzero(worker == w)
        mine = mine[np.argsort(start[mine])]
        gaps.append(start[mine][1:] - idle[mine][1:] - put[mine][:-1])
    between = np.concatenate(gaps)
    hand_over = float(np.median(np.maximum(0.0, put - start - work)))
    return hand_over + (max(0.0, float(np.median(between))) if between.size else 0.0)
