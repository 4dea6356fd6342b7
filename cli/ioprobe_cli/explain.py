"""Why stacks were put in a stage, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ioprobe.live.attach import Stuck
    from ioprobe.live.stacks.shares import Explained

_MOST = 40


def explain_stacks(rows: Sequence[Explained]) -> str:
    """Return one line for each kind of stack: role, stage, count, rule, the user's frame, the innermost frame."""
    from ioprobe.report.words import clean

    if not rows:
        return "No stacks to explain: traces are divided by categories of events, not by rules."
    lines = [f"{'role':7}{'stage':14}{'stacks':>7}  {'rule':34}place; innermost frame"]
    for row in rows[:_MOST]:
        place = f"{row.frame.function} {row.frame.file}:{row.frame.line}"
        if row.innermost[:3] != row.frame[:3]:
            place += f"; {row.innermost.function} {row.innermost.file}:{row.innermost.line}"
        lines.append(f"{row.role:7}{row.stage.value:14}{row.samples:7}  {clean(row.rule):34}{clean(place)}")
    if len(rows) > _MOST:
        lines.append(f"... and {len(rows) - _MOST} more kinds of stacks")
    return "\n".join(lines)


def standing_as_text(standing: Sequence[Stuck]) -> str:
    """Return where each thread stands, with its stack, innermost frame first."""
    from ioprobe.report.words import clean

    lines = []
    for one in standing:
        stack = one.stack
        lines.append(
            f"{one.role} {stack.pids[-1]} {clean(stack.thread) or 'unnamed thread'}: {one.stage.value} ({one.rule})"
        )
        lines += [f"    {clean(f.function)} ({clean(f.file)}:{f.line})" for f in stack.frames]
    return "\n".join(lines) + "\n" if lines else "No thread runs Python code.\n"


def standing_as_json(standing: Sequence[Stuck]) -> str:
    """Return the same as a JSON list."""
    import json

    rows = [
        {
            "role": one.role,
            "pid": one.stack.pids[-1],
            "thread": one.stack.thread,
            "stage": one.stage.value,
            "rule": one.rule,
            "frames": [{"function": f.function, "file": f.file, "line": f.line} for f in one.stack.frames],
        }
        for one in standing
    ]
    return json.dumps(rows, indent=2) + "\n"
