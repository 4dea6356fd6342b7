"""GitHub workflow commands: annotations that show beside the line in a pull request."""

from __future__ import annotations

from ioprobe.diagnosis.check import CheckReport
from ioprobe.diagnosis.types import Outcome
from ioprobe.report.check import rule_name, summary


def render(report: CheckReport) -> str:
    """Return one annotation per failed or undecided outcome and per error, and the summary as a notice."""
    lines = [_annotation(o) for o in report.outcomes if o.status in ("failed", "undecided")]
    lines += [f"::error title=ioprobe::{_data(error)}" for error in report.errors]
    lines.append(f"::notice title=ioprobe check::{_data(summary(report))}")
    return "\n".join(lines) + "\n"


def _annotation(outcome: Outcome) -> str:
    properties = []
    if outcome.file:
        properties.append(f"file={_property(outcome.file)}")
        if outcome.line is not None:
            properties += [f"line={outcome.line}", f"col={outcome.column or 1}"]
    properties.append(f"title={_property(f'{outcome.name} {rule_name(outcome)}'.strip())}")
    text = f"{outcome.pipeline}: {outcome.text}" if outcome.pipeline else outcome.text
    if outcome.fix:
        text += f"\nFix: {outcome.fix}"
    level = "error" if outcome.status == "failed" else "warning"
    return f"::{level} {','.join(properties)}::{_data(text)}"


def _data(text: str) -> str:
    """Escape a command's message, as the runner's own toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a command's property."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
