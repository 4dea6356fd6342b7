"""The report as GitHub-flavoured Markdown, to be pasted into a pull request or an issue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from ioprobe.diagnosis.types import Advice, Report
from ioprobe.report import whatif, words
from ioprobe.units import format_count, format_seconds, format_share

_SPECIAL = re.compile(r"[\\`*\[\]<>|~$]|^#|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def render(report: Report) -> str:
    """Return the report as Markdown; nothing in a name can become markup, a mention or HTML."""
    blocks = [
        *_verdict(report),
        *_failures(report),
        *_ladder(report),
        *_stages(report),
        *_advice(report),
        *_what_if(report),
        *_ranks(report),
        *_partition(report),
        *_metrics(report),
        *_outcomes(report),
        *_caveats(report),
        _footer(report),
    ]
    return "\n\n".join(blocks) + "\n"


def prose(text: str) -> str:
    r"""Return text that Markdown shows as it is.

    >>> prose("set num_workers=8 in `x`|<b>"), prose("@all _a_")
    ('set num_workers=8 in \\`x\\`\\|\\<b\\>', '&#64;all \\_a\\_')
    """
    text = words.clean(text).replace("&", "&amp;")
    return _SPECIAL.sub(lambda m: "\\" + m.group(), text).replace("@", "&#64;")


def code(text: str, *, in_table: bool = False) -> str:
    r"""Return text as a code span, with a fence longer than any run of backticks within.

    >>> code("a`b"), code("a|b", in_table=True)
    ('``a`b``', '`a\\|b`')
    """
    text = words.clean(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    if in_table:  # tables split at a bar even within code, and take the backslash away again
        text = text.replace("|", "\\|")
    return f"{fence}{pad}{text}{pad}{fence}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return a table; cells are Markdown already."""
    rule = ["---:" if i in right else "---" for i in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def _verdict(report: Report) -> list[str]:
    word, clause = words.headline(report)
    diagnosis = report.diagnosis
    blocks = [f"### ioprobe: {word}, {clause}"]
    lead = " ".join(
        filter(
            None,
            [_stop(words.figures(report)), prose(words.sentence(diagnosis.evidence)) if diagnosis.evidence else ""],
        )
    )
    if lead:
        blocks.append(lead)
    if diagnosis.reasons:
        blocks.append("\n".join(f"- {prose(words.sentence(reason))}" for reason in diagnosis.reasons))
    if diagnosis.unexplained:
        blocks.append(f"**Unexplained:** {prose(words.sentence(diagnosis.unexplained))}")
    if not report.complete:
        blocks.append("**Partial:** it ended before everything was measured.")
    return blocks


def _stop(text: str) -> str:
    return text + "." if text else ""


def _failures(report: Report) -> list[str]:
    if not report.failures:
        return []
    lines = []
    for failure in report.failures:
        place = f" at {code(failure.where)}" if failure.where else ""
        hint = f" Next: {prose(words.sentence(failure.hint))}" if failure.hint else ""
        lines.append(f"- **{prose(failure.phase)} failed**{place}: {prose(words.sentence(failure.message))}{hint}")
    return ["\n".join(lines)]


def _ladder(report: Report) -> list[str]:
    ladder = report.diagnosis.ladder
    if not ladder:
        return []
    rows = []
    for rung in ladder:
        value, interval = words.rate_parts(rung.samples_per_s)
        name = f"**{rung.stage.value}** (lowest)" if rung.lowest else rung.stage.value
        rows.append([name, f"**{value}**" if rung.lowest else value, interval, prose(rung.detail)])
    return [table([f"stage alone, {prose(report.unit)}/s", "rate", "95%", "measured how"], rows, right=[1])]


def _stages(report: Report) -> list[str]:
    stages = report.diagnosis.stages
    if not stages:
        return []
    rows = [
        [
            cost.stage.value + (" (main process)" if cost.where == "main" else ""),
            *(
                words.UNMEASURED if seconds is None else format_seconds(seconds)
                for seconds in (cost.wall_s, cost.cpu_s, cost.blocked_s, cost.runq_s)
            ),
            words.UNMEASURED if cost.share is None else format_share(cost.share),
            code(words.hot_frame(cost.hottest), in_table=True) if cost.hottest else "",
        ]
        for cost in stages
    ]
    header = [
        f"time per {prose(report.unit.removesuffix('s'))}",
        "wall",
        "CPU",
        "blocked",
        "no core",
        "share",
        "hottest",
    ]
    return [table(header, rows, right=range(1, 6))]


def _advice(report: Report) -> list[str]:
    if not report.advice:
        return []
    return ["**What to change**", "\n".join(_tip(number, tip) for number, tip in enumerate(report.advice, 1))]


def _tip(number: int, tip: Advice) -> str:
    text = f"{number}. **{prose(tip.action)}** ({prose(tip.code)})"
    if tip.because:
        text += f": {prose(tip.because)}"
    if tip.gain is not None or tip.verified is not None:
        said, missed = words.verification(tip)
        text += f". Predicted {words.gain(tip.gain)}; " + (f"**{said}**" if missed else said)
    if tip.wrong_when:
        text += f". Wrong when {prose(tip.wrong_when)}"
    return text + "."


def _what_if(report: Report) -> list[str]:
    arranged = whatif.arrange(report)
    if arranged is None or len(arranged.base.spots) < 2:
        return []
    fixed = whatif.fixed_text(arranged.axes, arranged.base.key)
    marks = {arranged.current: "now", arranged.advised: "advised"}
    rows = []
    for spot in arranged.base.spots:
        cells = [
            "" if point is None else " ".join(words.rate_parts(point.samples_per_s)).rstrip()
            for point in (spot.predicted, spot.measured)
        ]
        stall = spot.best.stall_share
        rows.append(
            [str(spot.workers), *cells, "" if stall is None else words.share(stall), marks.get(spot.workers, "")]
        )
    body = table(["num_workers", "predicted", "measured", "stall share", ""], rows, right=range(4))
    # Within HTML, Markdown's backslashes are plain text.
    title = escape(f"What if: {words.clean(report.unit)}/s" + (f" at {fixed}" if fixed else ""))
    return [f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"]


def _ranks(report: Report) -> list[str]:
    if not report.ranks:
        return []
    rows = [
        [
            str(rank.rank),
            prose(rank.host),
            " ".join(words.rate_parts(rank.samples_per_s)).rstrip(),
            words.share(rank.stall_share),
            ": ".join(filter(None, ["**late**" if rank.late else "", prose(rank.because)])),
        ]
        for rank in report.ranks
    ]
    return [table(["rank", "host", f"{prose(report.unit)}/s", "stall share", ""], rows, right=[0, 2, 3])]


def _partition(report: Report) -> list[str]:
    if not report.partition:
        return []
    rows = [[prose(name.replace("_", " ")), format_share(value)] for name, value in report.partition.items()]
    return [table(["the step's time", "share"], rows, right=[1])]


def _metrics(report: Report) -> list[str]:
    if not report.metrics:
        return []
    said = (words.metric(name, value) for name, value in report.metrics.items())
    return ["Also measured: " + ", ".join(f"{prose(name)} {prose(value)}" for name, value in said) + "."]


def _outcomes(report: Report) -> list[str]:
    if not report.outcomes:
        return []
    rows = [[outcome.status, prose(outcome.name), prose(outcome.text)] for outcome in report.outcomes]
    return [table(["", "budget or rule", "found"], rows)]


def _caveats(report: Report) -> list[str]:
    if not report.caveats:
        return []
    lines = [
        f"- {prose(words.sentence(caveat.text))}" + (f" Settle it: {code(caveat.settle)}" if caveat.settle else "")
        for caveat in report.caveats
    ]
    return ["**Read with care**", "\n".join(lines)]


def _footer(report: Report) -> str:
    host = report.host
    # A recording made elsewhere carries no facts of its host.
    cores = f"{format_count(host.usable_cores)} of {host.logical_cores} cores usable" if host.hostname else ""
    facts = [
        code(report.command) if report.command else prose(report.target),
        code(words.settings_text(report.settings)) if report.settings else "",
        ", ".join(filter(None, [prose(host.hostname), cores, *map(prose, dict.fromkeys(host.accelerators))])),
        f"run file {code(report.run)}" if report.run else "",
        prose(f"ioprobe {report.version}, {report.created_at}"),
    ]
    return " · ".join(filter(None, facts))
