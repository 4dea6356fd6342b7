"""The rate at which a loader delivered, with an interval that knows how workers deliver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ioprobe.model.profile import Floats
from ioprobe.run import LoaderRun
from ioprobe.stats import Estimate, ratio

LEAST_ROUNDS = 4


def steady_start(source: LoaderRun) -> int:
    """Return how many leading batches to leave out: warm-up and the prefetched burst, at most half."""
    n = len(source.main.wait_s)
    return min(max(source.warmup_batches, 1), n // 2)


def inside_epochs(source: LoaderRun, values: Sequence[float]) -> Floats:
    """Return a column of the main process past the warm-up, first batches of epochs left out.

    What the first batch waits for is the edge's: workers that start, a sampler that shuffles, a listing.
    """
    skip, column = steady_start(source), np.asarray(values, dtype=np.float64)
    epoch = np.asarray(source.main.epoch, dtype=np.int64)
    if column.size <= skip or epoch.size != column.size:
        return column[skip:]
    kept = np.append(False, np.diff(epoch) == 0)
    kept[:skip] = False
    return column[kept] if kept.any() else column[skip:]


def throughput(source: LoaderRun, *, edges: bool = True, after_s: float = 0.0) -> Estimate | None:
    """Return the steady throughput [samples/s] with a 95% interval; None where too little was measured.

    Workers that started together finish together: batches come in rounds, one
    per worker. Single gaps between batches then vary wildly while rounds do
    not, so the interval comes from whole rounds.

    Args:
        source: The measurement.
        edges: Count what the edges between epochs cost, where there are any.
        after_s: Leave out what was asked for before [s since the measurement began].
    """
    inside = None if edges else _between_edges(source)
    if inside is not None:
        return inside
    main, skip = source.main, steady_start(source)
    call = np.asarray(main.call_s, dtype=np.float64)
    skip = max(skip, int(np.searchsorted(call, after_s)))
    if call.size != len(main.wait_s) or call.size - skip < 4:
        return None
    back = call + np.asarray(main.wait_s)
    samples = np.asarray(main.samples or [1] * call.size, dtype=np.float64)[skip + 1 :]
    gaps = np.diff(back[skip:])
    crew = max(1, source.settings.num_workers if source.settings else 1)
    rounds = gaps.size // crew
    if rounds < LEAST_ROUNDS:
        return ratio(samples, gaps) if gaps.sum() > 0 else None
    used = rounds * crew
    per_round = ratio(
        samples[:used].reshape(rounds, crew).sum(axis=1),
        np.maximum(gaps[:used].reshape(rounds, crew).sum(axis=1), 1e-9),
    )
    return Estimate(per_round.value, per_round.low, per_round.high, used)


def _between_edges(source: LoaderRun) -> Estimate | None:
    """Return the throughput within epochs, from rounds after each one's first; None for one epoch, or too few rounds.

    Workers that begin an epoch begin it together: their first batches come at once, and the time before is the edge's.
    """
    main, skip = source.main, steady_start(source)
    epoch = np.asarray(main.epoch, dtype=np.int64)
    if not epoch.size == len(main.call_s) == len(main.wait_s) > skip or epoch[-1] == epoch[skip]:
        return None
    back = np.asarray(main.call_s, dtype=np.float64) + np.asarray(main.wait_s, dtype=np.float64)
    crew = max(1, source.settings.num_workers if source.settings else 1)
    samples = np.asarray(main.samples or [1] * back.size, dtype=np.float64)
    made, took = [], []
    for number in np.unique(epoch[skip:]):
        mine = np.flatnonzero(epoch == number)
        ends = mine[crew - 1 :: crew]  # the last batch of each round
        ends = ends[ends >= skip]
        made += [float(samples[a + 1 : b + 1].sum()) for a, b in pairwise(ends)]
        took += np.diff(back[ends]).tolist()
    if len(made) < LEAST_ROUNDS or sum(took) <= 0:
        return None
    found = ratio(made, np.maximum(took, 1e-9))
    return Estimate(found.value, found.low, found.high, len(made) * crew)
