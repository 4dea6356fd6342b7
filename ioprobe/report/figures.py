"""The page's charts as geometry: percentages and SVG paths, no markup.

A chart is drawn in a box of 100 × 100 that the page stretches; its labels are
HTML placed by percentage, so that they keep their size on a phone. Strokes do
not scale with the box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ioprobe.diagnosis.types import Advice, RankSummary, Report, StageCost, Timeline
from ioprobe.report import words
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
    return [Tick(percent(axis.place(value)), form(value)) for value in axis.ticks()]


def compact(value: float) -> str:
    """Return a number short enough for an axis.

    >>> compact(0.5), compact(1500.0), compact(2e6), compact(3e9)
    ('0.5', '1.5k', '2M', '3G')
    """
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:g}{letter}"
    return f"{value:g}"


def percent(fraction: float) -> float:
    """Return a fraction as a place in the box [percent], with the digits that a screen can show."""
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
            bars = [Bar(kind, 0.0, max(0.4, percent(axis.place(estimate.value))))]
            low, high = percent(axis.place(estimate.low)), percent(axis.place(estimate.high))
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
        bar = Bar(name, percent(min(zero, end)), max(0.4, percent(abs(end - zero))))
        low_at, high_at = percent(axis.place(estimate.low)), percent(axis.place(estimate.high))
        rows.append(Row(name, name, [bar], words.gain(estimate), low=low_at, high=high_at))
    return GainFigure(percent(axis.place(0.0)), rows)


def ranks(summaries: Sequence[RankSummary]) -> Rows | None:
    """Return one bar a rank, height by throughput; None where none was measured."""
    rates = [rank.samples_per_s.value for rank in summaries if rank.samples_per_s is not None]
    if len(rates) < 2:
        return None
    axis = Axis(0.0, max(rates) or 1.0)
    width = 100 / len(summaries)
    rows = []
    for i, rank in enumerate(summaries):
        height = 0.0 if rank.samples_per_s is None else percent(axis.place(rank.samples_per_s.value))
        kind = "late" if rank.late else "rank"
        value = " ".join(words.rate_parts(rank.samples_per_s)).strip()
        rows.append(
            Row(str(rank.rank), kind, [Bar(kind, round(i * width, 3), round(0.8 * width, 3))], value, high=height)
        )
    return Rows(rows, ticks(axis, compact))
