"""Budgets over a run: passed, failed or undecided by the interval of what was measured."""

from __future__ import annotations

import math

import msgspec

from ioprobe.config import BudgetsConfig
from ioprobe.diagnosis.metrics import Metric, metrics_of
from ioprobe.diagnosis.types import Outcome
from ioprobe.run import Run
from ioprobe.stats import Estimate
from ioprobe.units import format_bytes, format_count, format_seconds, format_share

# A figure that was seen once (time to the first batch, memory) has no interval; this much either way is doubt.
SINGLE_DOUBT = 0.08


def judge_budgets(budgets: BudgetsConfig, run: Run, *, pipeline: str = "") -> list[Outcome]:
    """Return one outcome per budget that is set.

    A budget passes when the whole 95% interval keeps it, fails when the whole interval breaks it, and is undecided
    when the interval covers the limit or the run did not measure the figure.
    """
    metrics = metrics_of(run)
    failures = [m.failure for m in run.loaders if m.failure] + list(run.failures)
    return [
        _judge(name, limit, metrics.get(name), failures[0].message if failures else "", pipeline)
        for name, limit in msgspec.structs.asdict(budgets).items()
        if limit is not None
    ]


def _judge(name: str, limit: float, metric: Metric | None, failure: str, pipeline: str) -> Outcome:
    if metric is None:
        why = f": the measurement broke ({failure})" if failure else " in this run"
        return Outcome(name=name, status="undecided", text=f"{name} was not measured{why}", pipeline=pipeline)
    estimate = metric.estimate
    if estimate.n <= 1:
        doubt = SINGLE_DOUBT * abs(estimate.value)
        estimate = Estimate(estimate.value, estimate.value - doubt, estimate.value + doubt, 1)
    if metric.better == "lower":
        status = "passed" if estimate.high <= limit else "failed" if estimate.low > limit else "undecided"
        relation = "at most"
    else:
        status = "passed" if estimate.low >= limit else "failed" if estimate.high < limit else "undecided"
        relation = "at least"
    seen = f"{show(name, estimate.value)} ({_range(name, estimate)})"
    text = f"{name} is {seen}; the budget is {relation} {show(name, limit)}"
    return Outcome(name=name, status=status, text=text, pipeline=pipeline, fix=_fix(name, status, run_short=estimate.n))


def _fix(name: str, status: str, run_short: int) -> str:
    if status == "failed":
        return "run `ioprobe analyze` on this target to see which stage is to blame"
    if status == "undecided":
        return f"measure for longer ({format_count(run_short)} values so far), or leave the budget more room"
    return ""


def _range(name: str, estimate: Estimate) -> str:
    if estimate.n <= 1:
        return "seen once"
    high = show(name, estimate.high) if math.isfinite(estimate.high) else "no upper bound"
    return f"95%: {show(name, estimate.low)} to {high}"


def show(name: str, value: float) -> str:
    """Return a figure in the unit that its name says.

    >>> show("stall_share", 0.05), show("memory", 1 << 30), show("samples_per_s", 1234.0), show("p99_wait_ms", 3.0)
    ('5.0%', '1.0 GiB', '1,234 samples/s', '3 ms')
    """
    if name in ("stall_share", "au"):
        return format_share(value)
    if name == "memory":
        return format_bytes(value)
    if name.endswith("_ms"):
        return f"{format_count(value)} ms"
    if name == "tokens_per_s":
        return f"{format_count(value)} tokens/s"
    if name.endswith("samples_per_s"):
        return f"{format_count(value)} samples/s"
    return format_seconds(max(0.0, value))
