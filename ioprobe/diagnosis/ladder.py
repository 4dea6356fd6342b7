"""The ladder: the rate that each stage could sustain alone, with the lowest rung marked."""

from __future__ import annotations

import math

from ioprobe.diagnosis.costs import BUSY_WORKERS
from ioprobe.diagnosis.evidence import Evidence
from ioprobe.diagnosis.types import Rung
from ioprobe.run import Stage
from ioprobe.stats import Estimate
from ioprobe.units import format_bandwidth, format_seconds, format_share

_LEAST_SHARE = 0.01
"""Of the step: less is no rung of its own [fraction]."""


def build_ladder(evidence: Evidence) -> list[Rung]:
    """Return the rungs, bottom to top; what was not measured stays with ``samples_per_s=None``."""
    rungs = [_storage(evidence), *_worker_rungs(evidence), *_main_rungs(evidence)]
    alone, loop, step = evidence.alone, evidence.loop, evidence.step
    rungs.append(
        Rung(
            stage=Stage.LOADER,
            samples_per_s=alone.samples_per_s if alone else None,
            detail=f"drained alone, {alone.n} batches" if alone else "",
        )
    )
    rungs += _step_rungs(evidence)
    detail = ""
    if loop is not None:
        detail = f"loader and step coupled, {loop.n} batches"
        if step is not None and not loop.whole_epochs:
            detail += ", epoch edges left out"
    rungs.append(Rung(stage=Stage.LOOP, samples_per_s=loop.samples_per_s if loop else None, detail=detail))
    return _mark_lowest(rungs, evidence)


def _mark_lowest(rungs: list[Rung], evidence: Evidence) -> list[Rung]:
    candidates = [r for r in rungs if r.samples_per_s is not None and r.stage is not Stage.LOOP]
    if not candidates:
        return rungs
    lowest = min(candidates, key=lambda r: r.samples_per_s.value if r.samples_per_s else float("inf"))
    # The loader as a whole is as slow as its slowest part: name the part where it explains the whole.
    if lowest.stage is Stage.LOADER and lowest.samples_per_s is not None:
        other = {Stage.LOADER, Stage.STEP, Stage.COMMUNICATION}
        costs = evidence.costs
        if costs is not None and evidence.workers and costs.idle_share < BUSY_WORKERS:
            other.add(Stage.TRANSPORT)  # receiving then waits for a busy worker to pass its descriptors on
        near = [
            r
            for r in candidates
            if r.stage not in other
            and r.samples_per_s is not None
            and r.samples_per_s.value <= 1.15 * lowest.samples_per_s.value
        ]
        lowest = near[0] if near else lowest
    return [Rung(stage=r.stage, samples_per_s=r.samples_per_s, lowest=r is lowest, detail=r.detail) for r in rungs]


def _storage(evidence: Evidence) -> Rung:
    best = None
    for job in evidence.run.storage:
        if job.samples and job.window_s > 0 and (best is None or job.cache_state == "cold"):
            best = job if best is None or best.cache_state != "cold" else best
    if best is None or not best.samples:
        return Rung(stage=Stage.STORAGE, samples_per_s=None)
    rate = best.samples / best.window_s
    spread = _spread(best.series_bytes_per_s)
    return Rung(
        stage=Stage.STORAGE,
        samples_per_s=Estimate(rate, rate * (1 - spread), rate * (1 + spread), max(1, best.ops)),
        detail=f"{best.name}: {format_bandwidth(best.bytes_read / best.window_s)}, {best.cache_state} cache",
    )


def _spread(series: list[float]) -> float:
    from ioprobe import stats

    if len(series) < 3 or sum(series) <= 0:
        return 0.0
    return min(1.0, stats.mean(series).relative_halfwidth)


