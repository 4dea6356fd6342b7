"""The page's charts as geometry: percentages and SVG paths, no markup.

A chart is drawn in a box of 100 × 100 that the page stretches; its labels are
HTML placed by percentage, so that they keep their size on a phone. Strokes do
not scale with the box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ioprobe.diagnosis.types import Advice, RankSummary, Report, StageCost, Timeline, WhatIfPoint
from ioprobe.report import whatif, words
from ioprobe.report.bars import Axis, ladder_axis
from ioprobe.stats import Estimate
from ioprobe.units import format_count, format_seconds, format_share

MAX_COLUMNS = 320
"""Columns of the timeline: about one for every two pixels of a phone, three of a desktop."""


class Tick(msgspec.Struct, frozen=True):
    """A label on an axis."""

    at: float
    """Place on the axis [percent]."""
    text: str


class Bar(msgspec.Struct, frozen=True):
    """A piece of a row."""

    kind: str
    """CSS class."""
    start: float
    """[percent]"""
    width: float
    """[percent]"""


class Row(msgspec.Struct, frozen=True):
    """One labelled row of bars."""

    name: str
    kind: str
    bars: list[Bar]
    value: str
    interval: str = ""
    detail: str = ""
    low: float | None = None
    """Ends of the interval [percent]; None where it is too narrow to see or not known."""
    high: float | None = None


class Rows(msgspec.Struct, frozen=True):
    """Rows on one axis."""

    rows: list[Row]
    ticks: list[Tick]
    log: bool = False


def ticks(axis: Axis, form: Any = format_count) -> list[Tick]:
    """Return an axis' labels where they lie."""
    return [Tick(_percent(axis.place(value)), form(value)) for value in axis.ticks()]


def compact(value: float) -> str:
    """Return a number short enough for an axis.

    >>> compact(0.5), compact(1500.0), compact(2e6), compact(3e9)
    ('0.5', '1.5k', '2M', '3G')
    """
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:g}{letter}"
    return f"{value:g}"


def _percent(fraction: float) -> float:
    return round(100 * fraction, 2)


def ladder(report: Report) -> Rows | None:
    """Return the ladder's rows; None where it is empty."""
    rungs = report.diagnosis.ladder
    if not rungs:
        return None
    axis = ladder_axis(rungs)
    rows = []
    for rung in rungs:
        value, interval = words.rate_parts(rung.samples_per_s)
        kind = "lowest" if rung.lowest else "whole" if rung.stage.value in ("loop", "loader") else "rung"
        estimate = rung.samples_per_s
        bars, low, high = [], None, None
        if estimate is not None:
            bars = [Bar(kind, 0.0, max(0.4, _percent(axis.place(estimate.value))))]
            low, high = _percent(axis.place(estimate.low)), _percent(axis.place(estimate.high))
        wide = low is not None and high is not None and high - low >= 0.6
        rows.append(
            Row(
                name=rung.stage.value,
                kind=kind if estimate is not None else "none",
                bars=bars,
                value=value,
                interval=interval,
                detail=words.clean(rung.detail),
                low=low if wide else None,
                high=high if wide else None,
            )
        )
    return Rows(rows, ticks(axis, compact), axis.log)


def stages(costs: Sequence[StageCost]) -> Rows | None:
    """Return one row a stage, divided into CPU, waiting for a core, and blocked; None where there are none."""
    if not costs:
        return None
    axis = Axis(0.0, max(max(cost.wall_s for cost in costs), 1e-12))
    rows = []
    for cost in costs:
        known = [("cpu", cost.cpu_s), ("runq", cost.runq_s), ("blocked", cost.blocked_s)]
        parts = [(kind, seconds) for kind, seconds in known if seconds]
        rest = cost.wall_s - sum(seconds for _, seconds in parts)
        if rest > 0.005 * cost.wall_s:
            parts.append(("other", rest))
        bars, start = [], 0.0
        for kind, seconds in parts:
            width = 100 * seconds / axis.high
            bars.append(Bar(kind, round(start, 2), round(min(width, 100 - start), 2)))
            start = min(100.0, start + width)
        name = cost.stage.value + (" (main)" if cost.where == "main" else "")
        interval = "" if cost.share is None else format_share(cost.share)
        rows.append(Row(name, "stage", bars, format_seconds(cost.wall_s), interval, words.hot_frame(cost.hottest)))
    return Rows(rows, ticks(axis, format_seconds))


class TimelineFigure(msgspec.Struct, frozen=True):
    """Columns whose width is time and whose dark part is waiting: areas are shares of time."""

    wait: str
    """SVG path of the waiting area."""
    warmups: list[Bar]
    ticks: list[Tick]
    overall: float | None
    """Share of waiting outside warm-up [percent]."""
    columns: int
    batches: int


