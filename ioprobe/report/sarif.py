"""SARIF 2.1.0, for code-scanning services."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import msgspec

from ioprobe.diagnosis.check import CheckReport
from ioprobe.diagnosis.rules import RULES, SECTIONS, Rule
from ioprobe.diagnosis.types import Outcome

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"


def render(report: CheckReport) -> str:
    """Return the report as one SARIF run.

    Failed rules and budgets are results; waived ones are results with a suppression; undecided budgets are results
    of kind ``open``. What could not be judged at all is a notification of the invocation.
    """
    outcomes = [(o, None) for o in report.outcomes if o.status in ("failed", "undecided")]
    waived = [(i.outcome, i) for i in report.ignored]
    others = sorted({o.name for o, _ in [*outcomes, *waived] if o.name not in RULES})
    order = [*RULES, *others]
    results = [_result(o, order) for o, _ in outcomes]
    for outcome, ignored in waived:
        result = _result(outcome, order)
        result["suppressions"] = [
            {"kind": "inSource" if ignored.in_source else "external", "justification": ignored.reason}
        ]
        results.append(result)
    driver = {
        "name": "ioprobe",
        "version": report.version,
        "rules": [*(_descriptor(rule) for rule in RULES.values()), *(_budget_descriptor(name) for name in others)],
    }
    invocation: dict[str, Any] = {"executionSuccessful": not report.errors, "startTimeUtc": report.created_at}
    if report.errors:
        invocation["toolExecutionNotifications"] = [
            {"level": "error", "message": {"text": error}} for error in report.errors
        ]
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode() + "\n"


def _descriptor(rule: Rule) -> dict[str, Any]:
    help_text = "\n\n".join(f"{title}: {rule.sections[title]}" for title in SECTIONS)
    markdown = "\n\n".join(
        f"**{title}**\n\n```\n{rule.sections[title]}\n```"
        if title == "Example"
        else f"**{title}**  \n{rule.sections[title]}"
        for title in SECTIONS
    )
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.sections["Why it matters"]},
        "help": {"text": help_text, "markdown": markdown},
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": [rule.family]},
    }


def _budget_descriptor(name: str) -> dict[str, Any]:
    what = "comparison with the baseline" if name.startswith("baseline:") else "budget of a measured figure"
    return {"id": name, "shortDescription": {"text": f"{name}: {what}"}, "defaultConfiguration": {"level": "error"}}


def _result(outcome: Outcome, order: list[str]) -> dict[str, Any]:
    text = f"{outcome.pipeline}: {outcome.text}" if outcome.pipeline else outcome.text
    if outcome.fix:
        text += f". Fix: {outcome.fix}"
    result: dict[str, Any] = {"ruleId": outcome.name, "ruleIndex": order.index(outcome.name), "message": {"text": text}}
    if outcome.status == "undecided":
        result["kind"], result["level"] = "open", "none"
    else:
        result["level"] = RULES[outcome.name].level if outcome.name in RULES else "error"
    if outcome.file:
        location: dict[str, Any] = {"artifactLocation": {"uri": _uri(outcome.file)}}
        if outcome.line is not None:
            location["region"] = {"startLine": outcome.line, "startColumn": outcome.column or 1}
        result["locations"] = [{"physicalLocation": location}]
    key = f"{outcome.name}/{outcome.pipeline}/{outcome.file}"
    result["partialFingerprints"] = {"ioprobe/v1": key}
    return result


def _uri(path: str) -> str:
    """Return a file's path as a URI reference; an absolute one as ``file://``."""
    parts = quote(str(PurePosixPath(path)))
    return f"file://{parts}" if path.startswith("/") else parts
