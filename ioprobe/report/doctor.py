"""A host's examination as lines for people and as an object for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ioprobe.diagnosis.doctor import Finding
from ioprobe.report.sheet import Sheet
from ioprobe.run import Host, Surroundings
from ioprobe.units import format_bytes, format_count

SCHEMA = 1
"""Of the JSON object."""
_MARKS = {"warn": ("!", "yellow"), "note": ("-", ""), "ok": ("+", "green")}
_TITLES = {"warn": "Spoils measurements here", "note": "Good to know", "ok": "Well"}


def as_object(host: Host, around: Surroundings, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what ``ioprobe doctor --format json`` prints."""
    return {
        "schema": SCHEMA,
        "kind": "doctor",
        "host": msgspec.to_builtins(host),
        "surroundings": msgspec.to_builtins(around),
        "findings": msgspec.to_builtins(list(findings)),
    }


def render(
    host: Host, findings: Sequence[Finding], *, width: int = 100, color: bool = False, unicode: bool = True
) -> str:
    """Return the examination as lines: the host, then findings by weight with limits and fix."""
    sheet = Sheet(width=max(60, width), color=color, unicode=unicode)
    sheet.line((host.hostname or "this host", "bold"), f"  {host.platform}")
    sheet.pairs(
        [
            ("CPU", f"{host.cpu_model or 'unknown'}, {host.usable_cores:g} of {host.logical_cores} cores usable"),
            ("memory", f"{format_bytes(host.memory_available_bytes)} available of {format_bytes(host.memory_bytes)}"),
            ("/dev/shm", f"{format_bytes(host.shm_available_bytes)} free of {format_bytes(host.shm_bytes)}"),
            ("open files", "no limit" if host.open_files_limit is None else format_count(host.open_files_limit)),
            ("accelerators", ", ".join(host.accelerators) or "none"),
            ("Python", f"{host.python}, torch {host.torch or 'not installed'}"),
        ]
    )
    for status, title in _TITLES.items():
        of_status = [f for f in findings if f.status == status]
        if of_status:
            sheet.heading(title)
        mark, style = _MARKS[status]
        for finding in of_status:
            sheet.item(mark, finding.found, style=style)
            if finding.limits:
                sheet.detail("limits", finding.limits)
            if finding.fix:
                sheet.detail("fix", finding.fix)
    return sheet.text()
