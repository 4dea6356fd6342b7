"""The workers' rows of one measurement as arrays, cleaned, with what else went on at the time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ioprobe.model.profile import Floats, Ints
from ioprobe.run import LoaderRun, WorkerBatches

LEAST_ROWS = 4
ALONE = 0.25
"""Mean number of other workers at work below which a batch counts as made alone."""
CLOCK_ERROR = 0.02
"""Blocked time below this share of the CPU time is the clocks' own error."""


@dataclass(frozen=True)
class Rows:
    """Batches in order of their tasks, the first of each worker left out; shape (batches,)."""

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
    crowd: Floats
    """Mean number of other workers at work while the batch was made."""
    overhead_s: float
    """Median time for taking a task and handing a batch over [s]."""
    first_extra_s: float
    """What the first batch of a worker costs above the later ones [s]."""

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
        return Rows(**columns, overhead_s=self.overhead_s, first_extra_s=self.first_extra_s)


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
    first = _first_of_workers(worker, start)
    order = np.lexsort((start, index)) if known else np.argsort(start, kind="stable")
    if n - int(first.sum()) >= LEAST_ROWS:
        kept = order[~first[order]]
        extra = float(np.median((fetch + collate)[first]) - np.median((fetch + collate)[kept]))
    else:
        kept, extra = order, 0.0
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
        crowd=_crowd(worker, start, put),
        overhead_s=_overhead(table, worker, start, put, fetch + collate),
        first_extra_s=max(0.0, extra),
    )
    return full.only(kept)


def _column(values: list[float] | list[int], n: int) -> Floats:
    return np.asarray(values, dtype=np.float64) if len(values) == n else np.zeros(n)


def _blocked(wall: Floats, cpu: Floats, runq: Floats) -> Floats:
    blocked = np.maximum(0.0, wall - cpu - runq)
    return np.zeros_like(blocked) if blocked.mean() < CLOCK_ERROR * cpu.mean() else blocked


def _first_of_workers(worker: Ints, start: Floats) -> NDMask:
    first = np.zeros(worker.size, dtype=bool)
    for w in np.unique(worker):
        mine = np.flatnonzero(worker == w)
        first[mine[np.argmin(start[mine])]] = True
    return first


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
