"""Geometry of bars and axes: numbers in, fractions of a width out. Shared by terminal and page."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ioprobe.diagnosis.types import Rung

LOG_BEYOND = 12.0
"""Rates further apart than this are drawn on a logarithmic axis: on a linear one the lowest rung would vanish."""


class Axis(msgspec.Struct, frozen=True):
    """An axis from low to high, both positive where it is logarithmic."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return where value lies, as a fraction of the axis, clipped to 0..1."""
        if not math.isfinite(value):
            return 1.0 if value > 0 else 0.0
        if self.log:
            if value <= self.low:
                return 0.0
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, part))

    def ticks(self) -> list[float]:
        """Return values for labels: decades where logarithmic, round steps where linear."""
        if not self.log:
            return linear_ticks(self.low, self.high)
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [10.0**exponent for exponent in range(first, last + 1)]


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values between low and high.

    >>> linear_ticks(0, 512)
    [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]
    """
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10, 20) if span / (step * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    count = math.floor((high - first * step) / step + 1e-9)
    return [(first + i) * step for i in range(count + 1)]


def rate_axis(values: Sequence[float]) -> Axis:
    """Return the axis on which rates are drawn: from zero, or logarithmic where they lie far apart.

    >>> rate_axis([100.0, 500.0])
    Axis(low=0.0, high=500.0, log=False)
    >>> rate_axis([219.0, 31900.0]).log
    True
    """
    positive = [v for v in values if v > 0 and math.isfinite(v)]
    if not positive:
        return Axis(0.0, 1.0)
    low, high = min(positive), max(positive)
    if high <= LOG_BEYOND * low:
        return Axis(0.0, high)
    return Axis(10.0 ** math.floor(math.log10(low / 2)), high, log=True)


def ladder_axis(ladder: Sequence[Rung]) -> Axis:
    """Return one axis for all rungs, upper interval ends included where they are finite."""
    rates = [rung.samples_per_s for rung in ladder if rung.samples_per_s is not None]
    highs = [rate.high for rate in rates if math.isfinite(rate.high) and rate.high < 3 * rate.value]
    return rate_axis([rate.value for rate in rates] + highs)