def _worker_rungs(evidence: Evidence) -> list[Rung]:
    """Read, decode (with transform) and collate: what the workers could do if they did only that."""
    costs = evidence.costs
    samples = _samples(evidence)
    if costs is None or samples is None:
        return [Rung(stage=s, samples_per_s=None) for s in (Stage.READ, Stage.DECODE, Stage.COLLATE)]
    workers = max(1, costs.delivering if costs.delivering < costs.workers else costs.workers)
    spread = min(0.5, 1.0 / costs.batches**0.5)
    work = max((Stage.DECODE, Stage.TRANSFORM), key=lambda stage: costs.fetch_s.get(stage, 0.0))
    parts = {
        Stage.READ: (
            costs.fetch_s.get(Stage.READ, 0.0) + costs.fetch_s.get(Stage.LOCK, 0.0),
            costs.fetch_blocked_s.get(Stage.READ, 0.0) + costs.fetch_blocked_s.get(Stage.LOCK, 0.0),
        ),
        work: (
            costs.fetch_s.get(Stage.DECODE, 0.0) + costs.fetch_s.get(Stage.TRANSFORM, 0.0),
            costs.fetch_blocked_s.get(Stage.DECODE, 0.0) + costs.fetch_blocked_s.get(Stage.TRANSFORM, 0.0),
        ),
        Stage.COLLATE: (
            costs.collate_s - costs.collate_runq_s,
            max(0.0, costs.collate_s - costs.collate_cpu_s - costs.collate_runq_s),
        ),
    }
    rungs = []
    for stage, (seconds, blocked) in parts.items():
        if seconds < 0.005 * costs.busy_s:
            rungs.append(Rung(stage=stage, samples_per_s=None, detail="too little to tell"))
            continue
        cpu = max(0.0, seconds - blocked)
        # Each worker does one batch at a time; CPU work cannot use more cores than there are.
        per_batch = max(seconds / workers, cpu / evidence.worker_cores)
        rate = samples / per_batch
        rungs.append(
            Rung(
                stage=stage,
                samples_per_s=Estimate(rate, rate * (1 - spread), rate * (1 + spread), costs.batches),
                detail=f"{format_seconds(seconds / samples)} a sample{_both(stage, costs.fetch_s)}, "
                f"{format_share(cpu / seconds)} CPU, {workers} worker{'s' if workers != 1 else ''}",
            )
        )
    return rungs


def _both(stage: Stage, fetch_s: dict[Stage, float]) -> str:
    """Say that decoding and transforming share a rung, where both take time."""
    pair = (Stage.DECODE, Stage.TRANSFORM)
    total = sum(fetch_s.get(s, 0.0) for s in pair)
    if stage not in pair or total <= 0 or min(fetch_s.get(s, 0.0) for s in pair) < 0.05 * total:
        return ""
    return f", {pair[1 - pair.index(stage)].value} included"


def _main_rungs(evidence: Evidence) -> list[Rung]:
    alone, samples = evidence.alone or evidence.loop, _samples(evidence)
    rungs = []
    for stage, share in (
        (Stage.SAMPLER, alone.sampler_share if alone else None),
        (Stage.TRANSPORT, alone.transport_share if alone else None),
    ):
        if alone is None or samples is None or not share or share < 0.002:
            if stage is Stage.TRANSPORT:
                rungs.append(Rung(stage=stage, samples_per_s=None))
            continue
        seconds = share * alone.cycle_s
        rate = samples / seconds
        wide = min(0.5, alone.samples_per_s.relative_halfwidth + 0.02)
        rungs.append(
            Rung(
                stage=stage,
                samples_per_s=Estimate(rate, rate * (1 - wide), rate * (1 + wide), alone.n),
                detail=f"{format_seconds(seconds)} a batch in the main process",
            )
        )
    return rungs


def _step_rungs(evidence: Evidence) -> list[Rung]:
    step = evidence.step
    if step is None:
        return [Rung(stage=Stage.STEP, samples_per_s=None)]
    rungs = []
    if step.transfer_share and step.transfer_share > _LEAST_SHARE:
        rungs.append(
            Rung(
                stage=Stage.TRANSFER,
                samples_per_s=step.samples_per_s.scaled(1 / step.transfer_share),
                detail=f"{format_share(step.transfer_share)} of the step, exposed",
            )
        )
    seen = step.communication
    if seen is not None and seen.share.value > _LEAST_SHARE:
        rungs.append(
            Rung(
                stage=Stage.COMMUNICATION,
                samples_per_s=_rate_of_share(step.samples_per_s, seen.share),
                detail=f"{seen.amount} of the step is {seen.text}",
            )
        )
    kind = "emulated, a constant sleep" if step.emulated else "on a resident batch"
    if step.coupled:
        kind = "within the loop, the loader at work beside it"
    rungs.append(
        Rung(
            stage=Stage.STEP,
            samples_per_s=step.samples_per_s,
            detail=f"{format_seconds(step.seconds)} a step, {kind}",
        )
    )
    return rungs


def _rate_of_share(step: Estimate, share: Estimate) -> Estimate:
    """Return the rate of a part of the step if it were alone; its interval holds that of the step and of the share."""
    value = step.value / share.value
    low = math.hypot(1 - step.low / step.value, 1 - share.value / share.high)
    # A share that may be next to nothing bounds nothing from above.
    high = math.hypot(step.high / step.value - 1, share.value / max(share.low, 0.1 * share.value) - 1)
    return Estimate(value, value * max(0.0, 1 - low), value * (1 + high), min(step.n, share.n))


def _samples(evidence: Evidence) -> float | None:
    for seen in (evidence.alone, evidence.loop):
        if seen is not None:
            return max(1.0, seen.samples_per_batch)
    return None