def timeline(line: Timeline | None, measured: Estimate | None = None) -> TimelineFigure | None:
    """Return the timeline's figure; None where there are fewer than two bins or no time passed.

    Args:
        line: Batches or bins.
        measured: The stall share that the report states; without it the bins' own is marked.
    """
    if line is None or len(line.start_s) < 2:
        return None
    pieces = list(zip(line.start_s, line.wait_s, line.step_s, line.warmup or [0] * len(line.start_s), strict=True))
    begin = pieces[0][0]
    end = max(pieces[-1][0] + pieces[-1][1] + pieces[-1][2], pieces[-1][0])
    if end <= begin:
        return None
    every = -(-len(pieces) // MAX_COLUMNS)
    path, flags = ["M0 100"], []
    for i in range(0, len(pieces), every):
        group = pieces[i : i + every]
        until = pieces[i + every][0] if i + every < len(pieces) else end
        left, right = (100 * (t - begin) / (end - begin) for t in (group[0][0], until))
        waited, stepped = sum(p[1] for p in group), sum(p[2] for p in group)
        share = waited / (waited + stepped) if waited + stepped > 0 else 0.0
        path.append(f"L{left:.2f} {100 - 100 * share:.1f}H{right:.2f}")
        flags.append((left, right, all(p[3] for p in group)))
    steady = [p for p in pieces if not p[3]]
    waited, stepped = sum(p[1] for p in steady), sum(p[2] for p in steady)
    overall = measured.value if measured is not None else waited / (waited + stepped) if waited + stepped > 0 else None
    return TimelineFigure(
        wait=" ".join(path) + "L100 100Z",
        warmups=_spans(flags),
        ticks=ticks(Axis(0.0, end - begin), lambda s: f"{s:g} s"),
        overall=None if overall is None else round(100 * overall, 1),
        columns=len(flags),
        batches=len(pieces),
    )


def _spans(flags: Sequence[tuple[float, float, bool]]) -> list[Bar]:
    spans: list[Bar] = []
    for left, right, flag in flags:
        if not flag:
            continue
        if spans and abs(spans[-1].start + spans[-1].width - left) < 0.02:
            spans[-1] = Bar("warmup", spans[-1].start, round(right - spans[-1].start, 2))
        else:
            spans.append(Bar("warmup", round(left, 2), round(right - left, 2)))
    return spans


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
        place = _percent(x.place(float(count)))
        if not chosen or place - chosen[-1].at >= 4.5:
            chosen.append(Tick(place, str(count)))
    return chosen


def _curve(key: str, curve: whatif.Curve, x: Axis, y: Axis, now: WhatIfPoint | None, unit: str) -> CurveFigure:
    def place(workers: int, rate: float) -> str:
        return f"{_percent(x.place(float(workers)))} {round(100 - 100 * y.place(rate), 2)}"

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
        "x": _percent(x.place(float(spot.workers))),
        "predicted": words.rate(spot.predicted.samples_per_s, unit) if spot.predicted else "",
        "measured": words.rate(spot.measured.samples_per_s, unit) if spot.measured else "",
        "stall": words.share(best.stall_share) if best.stall_share else "",
        "change": change,
    }


class GainFigure(msgspec.Struct, frozen=True):
    """Predicted and verified gain as intervals on one axis, with zero marked."""

    zero: float
    rows: list[Row]


def gains(tip: Advice) -> GainFigure | None:
    """Return predicted against verified gain; None where either is missing."""
    if tip.gain is None or tip.verified is None:
        return None
    pairs: list[tuple[str, Estimate]] = [("predicted", tip.gain), ("verified", tip.verified)]
    low = min(0.0, *(e.low for _, e in pairs))
    high = max(0.0, *(e.high for _, e in pairs))
    axis = Axis(low, high if high > low else low + 1.0)
    rows = []
    for name, estimate in pairs:
        zero, end = axis.place(0.0), axis.place(estimate.value)
        bar = Bar(name, _percent(min(zero, end)), max(0.4, _percent(abs(end - zero))))
        low_at, high_at = _percent(axis.place(estimate.low)), _percent(axis.place(estimate.high))
        rows.append(Row(name, name, [bar], words.gain(estimate), low=low_at, high=high_at))
    return GainFigure(_percent(axis.place(0.0)), rows)


def ranks(summaries: Sequence[RankSummary]) -> Rows | None:
    """Return one bar a rank, height by throughput; None where none was measured."""
    rates = [rank.samples_per_s.value for rank in summaries if rank.samples_per_s is not None]
    if len(rates) < 2:
        return None
    axis = Axis(0.0, max(rates) or 1.0)
    width = 100 / len(summaries)
    rows = []
    for i, rank in enumerate(summaries):
        height = 0.0 if rank.samples_per_s is None else _percent(axis.place(rank.samples_per_s.value))
        kind = "late" if rank.late else "rank"
        value = " ".join(words.rate_parts(rank.samples_per_s)).strip()
        rows.append(
            Row(str(rank.rank), kind, [Bar(kind, round(i * width, 3), round(0.8 * width, 3))], value, high=height)
        )
    return Rows(rows, ticks(axis, compact))
