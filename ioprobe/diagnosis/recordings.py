"""A verdict from recordings: traces divided into shares, stacks sampled from outside, or the kernel's view alone. Pure.

None of them holds rates in samples, so there is no ladder here: the verdict rests on who waits for whom. A starved
loader has busy workers and a main process that waits in ``next()``; a starved step has idle workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ioprobe.diagnosis.recorded_advice import advise_recording
from ioprobe.diagnosis.recorded_processes import diagnose_processes
from ioprobe.diagnosis.recorded_stacks import (
    COMMUNICATES,
    STALLED,
    by_stall,
    diagnose_stacks,
    late_rank,
    share_of,
    stack_stall,
    stacks_of,
    stage_below,
    verdict_of,
)
from ioprobe.diagnosis.types import Diagnosis, RankSummary, Report, StallShare, Verdict
from ioprobe.run import Limit, Partition, Run, Stage
from ioprobe.stats import Estimate, ratio
from ioprobe.units import format_seconds, format_share

__all__ = [
    "diagnose_partition",
    "diagnose_processes",
    "diagnose_recording",
    "diagnose_stacks",
    "rank_summaries",
    "report_recording",
    "shares_of",
]

_LATE = 0.02
"""A rank is late when the others wait this share of their window for it [fraction]."""


def diagnose_recording(run: Run) -> Diagnosis | None:
    """Return the verdict of a run of kind ``profile`` or ``attach``; None where it holds nothing to judge by."""
    if run.partitions:
        return diagnose_partition(run)
    if any(loader.stacks for loader in run.loaders):
        return diagnose_stacks(run)
    if any(loader.processes for loader in run.loaders):
        return diagnose_processes(run)
    return None


def shares_of(partitions: Sequence[Partition]) -> dict[str, float]:
    """Return the shares ``compute communication transfer data_stall other_idle`` of partitions, weighted by window.

    Raises:
        ValueError: the windows sum to nothing.
    """
    window = sum(p.window_s for p in partitions)
    if window <= 0:
        raise ValueError("the partitions cover no time")
    return {
        "compute": sum(p.compute_s for p in partitions) / window,
        "communication": sum(p.communication_s for p in partitions) / window,
        "transfer": sum(p.transfer_s for p in partitions) / window,
        "data_stall": sum(p.data_stall_s for p in partitions) / window,
        "other_idle": sum(p.other_idle_s for p in partitions) / window,
    }


def diagnose_partition(run: Run) -> Diagnosis:
    """Return the verdict of traces; the stage comes from the workers' stacks where there are some.

    Raises:
        ValueError: the run has no partitions.
    """
    if not run.partitions:
        raise ValueError("the run has no partitions")
    parts = run.partitions
    shares = shares_of(parts)
    stall = _trace_stall(parts)
    late = _latest(parts)
    verdict, limit, evidence = _judge(shares, stall, parts)
    reasons = _trace_reasons(parts, shares)
    if late is not None:
        reasons.insert(0, late[1])
        own, others = _stall_of(parts, late[0]), _stall_of([p for p in parts if p.rank != late[0]])
        if verdict is Verdict.COMMUNICATION_BOUND and own is not None and own > max(STALLED, 2 * (others or 0.0)):
            verdict, limit = Verdict.DATA_BOUND, None
            evidence = f"the ranks wait for rank {late[0]}, which waits for data {format_share(own)} of the time"
    if verdict is Verdict.DATA_BOUND and limit is None:
        limit, because = stage_below(run)
        evidence += f"; {because}" if because else ""
        if limit is None:
            reasons.append(
                "which stage of the loader is slow, a trace cannot tell: workers are not in it; "
                "pass a py-spy recording of the same job beside it, or attach to it"
            )
    return verdict_of(verdict, limit, evidence, reasons, stall)


def _judge(shares: dict[str, float], stall: Estimate, parts: Sequence[Partition]) -> tuple[Verdict, Limit | None, str]:
    where = "the host thread" if all(p.device == "cpu" for p in parts) else "the accelerator"
    seen = f"{where} is idle inside the DataLoader {format_share(stall.value)} of the time"
    rest = f"computes {format_share(shares['compute'])}, communicates exposed {format_share(shares['communication'])}"
    if sum(p.window_s for p in parts) <= 0 or all(p.steps < 2 for p in parts):
        return Verdict.UNDECIDED, None, f"the trace covers too little: fewer than two steps are marked; {seen}"
    communication, transfer = shares["communication"], shares["transfer"]
    if communication >= COMMUNICATES and communication > stall.value and communication > transfer:
        return (
            Verdict.COMMUNICATION_BOUND,
            Limit.COMMUNICATION,
            f"{rest}; {seen}".replace("computes", f"{where} computes"),
        )
    if transfer >= STALLED and transfer > stall.value:
        text = f"copies from host to device that nothing hides take {format_share(transfer)} of the time; {seen}"
        return Verdict.DATA_BOUND, Limit.HOST_TO_DEVICE, text
    verdict = by_stall(stall)
    limit = Limit.STEP if verdict is Verdict.COMPUTE_BOUND else None
    return verdict, limit, f"{seen}, {rest}"


def _trace_stall(parts: Sequence[Partition]) -> Estimate:
    """Return the data stall's share, its interval from the spread between (groups of) steps."""
    shortest = min(len(p.steps_s) for p in parts)
    if shortest >= 2 and all(len(p.stalls_s) == len(p.steps_s) for p in parts):
        # Ranks step together: their i-th steps are one observation. Traces are short; seven groups keep the interval
        # honest about drift without widening it for want of groups.
        groups = min(shortest, 7)
        stalls = np.sum([[g.sum() for g in np.array_split(p.stalls_s, groups)] for p in parts], axis=0)
        steps = np.sum([[g.sum() for g in np.array_split(p.steps_s, groups)] for p in parts], axis=0)
        if steps.sum() > 0:
            found = ratio(stalls, steps)
            count = sum(len(p.steps_s) for p in parts)
            return Estimate(found.value, max(0.0, found.low), min(1.0, found.high), count)
    value = shares_of(parts)["data_stall"]
    return Estimate(value, value, value, 1)


