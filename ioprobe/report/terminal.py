"""The report for a terminal: verdict first, nothing that is empty, nothing that wraps badly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ioprobe.diagnosis.types import Advice, RankSummary, Report, Rung, WhatIfPoint
from ioprobe.report import whatif, words
from ioprobe.report.bars import ladder_axis
from ioprobe.report.sheet import Sheet
from ioprobe.run import Caveat
from ioprobe.units import NOT_MEASURED, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from rich.text import Text

VERDICT_STYLES = {
    "data-bound": "bold red",
    "misconfigured": "bold red",
    "communication-bound": "bold yellow",
    "undecided": "bold yellow",
    "compute-bound": "bold green",
    "balanced": "bold green",
    "loader": "bold blue",
}
PARTITION_WORDS = {
    "compute": ("compute", "green"),
    "communication": ("communication", "yellow"),
    "transfer": ("transfer", "magenta"),
    "data_stall": ("data stall", "red"),
    "other_idle": ("other idle", "bright_black"),
}
MAX_RANKS = 16
FASTEST_RANKS = 4
WIDE_BAR = 34
"""Cells of a bar where the terminal is wide enough to say beside it how the rung was measured."""


def render(report: Report, *, width: int = 80, color: bool = False, unicode: bool = True) -> str:
    """Return the report as lines of at most ``width`` cells (paths alone may be longer).

    Args:
        report: What was found.
        width: Of the terminal [cells]; less than 60 is treated as 60.
        color: Whether to use ANSI styles.
        unicode: False keeps to ASCII, names included.
    """
    sheet = Sheet(width=max(60, width), color=color, unicode=unicode)
    _verdict(sheet, report)
    for section in (_failures, _ladder, _stages, _advice, _what_if, _ranks, _partition, _metrics, _outcomes, _caveats):
        section(sheet, report)
    _footer(sheet, report)
    return sheet.text()


def _verdict(sheet: Sheet, report: Report) -> None:
    word, clause = words.headline(report)
    sheet.title(word.upper(), VERDICT_STYLES[word], clause)
    sheet.paragraph(words.figures(report))
    diagnosis = report.diagnosis
    if diagnosis.evidence:
        sheet.paragraph(words.sentence(diagnosis.evidence))
    for reason in diagnosis.reasons:
        sheet.item("-", words.sentence(reason), style="dim")
    if diagnosis.unexplained:
        sheet.item("?", f"Unexplained: {words.sentence(diagnosis.unexplained)}", style="yellow")
    if not report.complete:
        sheet.item("!", "Partial: it ended before everything was measured.", style="yellow")


def _failures(sheet: Sheet, report: Report) -> None:
    if not report.failures:
        return
    sheet.heading("What failed")
    for failure in report.failures:
        sheet.item("x", f"{failure.phase}: {failure.message}", style="red")
        if failure.where:
            sheet.detail("at", failure.where)
        if failure.hint:
            sheet.detail("next", failure.hint)


def _ladder(sheet: Sheet, report: Report) -> None:
    ladder = report.diagnosis.ladder
    if not ladder:
        return
    axis = ladder_axis(ladder)
    sheet.heading("Ladder", f"{report.unit}/s that each stage sustains alone" + (" (log scale)" if axis.log else ""))
    parts = [words.rate_parts(rung.samples_per_s) for rung in ladder]
    columns = (
        2 + max(len(rung.stage.value) for rung in ladder),
        max((len(value) for value, _ in parts if value != NOT_MEASURED), default=0),
        max(len(interval) for _, interval in parts),
    )
    spaces, mark = 5, len("  < lowest")
    room = sheet.width - sum(columns) - spaces
    tail_width = max(mark, room - WIDE_BAR) if sheet.width >= 100 else mark
    bar_width = max(12, min(56, room - tail_width))
    for rung, (value, interval) in zip(ladder, parts, strict=True):
        style = "bold red" if rung.lowest else "cyan" if rung.stage.value in ("loop", "loader") else "blue"
        label = sheet.text_of(("> " if rung.lowest else "  ") + rung.stage.value.ljust(columns[0] - 2), style)
        estimate = rung.samples_per_s
        if estimate is None:
            sheet.line(label, "  ", (NOT_MEASURED, "dim"))
            continue
        bar = sheet.bar(axis.place(estimate.low), axis.place(estimate.high), bar_width, style)
        tail = _rung_tail(sheet, rung, tail_width)
        sheet.line(label, "  ", bar, "  ", (value.rjust(columns[1]), "bold"), " ", interval.ljust(columns[2]), tail)


def _rung_tail(sheet: Sheet, rung: Rung, room: int) -> Text:
    tail = sheet.text_of("")
    if rung.lowest:
        tail.append_text(sheet.text_of("  < lowest", "bold red"))
    left = room - tail.cell_len - 2
    if left > 12 and rung.detail:
        tail.append_text(sheet.text_of("  " + sheet.shortened(rung.detail, left), "dim"))
    return tail


def _stages(sheet: Sheet, report: Report) -> None:
    stages = report.diagnosis.stages
    if not stages:
        return
    sheet.heading("Stages", f"time per {report.unit.removesuffix('s')}, in one process")
    rows = [
        [
            cost.stage.value + (" (main)" if cost.where == "main" else ""),
            *(_time(seconds) for seconds in (cost.wall_s, cost.cpu_s, cost.blocked_s, cost.runq_s)),
            words.UNMEASURED if cost.share is None else format_share(cost.share),
            words.hot_frame(cost.hottest, most=sheet.width - 62),
        ]
        for cost in stages
    ]
    header = ["", "wall", "CPU", "blocked", "no core", "share", "hottest frame"]
    if sheet.width < 76 or not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    sheet.table(header, rows, right=range(1, 6))


def _time(seconds: float | None) -> str:
    return words.UNMEASURED if seconds is None else format_seconds(seconds)


def _advice(sheet: Sheet, report: Report) -> None:
    if not report.advice:
        return
    sheet.heading("What to change")
    for number, tip in enumerate(report.advice, 1):
        sheet.item(f"{number}.", f"{tip.action}  [{tip.code}]", style="bold")
        _advice_details(sheet, tip)


def _advice_details(sheet: Sheet, tip: Advice) -> None:
    if tip.because:
        sheet.detail("because", tip.because)
    said, missed = words.verification(tip)
    if tip.gain is not None or tip.verified is not None:
        predicted = f"predicted {words.gain(tip.gain)}; " if tip.gain is not None else ""
        style = "bold yellow" if missed else "green" if tip.verified is not None else ""
        sheet.detail("gain", predicted + said, style=style)
    if tip.wrong_when:
        sheet.detail("unless", tip.wrong_when)


def _what_if(sheet: Sheet, report: Report) -> None:
    arranged = whatif.arrange(report)
    if arranged is None or len(arranged.base.spots) < 2:
        return
    fixed = whatif.fixed_text(arranged.axes, arranged.base.key)
    sheet.heading("What if", f"{report.unit}/s at other num_workers" + (f" ({fixed})" if fixed else ""))
    rows, marks = [], {arranged.current: "now", arranged.advised: "advised"}
    for spot in arranged.base.spots:
        rows.append(
            [
                str(spot.workers),
                *("" if point is None else _number(point) for point in (spot.predicted, spot.measured)),
                "" if spot.best.stall_share is None else format_share(spot.best.stall_share.value),
                marks.get(spot.workers, ""),
            ]
        )
    sheet.table(["workers", "predicted", "measured", "waits", ""], rows, right=range(4))


def _number(point: WhatIfPoint) -> str:
    return " ".join(words.rate_parts(point.samples_per_s)).rstrip()


def _ranks(sheet: Sheet, report: Report) -> None:
    if not report.ranks:
        return
    shown = _most_telling(report.ranks)
    note = str(len(report.ranks))
    if len(shown) < len(report.ranks):
        note += f"; shown: the late, then the slowest, and the {FASTEST_RANKS} fastest"
    sheet.heading("Ranks", note)
    rows = [
        [
            str(rank.rank),
            rank.host,
            " ".join(words.rate_parts(rank.samples_per_s)).rstrip(),
            words.share(rank.stall_share),
            ": ".join(filter(None, ["LATE" if rank.late else "", rank.because])),
        ]
        for rank in shown
    ]
    sheet.table(["rank", "host", f"{report.unit}/s", "waits", ""], rows, right=[0, 2, 3])


def _most_telling(ranks: list[RankSummary]) -> list[RankSummary]:
    if len(ranks) <= MAX_RANKS:
        return ranks
    by_rate = sorted(ranks, key=lambda r: (not r.late, r.samples_per_s.value if r.samples_per_s else -1.0))
    return sorted([*by_rate[: MAX_RANKS - FASTEST_RANKS], *by_rate[-FASTEST_RANKS:]], key=lambda r: r.rank)


def _partition(sheet: Sheet, report: Report) -> None:
    if not report.partition:
        return
    sheet.heading("Where the step's time goes")
    parts = [(*PARTITION_WORDS.get(name, (name, "white")), share) for name, share in report.partition.items()]
    sheet.stacked([(style, share) for _, style, share in parts], min(sheet.width, 100) - 2)
    sheet.legend([(label, style, format_share(share)) for label, style, share in parts])


def _metrics(sheet: Sheet, report: Report) -> None:
    if not report.metrics:
        return
    sheet.heading("Also measured")
    sheet.pairs([words.metric(name, value) for name, value in report.metrics.items()])


def _outcomes(sheet: Sheet, report: Report) -> None:
    if not report.outcomes:
        return
    sheet.heading("Budgets and rules")
    for outcome in report.outcomes:
        style = {"passed": "green", "failed": "bold red"}.get(outcome.status, "yellow")
        place = f" ({outcome.file}{f':{outcome.line}' if outcome.line is not None else ''})" if outcome.file else ""
        sheet.item("+" if outcome.status == "passed" else "x", f"{outcome.status}  {outcome.name}{place}", style=style)
        sheet.detail("", outcome.text)
        if outcome.fix:
            sheet.detail("fix", outcome.fix)


def _caveats(sheet: Sheet, report: Report) -> None:
    if not report.caveats:
        return
    sheet.heading("Read with care")
    for caveat in report.caveats:
        _caveat(sheet, caveat)


def _caveat(sheet: Sheet, caveat: Caveat) -> None:
    sheet.item("!", f"{words.sentence(caveat.text)}  [{caveat.code}]", style="yellow")
    if caveat.settle:
        sheet.detail("settle", caveat.settle)


def _footer(sheet: Sheet, report: Report) -> None:
    host = report.host
    # A recording made elsewhere carries no facts of its host.
    cores = f"{format_count(host.usable_cores)} of {host.logical_cores} cores usable" if host.hostname else ""
    if cores and host.usable_cores_because and host.usable_cores_because != "machine":
        cores += f" ({host.usable_cores_because})"
    rows = [
        ("target", report.target),
        ("settings", words.settings_text(report.settings)),
        ("host", ", ".join(filter(None, [host.hostname, cores, *_counted(host.accelerators)]))),
        ("run file", report.run or ""),
        ("page", report.page or ""),
    ]
    sheet.heading(f"ioprobe {report.kind}", f"{report.created_at}, version {report.version}")
    for name, value in rows:
        if value:
            sheet.fact(name, value, whole=name not in ("settings", "host"))


def _counted(names: list[str]) -> list[str]:
    return [f"{names.count(name)} × {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
