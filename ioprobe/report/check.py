"""The check report for people: lines as compilers print them, and a table for pull requests."""

from __future__ import annotations

from collections import Counter

import msgspec

from ioprobe.diagnosis.check import CheckReport
from ioprobe.diagnosis.rules import RULES
from ioprobe.diagnosis.types import Outcome
from ioprobe.report.words import clean

# Facts named in the line about rules that abstained.
MOST_WANTED = 4
STATUSES = ("failed", "undecided", "passed", "abstained")


def render_text(report: CheckReport, *, verbose: bool = False) -> str:
    """Return one line per problem with its fix, errors, and a summary; all outcomes where verbose."""
    lines: list[str] = []
    in_order = sorted(report.outcomes, key=lambda o: (o.file, o.line or 0, o.column or 0))
    for outcome in in_order:
        if outcome.status in ("failed", "undecided"):
            lines.append(f"{place_of(outcome)}{title_of(outcome)}: {outcome.text}")
            if outcome.fix:
                lines.append(f"    fix: {outcome.fix}")
        elif verbose:
            lines.append(f"{outcome.pipeline}: {title_of(outcome, named=False)} {outcome.status}: {outcome.text}")
    if verbose:
        lines += [
            f"{i.outcome.pipeline}: {title_of(i.outcome, named=False)} ignored ({i.reason}): {i.outcome.text}"
            for i in report.ignored
        ]
    lines += [f"error: {error}" for error in report.errors]
    if lines:
        lines.append("")
    lines += [f"{pipeline.name}: {pipeline.host}" for pipeline in report.pipelines] if verbose else []
    lines += [f"note: {c.text}; {c.settle}" if c.settle else f"note: {c.text}" for c in report.caveats]
    if report.count("abstained") and not verbose:
        lines.append(f"note: {abstentions(report)}; --verbose lists them")
    lines.append(summary(report))
    return "\n".join(clean(line) for line in lines) + "\n"


def render_json(report: CheckReport) -> str:
    """Return the whole report as JSON; see ``check_schema``."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def render_markdown(report: CheckReport) -> str:
    """Return a table that can be pasted into a pull request or a step summary."""
    failed = [o for o in report.outcomes if o.status == "failed"]
    open_ = [o for o in report.outcomes if o.status == "undecided"]
    if failed:
        mark = "failed"
    elif open_ or report.errors:
        mark = "no verdict"
    else:
        mark = "passed"
    lines = [f"### ioprobe check: {mark}", "", _plain(summary(report)), ""]
    if failed or open_:
        lines += ["| pipeline | rule | what | fix | where |", "| --- | --- | --- | --- | --- |"]
        for outcome in failed + open_:
            where = f"{outcome.file}:{outcome.line}" if outcome.file and outcome.line else outcome.file
            cells = [
                outcome.pipeline,
                f"**{outcome.name}** {rule_name(outcome)}".strip(),
                outcome.text + (" *(undecided)*" if outcome.status == "undecided" else ""),
                outcome.fix,
                where,
            ]
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        lines.append("")
    lines += [f"- error: {_plain(error)}" for error in report.errors]
    lines += [f"- {_plain(c.text)}" for c in report.caveats]
    if report.pipelines:
        lines += ["", "| pipeline | judged for | target |", "| --- | --- | --- |"]
        lines += [f"| {_cell(p.name)} | {_cell(p.host)} | {_cell(p.target)} |" for p in report.pipelines]
    return "\n".join(lines).rstrip() + "\n"


def summary(report: CheckReport) -> str:
    """Return the counts in one sentence."""
    pipelines = len(report.pipelines) + len(report.errors)
    counts = [f"{report.count(status)} {status}" for status in STATUSES]
    if report.ignored:
        counts.append(f"{len(report.ignored)} ignored")
    if report.errors:
        counts.append(f"{len(report.errors)} pipelines could not be judged")
    return f"{pipelines} {'pipeline' if pipelines == 1 else 'pipelines'}: {', '.join(counts)}"


def abstentions(report: CheckReport) -> str:
    """Return how many rules and budgets abstained and what they lack, most wanted first."""
    wanted = Counter(fact for outcome in report.outcomes for fact in outcome.missing)
    shown = [f"{fact} ({count}x)" for fact, count in wanted.most_common(MOST_WANTED)]
    rest = f" and {len(wanted) - MOST_WANTED} others" if len(wanted) > MOST_WANTED else ""
    why = f" for want of facts: {', '.join(shown)}{rest}" if shown else ""
    count = report.count("abstained")
    return f"{count} {'rule or budget' if count == 1 else 'rules and budgets'} abstained{why}"


def place_of(outcome: Outcome) -> str:
    """Return ``file:line:column: ``, as far as it is known."""
    if not outcome.file:
        return ""
    if outcome.line is None:
        return f"{outcome.file}: "
    return f"{outcome.file}:{outcome.line}:{outcome.column or 1}: "


def rule_name(outcome: Outcome) -> str:
    """Return the rule's name in words, '' for budgets."""
    return RULES[outcome.name].name if outcome.name in RULES else ""


def title_of(outcome: Outcome, named: bool = True) -> str:
    """Return code, name and pipeline."""
    name = rule_name(outcome)
    title = f"{outcome.name} {name}" if name else outcome.name
    return f"{title} [{outcome.pipeline}]" if named and outcome.pipeline else title


def _plain(text: str) -> str:
    """Escape what markdown and HTML would read as markup."""
    for sign in ("\\", "`", "*", "_", "[", "]", "<", ">", "#", "|"):
        if sign in "<>":
            text = text.replace(sign, "&lt;" if sign == "<" else "&gt;")
        else:
            text = text.replace(sign, "\\" + sign)
    return clean(" ".join(text.split()))


def _cell(text: str) -> str:
    """Escape a table's cell; bold and italics that we set ourselves stay."""
    bold = text.startswith("**")
    if bold:
        code, _, rest = text[2:].partition("**")
        return f"**{_plain(code)}** {_plain(rest)}".strip()
    if text.endswith(" *(undecided)*"):
        return _plain(text.removesuffix(" *(undecided)*")) + " *(undecided)*"
    return _plain(text)
