"""Steps at several settings, side by side: rates, latency, work, and what binds each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ioprobe import stats
from ioprobe.diagnosis.utilization import Utilization, step_utilization
from ioprobe.model.quality import quality_caveat
from ioprobe.run import Caveat, Host, StepRun
from ioprobe.stats import Estimate


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: what was measured."""

    settings: dict[str, str]
    """What differs from the step as it was written; empty for the step itself."""
    step: StepRun
    loader_samples_per_s: Estimate | None = None
    """The loader alone at this batch size; None where there is none, or it was not measured."""


class StepTable(msgspec.Struct, frozen=True, kw_only=True):
    """What ``ioprobe step`` found."""

    source: str
    """Of the step."""
    created_at: str
    version: str
    host: Host
    rows: list[StepRow]
    unit: str = "samples"
    complete: bool = True
    """False when it was interrupted."""


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a row means."""

    samples_per_s: Estimate | None
    """Work over time, pauses included."""
    steps_per_s: Estimate | None
    """With accumulation these are micro-steps."""
    updates_per_s: Estimate | None
    """Optimizer steps; None where none was seen."""
    tokens_per_s: Estimate | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    cores: float | None
    """Cores of the host that the step keeps busy."""
    utilization: Utilization | None
    binding: str | None
    """The slower: ``step`` or ``loader``; ``either`` where the intervals overlap; None without a loader."""


def figures(row: StepRow, host: Host) -> StepFigures:
    """Return a row's figures; None for what it does not hold."""
    step = row.step
    times = step.durations_s
    if not times:
        return StepFigures(
            samples_per_s=None,
            steps_per_s=None,
            updates_per_s=None,
            tokens_per_s=None,
            latency_p50_s=None,
            latency_p95_s=None,
            cores=None,
            utilization=None,
            binding=None,
        )
    steps = stats.periodic_mean(times).inverse()
    samples = steps.scaled(step.samples_per_step)
    return StepFigures(
        samples_per_s=samples,
        steps_per_s=steps,
        updates_per_s=None if step.updates_per_step is None else steps.scaled(step.updates_per_step),
        tokens_per_s=None if step.tokens_per_step is None else steps.scaled(step.tokens_per_step),
        latency_p50_s=stats.percentile(times, 0.5),
        latency_p95_s=stats.percentile(times, 0.95),
        cores=sum(step.cpu_s) / sum(times) if step.cpu_s else None,
        utilization=step_utilization(step, host),
        binding=_binding(samples, row.loader_samples_per_s),
    )


def _binding(step: Estimate, loader: Estimate | None) -> str | None:
    if loader is None:
        return None
    if step.high < loader.low:
        return "step"
    return "loader" if loader.high < step.low else "either"


def caveats(table: StepTable) -> list[Caveat]:
    """Return what to read with care, over all rows."""
    found: dict[str, Caveat] = {}
    for row in table.rows:
        seen = figures(row, table.host)
        if seen.utilization is not None:
            found |= {c.code: c for c in seen.utilization.caveats}
        if seen.steps_per_s is not None and seen.steps_per_s.relative_halfwidth > 0.1:
            found["noisy-step"] = Caveat(
                "noisy-step",
                f"the step's mean is known to {100 * seen.steps_per_s.relative_halfwidth:.0f}% only",
                "measure for longer with --seconds, and look for other load with 'ioprobe doctor'",
            )
    if _global_batch_changes(table.rows):
        found["global-batch"] = quality_caveat("rows differ in the samples that one optimizer step sees")
    bound = _turns(table)
    if bound:
        found["turns-data-bound"] = bound
    return list(found.values())


def _global_batch_changes(rows: Sequence[StepRow]) -> bool:
    """Whether optimizer steps see different numbers of samples: as counted, else as asked for."""
    sizes = set()
    for row in rows:
        if row.step.durations_s:
            seen = row.step.updates_per_step
            micro_steps = int(row.settings.get("accum", "1")) if seen is None else 1 / seen
            sizes.add(round(row.step.samples_per_step * micro_steps))
    return len(sizes) > 1


def _turns(table: StepTable) -> Caveat | None:
    """Rows whose step is faster than the loader, where the first row's is not."""
    if not table.rows or figures(table.rows[0], table.host).binding != "step":
        return None
    faster = [row for row in table.rows[1:] if figures(row, table.host).binding == "loader"]
    if not faster:
        return None
    names = "; ".join(", ".join(f"{k}={v}" for k, v in row.settings.items()) for row in faster)
    return Caveat(
        "turns-data-bound",
        f"the step gets faster than the loader and the job data-bound at {names}: the gain stops at the loader's rate",
        "ioprobe analyze with that step",
    )