def _stall_of(parts: Sequence[Partition], rank: int | None = None) -> float | None:
    mine = [p for p in parts if rank is None or p.rank == rank]
    window = sum(p.window_s for p in mine)
    return None if window <= 0 else sum(p.data_stall_s for p in mine) / window


def _latest(parts: Sequence[Partition]) -> tuple[int, str] | None:
    """Return the rank that keeps the others waiting, and the sentence that says so."""
    kept = {p.rank: p.hidden_s["kept_waiting"] for p in parts if "kept_waiting" in p.hidden_s}
    if len(kept) < 2:
        return None
    rank = max(kept, key=lambda r: kept[r])
    window = float(np.mean([p.window_s for p in parts]))
    if window <= 0 or kept[rank] < _LATE * window or kept[rank] < 2 * sorted(kept.values())[-2]:
        return None
    own, others = _stall_of(parts, rank), _stall_of([p for p in parts if p.rank != rank])
    text = (
        f"rank {rank} is late: each other rank waits {format_seconds(kept[rank])} for it in collectives, "
        f"{format_share(kept[rank] / window)} of the window; its own data stall is {format_share(own)}, "
        f"theirs {format_share(others)}"
    )
    return rank, text


def rank_summaries(run: Run) -> list[RankSummary]:
    """Return one line for each rank of a job recorded on several; empty for one."""
    ranks = sorted({p.rank for p in run.partitions})
    if len(ranks) < 2:
        return _stack_ranks(run)
    late = _latest(run.partitions)
    found = []
    for rank in ranks:
        parts = [p for p in run.partitions if p.rank == rank]
        waited = sum(p.hidden_s.get("waiting_for_ranks", 0.0) for p in parts)
        window = sum(p.window_s for p in parts)
        is_late = late is not None and late[0] == rank
        because = late[1] if late is not None and is_late else ""
        if not because and waited > 0 and window > 0:
            because = f"waits {format_seconds(waited)} for later ranks, {format_share(waited / window)} of its window"
        host = run.host.hostname
        stall = _trace_stall(parts)
        found.append(
            RankSummary(rank=rank, host=host, samples_per_s=None, stall_share=stall, late=is_late, because=because)
        )
    return found


def _stack_ranks(run: Run) -> list[RankSummary]:
    if not run.ranks:
        return []
    everyone = [run, *run.ranks]
    late, because = _late_by_stacks(everyone)
    return [
        RankSummary(
            rank=r.rank,
            host=r.host.hostname,
            samples_per_s=None,
            stall_share=stack_stall(stacks_of(r, "main")),
            late=r is late,
            because=because if r is late else "",
        )
        for r in everyone
    ]


