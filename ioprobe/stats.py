"""Estimates with their intervals. Pure arithmetic: no clock, no I/O.

Durations of successive batches are correlated (a full queue, a slow shard), so
intervals come from batch means, not from the standard error of single
durations: Law & Kelton, *Simulation Modeling and Analysis*, ch. 9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95

Floats = NDArray[np.float64]


# JSON has no infinity and no NaN; there it is null.
Real = Annotated[float, msgspec.Meta(extra_json_schema={"types": ["number", "null"]})]


class Estimate(msgspec.Struct, frozen=True):
    """A number that never travels without its interval."""

    value: Real
    """The estimate, in the unit that its owner's field names."""
    low: Real
    """Lower end of the 95% interval, same unit."""
    high: Real
    """Upper end of the 95% interval, same unit."""
    n: int = 1
    """How many durations (or batches) it rests on; 1 means the interval is not known from the data."""

    @property
    def relative_halfwidth(self) -> float:
        """Half the interval over the value [fraction]; infinite for a value of zero."""
        return math.inf if self.value == 0 else (self.high - self.low) / 2 / abs(self.value)

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate in another unit (times a positive factor)."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.n)

    def inverse(self) -> Estimate:
        """Return 1/x with the interval turned round; the value must be positive.

        >>> Estimate(2.0, 1.0, 4.0, 9).inverse()
        Estimate(value=0.5, low=0.25, high=1.0, n=9)
        """
        return Estimate(1 / self.value, 1 / self.high, math.inf if self.low <= 0 else 1 / self.low, self.n)


def exact(value: float) -> Estimate:
    """Return a value that was given, not measured."""
    return Estimate(value, value, value, 1)


def prepare() -> None:
    """Import what intervals need: left to the first of them, it would be 0.2 s in the middle of what is measured."""
    import scipy.special  # noqa: F401


def _t_quantile(dof: int, confidence: float) -> float:
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    return float(stdtrit(dof, 0.5 + confidence / 2))


