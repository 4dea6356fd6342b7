"""Which workers of a stream have data, and for how long: shards do not divide as tasks do."""

from __future__ import annotations

import numpy as np

from ioprobe.model.profile import Ints
from ioprobe.run import LoaderRun

GOES_ON = 1 << 40
"""Batches of a worker whose end was not seen."""
UNEVEN = 2.0
"""Batches of the fullest worker over those of the emptiest from which a stream's shards are uneven."""


def delivered_by(source: LoaderRun) -> tuple[int, ...] | None:
    """Return the batches of each worker in an epoch, 0 for none in the steady state; None where workers are alike.

    Where epochs ended, their batches are counted. In an epoch that goes on, a worker that has fallen silent is through
    with its data: tasks go round the workers in turn, and nobody gets further ahead of another than the queue is deep.
    """
    table, settings = source.workers, source.settings
    if table is None or settings is None or settings.num_workers < 2:
        return None
    if not len(table.worker) == len(table.index) == len(table.start_s) == len(table.put_s):
        return None
    crew = settings.num_workers
    worker = np.asarray(table.worker, dtype=np.int64)
    if worker.size < 4 * crew or worker.min() < 0 or worker.max() >= crew:
        return None
    if source.main.epoch and source.main.epoch[-1] > 0:
        counts = np.bincount(worker[_first_epoch(source)], minlength=crew)
        uneven = counts.max() >= UNEVEN * max(1, counts.min())
        return tuple(int(c) for c in counts) if uneven else None
    last = _last_put(source, crew)
    alive = last > -np.inf
    if settings.in_order:
        after = np.array([(np.asarray(table.put_s) > at).sum() for at in last])
        alive &= after <= 2 * settings.depth
    return None if alive.all() or not alive.any() else tuple(GOES_ON if a else 0 for a in alive)


def settled_s(source: LoaderRun) -> float:
    """Return when the last of the workers that fell silent put its last batch [s since the measurement began]."""
    shares = delivered_by(source)
    if shares is None or max(shares) < GOES_ON:
        return 0.0
    ended = [at for at, share in zip(_last_put(source, len(shares)), shares, strict=True) if not share and at > -np.inf]
    return float(max(ended, default=0.0))


def _last_put(source: LoaderRun, crew: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    last = np.full(crew, -np.inf)
    if source.workers is not None:
        np.maximum.at(last, np.asarray(source.workers.worker, dtype=np.int64), np.asarray(source.workers.put_s))
    return last


def _first_epoch(source: LoaderRun) -> Ints:
    """Return the rows of the first epoch: a worker's task numbers rise until the next one begins."""
    table = source.workers
    assert table is not None
    worker, index = np.asarray(table.worker, dtype=np.int64), np.asarray(table.index, dtype=np.int64)
    found = []
    for w in np.unique(worker):
        mine = np.flatnonzero(worker == w)
        mine = mine[np.argsort(np.asarray(table.start_s)[mine], kind="stable")]
        falls = np.flatnonzero(np.diff(index[mine]) <= 0)
        found.append(mine[: falls[0] + 1] if falls.size else mine)
    return np.concatenate(found)
