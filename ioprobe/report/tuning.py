"""What ``ioprobe tune`` found, for people, for a pull request and for scripts."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from ioprobe.diagnosis.forecast import ForecastPoint
from ioprobe.diagnosis.tuning import GridRow, Tuning
from ioprobe.report import words
from ioprobe.report.forecast import point_table
from ioprobe.report.sheet import Sheet
from ioprobe.stats import Estimate
from ioprobe.units import format_count, format_seconds, format_share

MOST_CANDIDATES = 8
_TITLES = {
    "change": ("CHANGE", "bold green"),
    "fewer-workers": ("FEWER WORKERS", "bold green"),
    "no-change": ("NO CHANGE", "bold"),
}


def as_object(found: Tuning) -> dict[str, Any]:
    """Return what ``ioprobe tune --format json`` prints."""
    built: dict[str, Any] = msgspec.to_builtins(found)
    # For scripts that ask for the answer alone: the verification beside the prediction.
    built["current"]["settings"] = dict(found.current.settings)
    return built


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as keyword arguments.

    >>> settings_text({"num_workers": 4, "persistent_workers": True})
    'num_workers=4, persistent_workers=True'
    """
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def gain_text(gain: Estimate) -> str:
    """Return a gain with its interval in points.

    >>> gain_text(Estimate(0.10, 0.08, 0.12, 3))
    '+10.0% (+8.0 to +12.0%)'
    """
    return f"{100 * gain.value:+.1f}% ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}%)"


def render_text(found: Tuning, *, width: int = 80, color: bool = False, unicode: bool = True) -> str:
    """Return the pick first, then its proof, the runners-up and what else would help."""
    sheet = Sheet(width=max(60, width), color=color, unicode=unicode)
    pick = found.recommended
    word, style = _TITLES[pick.action]
    sheet.title(word, style, settings_text(pick.settings))
    sheet.paragraph(words.sentence(pick.reason))
    _proof(sheet, found)
    if found.grid:
        sheet.heading("Grid", f"{found.unit}/s, median [min-max]")
        sheet.table(*_grid_table(found), right=range(_grid_columns(found) - 1))
    if found.candidates:
        # Of settings that differ in whether workers persist the better one stands for both.
        better: dict[str, ForecastPoint] = {}
        for p in found.candidates:
            better.setdefault(settings_text(_plain(p.settings)), p)
        different = list(better.values())
        shown = different[:MOST_CANDIDATES]
        sheet.heading("Candidates", f"predicted, the best {len(shown)} of {len(different)}")
        point_table(sheet, shown, found.unit, [_mark(found, p.settings) for p in shown])
    if found.also:
        sheet.heading("What else would help", "predicted on top of these settings")
        for other in found.also:
            sheet.item("-", f"{other.text}: {100 * other.gain:+.0f}%")
    for caveat in found.caveats:
        sheet.item("!", words.sentence(caveat.text), style="yellow")
        if caveat.settle:
            sheet.detail("settle", caveat.settle)
    for failure in found.failures:
        sheet.item("x", f"{failure.phase}: {failure.sentence}", style="red")
    spent = f"{format_seconds(found.spent_s)}, {found.measured_settings} settings run"
    sheet.line((f"spent {spent}" + (f"; run file {found.run}" if found.run else ""), "dim"))
    return sheet.text()


def _proof(sheet: Sheet, found: Tuning) -> None:
    pick = found.recommended
    what = f"{found.unit}/s in the loop" if found.coupled else f"{found.unit}/s, drained without a step"
    if found.counted == "whole epochs":
        what += ", whole epochs"
    rows = [["now", settings_text(_plain(found.current.settings)), _rate(found.current.samples_per_s), ""]]
    rows[0][3] = "" if found.current.measured is None else _rate(found.current.measured)
    if pick.action != "no-change":
        measured = "" if pick.samples_per_s is None else _rate(pick.samples_per_s)
        rows.append(["pick", settings_text(pick.settings), _rate(pick.predicted.samples_per_s), measured])
    known = [_plain(found.current.settings), _plain(pick.predicted.settings)]
    for tried in found.candidates:
        mine = _plain(tried.settings)
        if tried.measured is not None and mine not in known:
            known.append(mine)
            rows.append(["tried", settings_text(mine), _rate(tried.samples_per_s), _rate(tried.measured)])
    sheet.heading("Proof", what)
    sheet.table(["", "settings", "predicted", "measured"], rows, right=[2, 3])
    if pick.verified is not None:
        sheet.item("+", f"verified by real runs in turn with the present setting: {gain_text(pick.verified)}")


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k in ("num_workers", "prefetch_factor")}


def _rate(estimate: Estimate) -> str:
    return " ".join(words.rate_parts(estimate)).rstrip()


def _mark(found: Tuning, settings: dict[str, Any]) -> str:
    mine = _plain(settings)
    if mine == _plain(found.recommended.predicted.settings):
        return "pick"
    return "now" if mine == _plain(found.current.settings) else ""


def render_markdown(found: Tuning) -> str:
    """Return the answer, and the measured grid as the table people make by hand, for a pull request."""
    pick = found.recommended
    lines = [f"**{_TITLES[pick.action][0].capitalize()}**: `{settings_text(pick.settings)}`", ""]
    lines += [words.sentence(words.clean(pick.reason)), ""]
    if pick.verified is not None:
        lines += [f"Verified by real runs: {gain_text(pick.verified)}.", ""]
    header, rows = _grid_table(found) if found.grid else _candidate_table(found)
    lines.append("| " + " | ".join(header) + " |")
    lines.append("|" + "|".join(" --- " for _ in header) + "|")
    lines += ["| " + " | ".join(words.clean(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _candidate_table(found: Tuning) -> tuple[list[str], list[list[str]]]:
    header = ["num_workers", "prefetch_factor", f"predicted {found.unit}/s", "stall share", ""]
    rows = [
        [
            str(p.settings["num_workers"]),
            str(p.settings["prefetch_factor"]),
            _rate(p.samples_per_s),
            format_share(p.stall_share.value),
            _mark(found, p.settings),
        ]
        for p in found.candidates[:MOST_CANDIDATES]
    ]
    return header, rows


def _grid_columns(found: Tuning) -> int:
    return len(_grid_table(found)[0])


def _grid_table(found: Tuning) -> tuple[list[str], list[list[str]]]:
    cold = any(row.cold_samples_per_s is not None for row in found.grid)
    stalls = any(row.stall_share is not None for row in found.grid)
    header = ["num_workers", "prefetch_factor", f"warm {found.unit}/s"]
    header += [f"cold {found.unit}/s"] * cold + ["stall share"] * stalls + [""]
    rows = []
    for row in found.grid:
        cells = [str(row.settings["num_workers"]), str(row.settings.get("prefetch_factor", ""))]
        cells.append(_spread(row))
        if cold:
            cells.append("" if row.cold_samples_per_s is None else format_count(row.cold_samples_per_s))
        if stalls:
            cells.append("" if row.stall_share is None else format_share(row.stall_share))
        pick = row.settings == found.recommended.settings
        rows.append([*cells, "pick" if pick else row.failure])
    return header, rows


def _spread(row: GridRow) -> str:
    """Median [min-max], as people write it."""
    if not row.samples_per_s:
        return "failed" if row.failure else ""
    middle = statistics.median(row.samples_per_s)
    low, high = min(row.samples_per_s), max(row.samples_per_s)
    return f"{format_count(middle)} [{format_count(low)}-{format_count(high)}]"
