"""Rules explained: one at length, or all in a list."""

from __future__ import annotations

import textwrap
from typing import Any

from ioprobe.diagnosis.rules import SECTIONS, Rule

WIDTH = 100


def render_rule(rule: Rule) -> str:
    """Return a rule's whole text."""
    lines = [f"{rule.code} {rule.name} ({rule.level}; {rule.family})", "", rule.summary, ""]
    for title in SECTIONS:
        body = rule.sections[title]
        lines.append(f"{title}:")
        if title == "Example":
            lines += [f"    {line}".rstrip() for line in body.splitlines()]
        else:
            lines += textwrap.wrap(body, WIDTH, initial_indent="    ", subsequent_indent="    ")
        lines.append("")
    lines.append(f'Ignore it with: ignore = ["{rule.code}"], or on a line: # ioprobe: ignore[{rule.code}] reason')
    return "\n".join(lines) + "\n"


def render_list(rules: list[Rule]) -> str:
    """Return a line per rule, under its family."""
    width = max(len(rule.name) for rule in rules)
    lines: list[str] = []
    family = ""
    for rule in rules:
        if rule.family != family:
            family = rule.family
            lines += ["", f"IO{rule.code[2]}xx {family}"]
        lines.append(f"  {rule.code}  {rule.name.ljust(width)}  {rule.level.ljust(7)}  {rule.summary}")
    return "\n".join(lines[1:]) + "\n"


def rules_as_data(rules: list[Rule]) -> list[dict[str, Any]]:
    """Return rules as plain data, for scripts."""
    return [
        {
            "code": rule.code,
            "name": rule.name,
            "level": rule.level,
            "family": rule.family,
            "summary": rule.summary,
            "needs": list(rule.needs),
            **{title: rule.sections[title] for title in SECTIONS},
        }
        for rule in rules
    ]
