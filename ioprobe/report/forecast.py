"""Predictions as a table with a curve for people, and as an object for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ioprobe.diagnosis.forecast import Forecast, ForecastPoint
from ioprobe.report import words
from ioprobe.report.sheet import Sheet
from ioprobe.units import format_bytes, format_seconds, format_share

BAR_CELLS = 30
LEAST_STEPS = 10
"""Fewer steps than this hide nothing worth telling."""


def as_object(found: Forecast) -> dict[str, Any]:
    """Return what ``ioprobe predict --format json`` prints."""
    built: dict[str, Any] = msgspec.to_builtins(found)
    return built


def render_text(found: Forecast, *, width: int = 80, color: bool = False, unicode: bool = True) -> str:
    """Return what was asked as a table, the curve over workers, and why to doubt it."""
    sheet = Sheet(width=max(60, width), color=color, unicode=unicode)
    sheet.title("PREDICTED", "bold", f"from {found.calibrated_from} measured batches of {found.target or found.run}")
    sheet.paragraph("Nothing was executed. Intervals are 90%: the calibration's spread and the model's known error.")
    if found.counted == "whole epochs":
        sheet.paragraph(
            "Rates and waits are of whole epochs, as the loop was measured; p95 waits are between their edges."
        )
    if found.points:
        sheet.heading("What was asked")
        point_table(sheet, [found.current, *found.points], found.unit, ["now", *[""] * len(found.points)])
    else:
        sheet.heading("As measured")
        point_table(sheet, [found.current], found.unit, ["now"])
    if len(found.curve) > 1:
        _curve(sheet, found)
    if found.caveats:
        sheet.heading("Caveats")
        for caveat in found.caveats:
            sheet.item("!", words.sentence(caveat.text), style="yellow")
            if caveat.settle:
                sheet.detail("settle", caveat.settle)
    return sheet.text()


def point_table(sheet: Sheet, points: Sequence[ForecastPoint], unit: str, marks: Sequence[str]) -> None:
    """Print points, one a line: what differs between them, rate against the first, waits, memory."""
    first = points[0].samples_per_s.value
    shown = [n for n in _names(points) if n in ("num_workers", "prefetch_factor") or _differs(points, n)]
    rows = []
    for point, mark in zip(points, marks, strict=True):
        ratio = point.samples_per_s.value / first if first > 0 else 1.0
        rows.append(
            [
                *(_value(point.settings.get(name)) for name in shown),
                " ".join(words.rate_parts(point.samples_per_s)).rstrip(),
                f"×{ratio:.2f}",
                words.share(point.stall_share),
                format_seconds(point.wait_p95_s),
                "" if point.memory_bytes is None else format_bytes(point.memory_bytes),
                point.binding,
                mark,
            ]
        )
    header = [*(_WORDS.get(name, name) for name in shown), f"{unit}/s", "", "waits", "p95 wait", "memory", "binds", ""]
    if not any(marks):
        header, rows = header[:-1], [row[:-1] for row in rows]
    sheet.table(header, rows, right=range(len(shown) + 5))
    for point in points:
        if point.drains_after_steps is not None and point.drains_after_steps >= LEAST_STEPS:
            at = f"num_workers={point.settings['num_workers']}, prefetch_factor={point.settings['prefetch_factor']}"
            text = f"{at}: a full buffer hides the waits for {point.drains_after_steps} steps"
            sheet.item("-", text, style="dim")


_WORDS = {"num_workers": "workers", "prefetch_factor": "prefetch", "step_ms": "step ms", "storage_mb_s": "storage MB/s"}


def _names(points: Sequence[ForecastPoint]) -> list[str]:
    return list(dict.fromkeys(name for point in points for name in point.settings))


def _differs(points: Sequence[ForecastPoint], name: str) -> bool:
    return len({point.settings.get(name) for point in points}) > 1


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    return f"{value:g}"


def _curve(sheet: Sheet, found: Forecast) -> None:
    sheet.heading("Over num_workers", f"{found.unit}/s")
    most = max(p.samples_per_s.high for p in found.curve)
    rows = []
    for point in found.curve:
        bar = sheet.bar(point.samples_per_s.low / most, point.samples_per_s.high / most, BAR_CELLS, "cyan")
        rate = " ".join(words.rate_parts(point.samples_per_s)).rstrip()
        measured = "" if point.measured is None else f"measured {point.measured.value:,.4g}"
        rows.append((str(point.settings["num_workers"]), bar, rate, format_share(point.stall_share.value), measured))
    wide = max(len(sheet.plain(r[2])) for r in rows)
    for workers, bar, rate, stall, measured in rows:
        sheet.line(
            workers.rjust(3), "  ", bar, "  ", rate.rjust(wide), f"  waits {stall.rjust(6)}  ", (measured, "dim")
        )
