"""A comparison with a baseline, as outcomes beside rules and budgets."""

from __future__ import annotations

from ioprobe.config import CompareConfig
from ioprobe.diagnosis.budgets import show
from ioprobe.diagnosis.compare import MetricChange, compare
from ioprobe.diagnosis.types import Outcome
from ioprobe.run import Run


def judge_baseline(base: Run, new: Run, bands: CompareConfig, pipeline: str, *, force: bool = False) -> list[Outcome]:
    """Return one outcome per figure that both runs have; only the headline can be undecided.

    Raises:
        UsageError: the two are unlike, or share no figure.
    """
    result = compare(base, new, bands=bands, force=force)
    return [_outcome(change, change.name == result.headline, pipeline) for change in result.metrics]


def _outcome(change: MetricChange, headline: bool, pipeline: str) -> Outcome:
    status = {"slower": "failed", "faster": "passed", "same": "passed"}.get(change.verdict)
    if status is None:
        status = "undecided" if headline else "abstained"
    return Outcome(
        name=f"baseline:{change.name}",
        status=status,
        text=f"{change.name}: {show(change.name, change.base.value)} -> {show(change.name, change.new.value)}, "
        f"{describe_change(change)}",
        pipeline=pipeline,
        fix="run `ioprobe compare` on the two runs for the whole picture" if status == "failed" else "",
    )


def describe_change(change: MetricChange) -> str:
    """Return a change in words: its size, interval and what it amounts to."""
    if change.verdict == "not judged":
        return "too few values to judge"
    return f"{change.size} (95%: {change.interval}): {change.word}"
