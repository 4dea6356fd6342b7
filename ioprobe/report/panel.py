"""The what-if panel as geometry and ready texts: every curve is made here, the page's script only chooses one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ioprobe.diagnosis.types import Report, WhatIfPoint
from ioprobe.report import whatif, words
from ioprobe.report.bars import Axis
from ioprobe.report.figures import Tick, compact, percent, ticks


class CurveFigure(msgspec.Struct, frozen=True):
    """Throughput over num_workers at one combination of the other settings."""

    key: str
    """Indices of the values on the other axes, joined by commas."""
    band: str
    line: str
    measured: str
    """SVG path of round dots."""
    whiskers: str
    y_ticks: list[Tick]
    spots: list[dict[str, Any]]
    """For the readout: workers, place of the cursor, and texts that are ready to show."""


class WhatIfFigure(msgspec.Struct, frozen=True):
    """The panel."""

    axes: list[tuple[str, list[str], int]]
    """Label, values as text, index of the present value."""
    curves: list[CurveFigure]
    base: str
    workers: list[int]
    """All numbers of workers on any curve."""
    x_ticks: list[Tick]
    current: int | None
    advised: int | None


def what_if(report: Report) -> WhatIfFigure | None:
    """Return the what-if panel's figure; None with fewer than two numbers of workers."""
    arranged = whatif.arrange(report)
    if arranged is None or len(arranged.base.spots) < 2:
        return None
    workers = sorted({spot.workers for curve in arranged.curves for spot in curve.spots})
    x = Axis(float(workers[0]), float(workers[-1]))
    tops = {id(curve): _top(curve) for curve in arranged.curves}
    common = max(tops.values())
    now = next((s.best for s in arranged.base.spots if s.workers == arranged.current), None)

    def key(curve: whatif.Curve) -> str:
        # Values are compared as text: settings come from JSON, where 2 and 2.0 are one.
        places = (
            [repr(v) for v in arranged.values[axis]].index(repr(value))
            for axis, value in zip(arranged.axes, curve.key, strict=True)
        )
        return ",".join(map(str, places))

    curves = []
    for curve in arranged.curves:
        top = tops[id(curve)]
        y = Axis(0.0, 1.06 * (common if common <= 4 * top else top))
        curves.append(_curve(key(curve), curve, x, y, now, report.unit))
    base = key(arranged.base)
    present = [int(index) for index in base.split(",")] if base else []
    return WhatIfFigure(
        axes=[
            (whatif.axis_text(axis), [whatif.value_text(axis, v) for v in arranged.values[axis]], present[i])
            for i, axis in enumerate(arranged.axes)
        ],
        curves=curves,
        base=base,
        workers=workers,
        x_ticks=_worker_ticks(workers, x),
        current=arranged.current,
        advised=arranged.advised,
    )


def _top(curve: whatif.Curve) -> float:
    rates = [p.samples_per_s for s in curve.spots for p in (s.predicted, s.measured) if p is not None]
    return max([rate.value for rate in rates] + [min(rate.high, 1.5 * rate.value) for rate in rates]) or 1.0


def _worker_ticks(workers: Sequence[int], x: Axis) -> list[Tick]:
    chosen: list[Tick] = []
    for count in workers:
        place = percent(x.place(float(count)))
        if not chosen or place - chosen[-1].at >= 4.5:
            chosen.append(Tick(place, str(count)))
    return chosen


def _curve(key: str, curve: whatif.Curve, x: Axis, y: Axis, now: WhatIfPoint | None, unit: str) -> CurveFigure:
    def place(workers: int, rate: float) -> str:
        return f"{percent(x.place(float(workers)))} {round(100 - 100 * y.place(rate), 2)}"

    predicted = [(s.workers, s.predicted.samples_per_s) for s in curve.spots if s.predicted is not None]
    measured = [(s.workers, s.measured.samples_per_s) for s in curve.spots if s.measured is not None]
    upper = [place(n, rate.high) for n, rate in predicted]
    lower = [place(n, rate.low) for n, rate in reversed(predicted)]
    return CurveFigure(
        key=key,
        band="M" + "L".join(upper + lower) + "Z" if len(predicted) > 1 else "",
        line="M" + "L".join(place(n, rate.value) for n, rate in predicted) if len(predicted) > 1 else "",
        measured="".join(f"M{place(n, rate.value)}h0" for n, rate in measured),
        whiskers="".join(f"M{place(n, rate.low)}L{place(n, rate.high)}" for n, rate in measured),
        y_ticks=ticks(y, compact),
        spots=[_spot(spot, x, now, unit) for spot in curve.spots],
    )


def _spot(spot: whatif.Spot, x: Axis, now: WhatIfPoint | None, unit: str) -> dict[str, Any]:
    best = spot.best
    change = ""
    if now is not None and best is not now and now.samples_per_s.value > 0:
        change = words.percent_change(best.samples_per_s.value / now.samples_per_s.value - 1)
    return {
        "workers": spot.workers,
        "x": percent(x.place(float(spot.workers))),
        "predicted": words.rate(spot.predicted.samples_per_s, unit) if spot.predicted else "",
        "measured": words.rate(spot.measured.samples_per_s, unit) if spot.measured else "",
        "stall": words.share(best.stall_share) if best.stall_share else "",
        "change": change,
    }
