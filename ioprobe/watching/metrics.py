"""OpenMetrics text for the textfile collector of a Prometheus node exporter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Reading(NamedTuple):
    """One loop at one moment."""

    loader: str
    rank: int
    steps: int
    """Since the loop began."""
    stall_share: float | None = None
    """Of the latest window [fraction]; None where there is none."""
    steps_per_s: float | None = None
    wait_s: float | None = None
    """Waited for batches since the loop began [s]; None where nobody adds it up."""
    loop_s: float | None = None
    """The loop's time since it began [s]."""
    stages: Mapping[str, float] | None = None
    """Shares of the workers' time in the latest window [fraction]."""


class _Metric(NamedTuple):
    name: str
    kind: str
    text: str
    value: Callable[[Reading], float | None]


_METRICS = (
    _Metric(
        "ioprobe_stall_ratio", "gauge", "Share of the loop's time spent waiting for a batch.", lambda r: r.stall_share
    ),
    _Metric("ioprobe_steps_per_second", "gauge", "Steps per second of the loop.", lambda r: r.steps_per_s),
    _Metric("ioprobe_steps", "counter", "Steps since the loop began.", lambda r: r.steps),
    _Metric(
        "ioprobe_wait_seconds", "counter", "Time spent waiting for a batch since the loop began.", lambda r: r.wait_s
    ),
    _Metric("ioprobe_loop_seconds", "counter", "Time in the loop since it began.", lambda r: r.loop_s),
)
_STAGES = "ioprobe_worker_time_ratio"


def openmetrics(readings: Sequence[Reading]) -> str:
    """Return readings as text.

    >>> print(openmetrics([Reading("train", 0, 30, stall_share=0.25)]).splitlines()[2])
    ioprobe_stall_ratio{loader="train",rank="0"} 0.25
    """
    lines: list[str] = []
    for metric in _METRICS:
        suffix = "_total" if metric.kind == "counter" else ""
        values = [(r, v) for r in readings if (v := metric.value(r)) is not None]
        if values:
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{suffix}{_labels(r)} {v:.10g}" for r, v in values]
    stages = [(r, name, share) for r in readings for name, share in (r.stages or {}).items()]
    if stages:
        lines += [f"# HELP {_STAGES} Share of the workers' time by stage.", f"# TYPE {_STAGES} gauge"]
        lines += [f"{_STAGES}{_labels(r, stage=name)} {share:.10g}" for r, name, share in stages]
    return "\n".join([*lines, "# EOF", ""])


def _labels(reading: Reading, **more: str) -> str:
    pairs = {"loader": reading.loader, "rank": str(reading.rank), **more}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def replace_text(path: Path, text: str) -> None:
    """Replace a file as a whole, so that a reader sees the old text or the new one.

    Raises:
        OSError: there is no writing there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def in_words(stages: Mapping[str, float], most: int = 3) -> str:
    """Return the largest shares in words, '' for none.

    >>> in_words({"decode": 0.6, "wait": 0.1, "read": 0.3})
    'decode 60%, read 30%, wait 10%'
    """
    parts: Iterable[tuple[str, float]] = sorted(stages.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{name} {100 * share:.0f}%" for name, share in parts)
