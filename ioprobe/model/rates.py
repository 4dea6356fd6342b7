"""The rate at which a loader delivered, with an interval that knows how workers deliver."""

from __future__ import annotations

import numpy as np

from ioprobe.run import LoaderRun
from ioprobe.stats import Estimate, ratio

LEAST_ROUNDS = 4


def steady_start(source: LoaderRun) -> int:
    """Return how many leading batches to leave out: warm-up and the prefetched burst, at most half."""
    n = len(source.main.wait_s)
    return min(max(source.warmup_batches, 1), n // 2)


def throughput(source: LoaderRun) -> Estimate | None:
    """Return the steady throughput [samples/s] with a 95% interval; None where too little was measured.

    Workers that started together finish together: batches come in rounds, one
    per worker. Single gaps between batches then vary wildly while rounds do
    not, so the interval comes from whole rounds.
    """
    main, skip = source.main, steady_start(source)
    call = np.asarray(main.call_s, dtype=np.float64)
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