def _late_by_stacks(everyone: list[Run]) -> tuple[Run | None, str]:
    waits = late_rank(everyone[0])
    if waits is not None:
        return waits
    # None waits for data: the late one is the rank that the others wait for in collectives, and communicates least.
    shares = [share_of(stacks_of(r, "main"), Stage.COMMUNICATION) for r in everyone]
    least, most = min(shares), max(shares)
    if most - least <= STALLED or shares.count(least) > 1:
        return None, ""
    text = f"in collectives {format_share(least)} of the time, the others up to {format_share(most)}"
    return everyone[shares.index(least)], text


def _trace_reasons(parts: Sequence[Partition], shares: dict[str, float]) -> list[str]:
    window = sum(p.window_s for p in parts)
    reasons = []
    loader = sum(p.hidden_s.get("loader", 0.0) for p in parts)
    stall = sum(p.data_stall_s for p in parts)
    if loader > stall + 0.01 * window:
        reasons.append(
            f"the host is inside the DataLoader {format_share(loader / window)} of the time; "
            f"{format_share((loader - stall) / window)} of it is hidden under device work and costs nothing"
        )
    hidden = sum(p.hidden_s.get("communication", 0.0) for p in parts) - sum(p.communication_s for p in parts)
    if hidden > 0.01 * window:
        reasons.append(f"another {format_share(hidden / window)} of communication is hidden under compute")
    pageable = sum(p.hidden_s.get("pageable", 0.0) for p in parts)
    if pageable > 0:
        reasons.append(
            f"host-to-device copies come from pageable memory ({format_seconds(pageable)}): pin_memory=True and "
            "non_blocking=True let them overlap with compute"
        )
    if shares["other_idle"] >= 0.3:
        reasons.append(
            f"idle outside the DataLoader {format_share(shares['other_idle'])} of the time: Python between operators, "
            "launches of small kernels, logging or synchronisation, none of it data"
        )
    return reasons


def report_recording(run: Run, run_path: str | None = None, page: str | None = None) -> Report:
    """Return the report of a run of kind ``profile`` or ``attach``.

    Args:
        run: The run; its ranks are summed up, not shown one by one.
        run_path: Where the run file lies.
        page: Where the page lies.
    """
    diagnosis = diagnose_recording(run)
    if diagnosis is None:
        text = "nothing was recorded that says who waits for whom"
        nothing = StallShare()
        diagnosis = Diagnosis(verdict=Verdict.UNDECIDED, limiting_stage=None, evidence=text, stall_share=nothing)
    loader = run.loaders[0] if run.loaders else None
    return Report(
        kind=run.kind,
        created_at=run.created_at,
        version=run.version,
        complete=run.complete,
        target=run.workload.target,
        command=run.workload.command,
        run=run_path,
        page=page,
        host=run.host,
        settings=loader.settings if loader is not None else None,
        diagnosis=diagnosis,
        advice=advise_recording(run, diagnosis),
        partition=shares_of(run.partitions) if run.partitions else None,
        partitions=run.partitions,
        ranks=rank_summaries(run),
        caveats=run.caveats,
        failures=run.failures,
        metrics=_metrics(run),
    )


def _metrics(run: Run) -> dict[str, float]:
    found: dict[str, float] = {}
    for role in ("main", "worker"):
        shares = stacks_of(run, role)
        if shares is not None and shares.samples:
            found[f"{role}_stacks"] = float(shares.samples)
            found |= {f"{role}_{stage.value}_share": n / shares.samples for stage, n in shares.stages.items()}
    steps = [s for p in run.partitions for s in p.steps_s if p.steps]
    if steps:
        found["step_s"] = float(np.mean(steps))
    workers = [p for loader in run.loaders for p in loader.processes if p.role == "worker"]
    window = sum(p.window_s for p in workers)
    if window > 0:
        found["worker_cpu_cores"] = sum(p.cpu_s for p in workers) / window
        if all(p.read_bytes is not None for p in workers):
            longest = max(p.window_s for p in workers)
            found["workers_read_bytes_per_s"] = sum(p.read_bytes or 0 for p in workers) / longest
    return found
