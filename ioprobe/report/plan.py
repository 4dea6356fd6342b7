"""A plan as text, Markdown, JSON and a page with its chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ioprobe.diagnosis.types import Plan, PlanPoint
from ioprobe.report import markdown, words
from ioprobe.report.bars import LOG_BEYOND, Axis
from ioprobe.report.figures import Tick, compact, ticks
from ioprobe.report.html import page
from ioprobe.report.sheet import Sheet
from ioprobe.units import format_bandwidth, format_count, format_share

MAX_BINDINGS = 6
"""Colours for what binds; beyond them the last is shared, and the table tells them apart."""

COST_WORDS = {
    "usd_per_million_samples": "USD/1M samples",
    "usd_per_hour": "USD/h",
    "usd_stalled_per_hour": "USD/h stalled",
    "usd_total": "USD in all",
    "joules_per_sample": "J/sample",
}


class Dot(msgspec.Struct, frozen=True):
    """A point of the chart; its kind tells what binds."""

    x: float
    y: float
    kind: str
    text: str


class Chart(msgspec.Struct, frozen=True):
    """Throughput over accelerators, in a box of 100 × 100."""

    line: str
    ideal: str
    dots: list[Dot]
    bindings: list[tuple[str, str]]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    log: bool


def render_text(plan: Plan, *, width: int = 80, color: bool = False, unicode: bool = True) -> str:
    """Return the plan for a terminal."""
    sheet = Sheet(width=max(60, width), color=color, unicode=unicode)
    sheet.title("PLAN", "bold blue", plan.title)
    if plan.summary:
        sheet.paragraph(words.sentence(plan.summary))
    header, rows = table(plan)
    if rows:
        sheet.heading("What they need", f"{plan.unit} and bytes per second, over accelerators")
        sheet.wide_table(header, rows)
    if plan.caveats:
        sheet.heading("Read with care")
        for caveat in plan.caveats:
            sheet.item("!", f"{words.sentence(caveat.text)}  [{caveat.code}]", style="yellow")
            if caveat.settle:
                sheet.detail("settle", caveat.settle)
    if plan.inputs:
        sheet.heading("What it rests on")
        sheet.table(["input", "value", "source"], [[item.name, item.value, item.source] for item in plan.inputs])
    return sheet.text()


def render_markdown(plan: Plan) -> str:
    """Return the plan as Markdown."""
    header, rows = table(plan)
    blocks = [f"### ioprobe plan: {markdown.prose(plan.title)}"]
    if plan.summary:
        blocks.append(markdown.prose(words.sentence(plan.summary)))
    if rows:
        cells = [[markdown.prose(cell) for cell in row] for row in rows]
        blocks.append(markdown.table([markdown.prose(title) for title in header], cells, right=range(len(header))))
    blocks += [f"- {markdown.prose(words.sentence(caveat.text))}" for caveat in plan.caveats]
    if plan.inputs:
        cells = [[markdown.prose(text) for text in (item.name, item.value, item.source)] for item in plan.inputs]
        blocks.append(markdown.table(["input", "value", "source"], cells))
    return "\n\n".join(blocks) + "\n"


def render_json(plan: Plan) -> str:
    """Return the plan as one JSON object: the contract of ``ioprobe plan --format json``."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"


def render_html(plan: Plan) -> str:
    """Return the plan as one self-contained page."""
    header, rows = table(plan)
    return page("plan.html.j2", version=plan.version, plan=plan, chart=chart(plan), header=header, rows=rows)


def table(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Return header and rows; a column that is empty for every n is left out."""
    columns: list[tuple[str, list[str]]] = [
        ("n", [f"{point.n:,}" for point in plan.points]),
        (f"{plan.unit}/s", [format_count(point.samples_per_s) for point in plan.points]),
        ("bound by", [point.binding for point in plan.points]),
        ("efficiency", [_or_blank(point.scaling_efficiency, format_share) for point in plan.points]),
        ("storage", [_or_blank(point.storage_bytes_per_s, format_bandwidth) for point in plan.points]),
        ("requests/s", [_or_blank(point.iops, format_count) for point in plan.points]),
        ("cores", [_or_blank(point.cores, format_count) for point in plan.points]),
        ("hosts", [_or_blank(point.hosts, format_count) for point in plan.points]),
    ]
    for field in ("metrics", "cost"):
        names = {name: None for point in plan.points for name in getattr(point, field)}
        for name in names:
            values = [getattr(point, field).get(name) for point in plan.points]
            if field == "metrics":
                title = words.metric(name, 0.0)[0]
                texts = ["" if value is None else words.metric(name, value)[1] for value in values]
            else:
                title = words.clean(COST_WORDS.get(name, name.replace("_", " ")))
                texts = [_or_blank(value, format_count) for value in values]
            columns.append((title, texts))
    kept = [(title, [words.clean(cell) for cell in cells]) for title, cells in columns if any(cells)]
    return [title for title, _ in kept], [list(row) for row in zip(*(cells for _, cells in kept), strict=True)]


def _or_blank(value: float | None, form: Callable[[float], str]) -> str:
    return "" if value is None else form(value)


def chart(plan: Plan) -> Chart | None:
    """Return the chart's geometry; None with fewer than two numbers of accelerators."""
    points = [p for p in plan.points if p.n > 0 and p.samples_per_s > 0]
    if len({p.n for p in points}) < 2:
        return None
    ideal = [(p.n, p.samples_per_s / p.scaling_efficiency) for p in points if p.scaling_efficiency]
    top = max([p.samples_per_s for p in points] + [rate for _, rate in ideal])
    low_n, high_n = min(p.n for p in points), max(p.n for p in points)
    log = high_n > LOG_BEYOND * low_n
    x = Axis(float(low_n), float(high_n), log)
    low = min(p.samples_per_s for p in points)
    y = Axis(low * 0.8, top, log=True) if log and top > low else Axis(0.0, top * 1.04)
    names = list(dict.fromkeys(p.binding for p in points if p.binding))
    kinds = {name: f"b{min(i, MAX_BINDINGS - 1)}" for i, name in enumerate(names)}

    def spot(n: float, rate: float) -> tuple[float, float]:
        return round(100 * x.place(n), 2), round(100 - 100 * y.place(rate), 2)

    def path(pairs: Sequence[tuple[int, float]]) -> str:
        return "M" + "L".join(f"{a} {b}" for a, b in (spot(n, rate) for n, rate in pairs))

    return Chart(
        line=path([(p.n, p.samples_per_s) for p in points]),
        ideal=path(ideal) if len(ideal) > 1 else "",
        dots=[Dot(*spot(p.n, p.samples_per_s), kinds.get(p.binding, ""), _words(p, plan.unit)) for p in points],
        bindings=[(kinds[name], words.clean(name)) for name in names],
        x_ticks=_n_ticks(points, x),
        y_ticks=ticks(y, compact),
        log=log,
    )


def _words(point: PlanPoint, unit: str) -> str:
    text = f"{point.n:,} accelerators: {format_count(point.samples_per_s)} {unit}/s"
    return words.clean(text + (f", bound by {point.binding}" if point.binding else ""))


def _n_ticks(points: Sequence[PlanPoint], x: Axis) -> list[Tick]:
    chosen: list[Tick] = []
    for point in points:
        at = round(100 * x.place(point.n), 2)
        if not chosen or at - chosen[-1].at >= 6:
            chosen.append(Tick(at, f"{point.n:,}"))
    return chosen
