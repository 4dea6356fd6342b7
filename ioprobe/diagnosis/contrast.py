"""One figure in two runs: by how much it changed, and how sure that is.

Three cases, by how the values came about:

- *Alternating rounds* are paired, each with its neighbour in time, so that whatever else the host did falls out. Each
  round has fresh workers and so is a draw of its own: the error of the mean shrinks with their number.
- *Rounds that do not alternate* are draws of their own, too, but the host may have changed between the two series.
- *One run each*: blocks of successive batches. What makes hosts drift acts over long times as much as over short ones
  (flicker noise), so that the mean of a run is hardly steadier than a block: see :data:`BLOCKS_WORTH`.

In the last two cases equal runs differ, besides, by what no block shows: a process keeps for life where its memory
lies and with it its speed. Their difference has the noise band as its least standard error.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from ioprobe.diagnosis.metrics import Metric
from ioprobe.stats import Estimate

Floats = NDArray[np.float64]
LEAST_VALUES = 4
# Of independent blocks all would count; in simulated flicker noise (1/f) the means of two successive runs of 8 blocks
# each differ with 0.55 of the blocks' variances, as if each were the mean of two.
BLOCKS_WORTH = 2
BOOTSTRAP_ROUNDS = 4000


class Contrast(msgspec.Struct, frozen=True):
    """A change before it is judged."""

    base: Metric
    new: Metric
    change: Estimate
    """new / base - 1, or new - base for shares, with a 95% bootstrap interval; NaN at its ends where not known."""
    p_value: float | None = None
    """Two-sided, of no change at all; None where there are too few values."""
    effect: float | None = None
    """Mean change over its spread (Cohen's d); None where there is no spread to know."""
    paired: bool = False
    count: int = 0
    """Values on the smaller side, or pairs."""

    @property
    def worse(self) -> Estimate:
        """The change turned so that worse is positive, a rate's as the time that it costs: one yardstick for all."""
        value, low, high = self.change.value, self.change.low, self.change.high
        if self.base.better == "lower":
            return self.change
        if self.base.scale == "points":
            return Estimate(-value, -high, -low, self.change.n)
        return Estimate(_cost(value), _cost(high), _cost(low), self.change.n)


def contrast(base: Metric, new: Metric, drift: float) -> Contrast:
    """Return how one figure differs between two runs.

    Args:
        base: The figure to compare with.
        new: The same figure of the other run.
        drift: Least standard error of the difference where the values are not paired [fraction].
    """
    points = base.scale == "points"
    a, b = np.asarray(base.values, dtype=np.float64), np.asarray(new.values, dtype=np.float64)
    pairs = pair_rounds(base, new)
    if pairs:
        a, b = a[[i for i, _ in pairs]], b[[j for _, j in pairs]]
    count = min(a.size, b.size)
    if count < LEAST_VALUES or not (points or (float(a.min()) > 0 and float(b.min()) > 0)):
        point = _plain_change(base.estimate.value, new.estimate.value, points)
        return Contrast(base, new, Estimate(point, math.nan, math.nan, count), count=count)
    x, y = (a, b) if points else (np.log(a), np.log(b))
    rounds = base.rounds and new.rounds
    if pairs:
        mean, spread, error, dof = _of_pairs(y - x)
        low, high = _paired_interval(y - x)
    else:
        mean, spread, error, dof = _of_two(x, y, rounds, drift)
        low, high = _unpaired_interval(x, y, rounds, drift)
    value, least, most = (x if points else math.expm1(x) for x in (mean, min(low, mean), max(high, mean)))
    return Contrast(
        base=base,
        new=new,
        change=Estimate(value, least, most, count),
        p_value=_two_sided(mean, error, dof),
        effect=mean / spread if spread > 0 else None,
        paired=bool(pairs),
        count=count,
    )


def pair_rounds(base: Metric, new: Metric) -> list[tuple[int, int]]:
    """Return which rounds of two runs lie next to each other in time, or nothing where they do not alternate.

    A round that broke or carried too few batches leaves its partner unpaired.
    """
    if not (base.rounds and new.rounds and base.begun_s and new.begun_s):
        return []
    events = sorted([(t, 0, i) for i, t in enumerate(base.begun_s)] + [(t, 1, j) for j, t in enumerate(new.begun_s)])
    pairs: list[tuple[int, int]] = []
    at = 0
    while at + 1 < len(events):
        (_, side, i), (_, other, j) = events[at], events[at + 1]
        if side == other:
            at += 1
            continue
        pairs.append((i, j) if side == 0 else (j, i))
        at += 2
    fewest = min(len(base.begun_s), len(new.begun_s))
    return pairs if len(pairs) >= max(LEAST_VALUES, 2 * fewest / 3) else []


def _of_pairs(d: Floats) -> tuple[float, float, float, float]:
    """Return (mean difference, its spread, its standard error, degrees of freedom) of paired differences."""
    spread = float(d.std(ddof=1))
    return float(d.mean()), spread, spread / math.sqrt(d.size), d.size - 1


def _of_two(x: Floats, y: Floats, rounds: bool, drift: float) -> tuple[float, float, float, float]:
    """Return the same of two series that are not paired (Welch)."""
    vx, vy = float(x.var(ddof=1)), float(y.var(ddof=1))
    ex, ey = (vx / x.size, vy / y.size) if rounds else (vx / BLOCKS_WORTH, vy / BLOCKS_WORTH)
    error2 = ex + ey + drift**2
    down = ex**2 / (x.size - 1) + ey**2 / (y.size - 1)
    dof = error2**2 / down if down > 0 else math.inf
    return float(y.mean() - x.mean()), math.sqrt((vx + vy) / 2), math.sqrt(error2), dof


def _paired_interval(d: Floats) -> tuple[float, float]:
    """Return the 95% interval of the mean of paired differences by resampling pairs.

    Percentiles of few values are too narrow; they are taken farther out, so that for normal values the interval is
    Student's (Hesterberg, *What Teachers Should Know About the Bootstrap*, 2015: the expanded percentile interval).
    """
    from scipy.special import ndtr, stdtrit

    rng = np.random.default_rng(0)
    means = d[rng.integers(0, d.size, (BOOTSTRAP_ROUNDS, d.size))].mean(axis=1)
    outer = float(ndtr(math.sqrt(d.size / (d.size - 1)) * stdtrit(d.size - 1, 0.025)))
    low, high = np.quantile(means, [outer, 1 - outer])
    return float(low), float(high)


def _unpaired_interval(x: Floats, y: Floats, rounds: bool, drift: float) -> tuple[float, float]:
    """Return the 95% interval of the difference of means by resampling rounds or blocks, and the drift."""
    rng = np.random.default_rng(0)
    take_x, take_y = (x.size, y.size) if rounds else (BLOCKS_WORTH, BLOCKS_WORTH)
    changes = (
        y[rng.integers(0, y.size, (BOOTSTRAP_ROUNDS, take_y))].mean(axis=1)
        - x[rng.integers(0, x.size, (BOOTSTRAP_ROUNDS, take_x))].mean(axis=1)
        + rng.normal(0.0, drift, BOOTSTRAP_ROUNDS)
    )
    low, high = np.quantile(changes, [0.025, 0.975])
    return float(low), float(high)


def _cost(change: float) -> float:
    """Return how much more time a rate costs that changed: one that falls to r costs 1/r - 1."""
    return math.inf if change <= -1 else 1 / (1 + change) - 1


def _two_sided(mean: float, error: float, dof: float) -> float:
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    from scipy.special import ndtr, stdtr

    t = -abs(mean) / error
    return float(2 * (ndtr(t) if math.isinf(dof) else stdtr(dof, t)))


def _plain_change(base: float, new: float, points: bool) -> float:
    if points:
        return new - base
    return new / base - 1 if base > 0 else math.nan
