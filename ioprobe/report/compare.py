"""A comparison of two runs as text, markdown or JSON."""

from __future__ import annotations

import msgspec

from ioprobe.diagnosis.budgets import show
from ioprobe.diagnosis.compare import Comparison, MetricChange
from ioprobe.report.words import clean
from ioprobe.units import format_share

_HEADER = ("figure", "base", "new", "change", "95% interval", "effect", "verdict")

_STAGES = {"fetch_s", "fetch_cpu_s", "collate_s", "transport_s", "sampler_s"}


def render_text(result: Comparison) -> str:
    """Return a table with one line per figure, then what differs, then the verdict."""
    rows = [_HEADER, *(_row(change) for change in result.metrics)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    if result.differences:
        lines += ["", "differs:", *(f"  {line}" for line in result.differences)]
    lines += [f"note: {text}" for text in _notes(result)]
    lines += ["", verdict_line(result)]
    return "\n".join(clean(line) for line in lines) + "\n"


def render_markdown(result: Comparison) -> str:
    """Return a table for a pull request."""
    lines = [f"### ioprobe compare: {result.verdict}", "", verdict_line(result), ""]
    lines += ["| " + " | ".join(_HEADER) + " |", "| --- " * len(_HEADER) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in _row(change)) + " |" for change in result.metrics]
    if result.differences:
        lines += ["", "Differs:", "", *(f"- `{line.replace('`', chr(39))}`" for line in result.differences)]
    notes = _notes(result)
    lines += ["", *(f"- {text}" for text in notes)] if notes else []
    return "\n".join(clean(line) for line in lines) + "\n"


def _notes(result: Comparison) -> list[str]:
    notes = [c.text + (f"; {c.settle}" if c.settle else "") for c in result.caveats]
    if result.headline == "samples_per_s" and any(change.name in _STAGES for change in result.metrics):
        notes.append("stages are those of the loop, the step beside them; a report shows them with the loader alone")
    return notes


def render_json(result: Comparison) -> str:
    """Return the comparison as JSON; what is not known is null."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"


def verdict_line(result: Comparison) -> str:
    """Return the verdict in one sentence, with the bands that it rests on."""
    slower = [change.name for change in result.metrics if change.verdict == "slower"]
    faster = [change.name for change in result.metrics if change.verdict == "faster"]
    head = next(change for change in result.metrics if change.name == result.headline)
    if result.same_run:
        return "no change: both are the same run"
    if slower:
        what = f"slower: {', '.join(slower)}"
    elif result.verdict == "faster":
        what = f"faster: {', '.join(faster)}"
    elif result.verdict == "same":
        what = f"no change: {head.name} stays within the bands"
    elif head.verdict == "not judged":
        what = f"undecided: {head.name} rests on too few values; measure for longer"
    else:
        what = f"undecided: {head.name} may have changed by {head.interval}; measure more"
    pairing = f"{head.values} paired rounds" if head.paired else f"{head.values} values a side, not paired"
    return f"{what} ({pairing}; noise band {format_share(result.noise)}, large {format_share(result.large)})"


def _row(change: MetricChange) -> tuple[str, ...]:
    judged = change.verdict != "not judged"
    return (
        change.name,
        show(change.name, change.base.value),
        show(change.name, change.new.value),
        change.size,
        change.interval if judged else "–",
        "–" if change.effect_size is None else f"{change.effect_size:+.1f}",
        change.word,
    )