def _blocks(values: Floats, most: int = 20) -> list[Floats]:
    count = min(most, max(2, values.size // 4)) if values.size >= 8 else values.size
    return list(np.array_split(values, count))


def mean(values: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean of a series with a batch-means interval.

    Raises:
        ValueError: the series is empty.

    >>> mean([1.0, 1.0, 1.0])
    Estimate(value=1.0, low=1.0, high=1.0, n=3)
    """
    return ratio(values, np.ones(np.size(np.asarray(values))), confidence)


def mean_of_rounds(values: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean of a few values that are each a round of their own, with Student's interval.

    Batches in a row resemble each other, so intervals elsewhere rest on blocks of them; a round has its blocks in it.

    Raises:
        ValueError: there are no values.

    >>> mean_of_rounds([52.0, 64.0, 53.0, 50.0, 49.0, 45.0, 45.0, 46.0]).low > 40
    True
    """
    rounds = np.asarray(values, dtype=np.float64)
    if rounds.size == 0:
        raise ValueError("there are no values")
    value = float(rounds.mean())
    if rounds.size < 2:
        return Estimate(value, value, value, 1)
    half = _t_quantile(rounds.size - 1, confidence) * float(rounds.std(ddof=1)) / math.sqrt(rounds.size)
    return Estimate(value, value - half, value + half, int(rounds.size))


def ratio(numerator: ArrayLike, denominator: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Return sum(numerator) / sum(denominator) with a batch-means interval (delta method).

    This is the estimator of every sustained rate (samples over seconds) and of
    every share (waited seconds over wall seconds).

    Args:
        numerator: One value per batch, shape (batches,).
        denominator: One value per batch, shape (batches,); its sum must be positive.
        confidence: Coverage of the interval.

    Raises:
        ValueError: the series are empty, differ in length, or the denominator sums to zero.

    >>> ratio([1, 1], [0.5, 0.5]).value
    2.0
    """
    top = np.asarray(numerator, dtype=np.float64)
    bottom = np.asarray(denominator, dtype=np.float64)
    if top.size == 0 or top.size != bottom.size:
        raise ValueError(f"need two series of one length, got {top.size} and {bottom.size}")
    total = float(bottom.sum())
    if total <= 0:
        raise ValueError("the denominator sums to zero")
    value = float(top.sum()) / total
    if top.size < 2:
        return Estimate(value, value, value, 1)
    # The residual of each block against the overall ratio; its spread gives the variance.
    tops = np.array([b.sum() for b in _blocks(top)])
    bottoms = np.array([b.sum() for b in _blocks(bottom)])
    k = tops.size
    residual = tops - value * bottoms
    variance = float((residual**2).sum()) / (k - 1) * k / total**2
    half = _t_quantile(k - 1, confidence) * math.sqrt(variance)
    return Estimate(value, value - half, value + half, int(top.size))


def quotient(numerator: Estimate, denominator: Estimate) -> Estimate:
    """Return one estimate over another, its interval as wide to either side as a factor.

    A symmetric interval around a tenfold gain of unsteady rates would hold zero, which no quotient of rates is near.

    Raises:
        ValueError: the denominator is not positive.

    >>> quotient(Estimate(10, 8, 12, 9), Estimate(2, 2, 2, 9))
    Estimate(value=5.0, low=4.166666666666667, high=6.0, n=9)
    """
    if denominator.value <= 0:
        raise ValueError("the denominator is not positive")
    value = numerator.value / denominator.value
    factor = 1 + math.hypot(numerator.relative_halfwidth, denominator.relative_halfwidth)
    return Estimate(value, value / factor, value * factor, min(numerator.n, denominator.n))


def steady_start(values: ArrayLike, at_most: float = 0.5) -> int:
    """Return how many leading values are warm-up, by the marginal standard error rule (MSER-5).

    White, *An effective truncation heuristic for bias reduction in simulation
    output*, Simulation 69 (1997): cut where the standard error of the mean of
    what remains is smallest.

    Args:
        values: Durations or shares in order, shape (batches,).
        at_most: The largest fraction that may be cut; the rule is unreliable past half.

    >>> steady_start([9.0] * 10 + [1.0, 1.1] * 20)
    10
    """
    x = np.asarray(values, dtype=np.float64)
    group = 5
    count = x.size // group
    if count < 4:
        return 0
    means = x[: count * group].reshape(count, group).mean(axis=1)
    tail_sum = np.cumsum(means[::-1])[::-1]
    tail_square = np.cumsum((means**2)[::-1])[::-1]
    left = np.arange(count, 0, -1)
    variance = np.maximum(tail_square / left - (tail_sum / left) ** 2, 0.0)
    score = variance / left
    last = max(1, int(count * at_most))
    # Ties (an exactly steady series) keep the most data: argmin takes the first.
    return int(np.argmin(score[:last])) * group


def drained(levels: ArrayLike) -> int:
    """Return the index from which a queue that was full at first stays at its floor; 0 where none drained.

    Args:
        levels: Entries in the queue each time one was taken, in order, shape (batches,).

    >>> drained([0, 30, 24, 18, 12, 6, 1, 0, 1, 1, 0, 1]), drained([8] * 12), drained([9, 8, 7, 8, 9, 8, 7, 8, 9, 9])
    (6, 0, 0)
    """
    x = np.asarray(levels, dtype=np.float64)
    if x.size < 9:
        return 0
    floor = float(np.median(x[-(x.size // 4) :]))
    top = int(np.argmax(x[: x.size // 2]))
    if floor > 2 or x[top] < floor + 4 or x[: x.size // 3].mean() < floor + 3:
        return 0
    return top + int(np.argmax(x[top:] <= floor + 1))


def draining(levels: Sequence[int]) -> bool:
    """Whether the queue still shrinks, to the end.

    Args:
        levels: As for :func:`drained`.

    >>> draining([9, 8, 8, 7, 7, 6, 5, 4, 4]), draining([1] * 9)
    (True, False)
    """
    if len(levels) < 9:
        return False
    third = len(levels) // 3
    return sum(levels[-third:]) / third < sum(levels[:third]) / third - 1.0


def undrained(levels: Sequence[int]) -> bool:
    """Whether a queue that was full at first still shrinks when the record ends.

    >>> undrained(range(60, 0, -1)), undrained([8, 4, 1] + [0] * 40)
    (True, False)
    """
    return not drained(levels) and draining(levels[len(levels) // 2 :])


def percentile(values: ArrayLike, q: float) -> float | None:
    """Return the q-quantile (0..1) of a series, or None when it is empty."""
    x = np.asarray(values, dtype=np.float64)
    return None if x.size == 0 else float(np.quantile(x, q))


def bootstrap_ratio(
    a: Sequence[float] | Floats, b: Sequence[float] | Floats, *, seed: int = 0, rounds: int = 2000
) -> Estimate:
    """Return mean(a)/mean(b) with a percentile bootstrap interval over blocks.

    Args:
        a: One value per block or per repetition, shape (n,).
        b: The same for the other side, shape (m,); paired when n == m.
        seed: Seed of the resampling; the same seed gives the same interval.
        rounds: Resamples.

    Raises:
        ValueError: a side is empty or b's mean is zero.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.size == 0 or y.size == 0 or y.mean() == 0:
        raise ValueError("both sides need values, and the second a mean other than zero")
    rng = np.random.default_rng(seed)
    i = rng.integers(0, x.size, (rounds, x.size))
    j = i if x.size == y.size else rng.integers(0, y.size, (rounds, y.size))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = x[i].mean(axis=1) / y[j].mean(axis=1)
    low, high = np.nanquantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(x.mean() / y.mean()), float(low), float(high), int(min(x.size, y.size)))


PAUSE = 4.0
"""A duration this many times the median is a pause, not noise."""


def pauses(durations: Sequence[float] | Floats) -> list[int]:
    """Return where long pauses lie: of a kind with the longest, and several times the median."""
    if len(durations) == 0:
        return []
    # What is merely late on a busy machine is shorter than half of a real pause.
    least = max(PAUSE * (percentile(durations, 0.5) or 0.0), 0.5 * max(durations))
    return [i for i, d in enumerate(durations) if d > least]


def pause_period(durations: Sequence[float] | Floats) -> int | None:
    """Return after how many steps a long pause comes back, or None where pauses are absent or irregular.

    >>> pause_period([1, 1, 9, 1, 1, 9, 1, 1, 9]), pause_period([1, 9, 1, 1, 1, 1, 9, 1, 9]), pause_period([])
    (3, None, None)
    """
    found = pauses(durations)
    gaps = {b - a for a, b in pairwise(found)}
    return gaps.pop() if len(gaps) == 1 and min(gaps, default=0) >= 2 else None


def periodic_mean(durations: Sequence[float] | Floats) -> Estimate:
    """Return the mean of steps; where every period ends with a pause, the interval is that of whole periods.

    A checkpoint every 40 steps makes steps differ a lot and periods hardly at
    all: what is not known is how much periods differ.

    Raises:
        ValueError: the series is empty.

    >>> periodic_mean(([0.02] * 39 + [0.52]) * 3).relative_halfwidth < 1e-9
    True
    """
    x = np.asarray(durations, dtype=np.float64)
    period = pause_period(x)
    found = pauses(x)
    if period is None or found[-1] != x.size - 1 or x.size % period:
        return mean(x)
    whole = mean(x.reshape(-1, period).mean(axis=1))
    return Estimate(whole.value, whole.low, whole.high, int(x.size))
