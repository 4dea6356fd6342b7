"""A verdict from stacks that were sampled from outside, or kept in a recording. Pure.

Both sides are heard: a starved loader has busy workers and a main process inside the loader, a starved step has idle
workers. Stacks hold no rates in samples, so there is no ladder here.
"""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from ioprobe.diagnosis.types import Diagnosis, StallShare, Verdict
from ioprobe.run import HostLoad, HotFrame, Limit, LoaderRun, Run, StackShares, Stage
from ioprobe.stats import Estimate
from ioprobe.units import format_share

STALLED = 0.10
"""From this share of wall time on, waiting for data is what bounds the job [fraction]."""
FREE = 0.05
"""Below this share the job does not wait for data [fraction]."""
COMMUNICATES = 0.20
"""From this share on, a job that does not wait for data is bound by communication [fraction]."""
FEWEST_STACKS = 30
_LITTLE_IDLE = 0.2
"""Workers that are idle less than this have no headroom, though the step does not wait yet [fraction]."""
_LATE = 0.15
"""A rank is late when it waits for data this much longer than any other [fraction of the time]."""
_LARGE_READ_BYTES = 512 << 10
_OF_WORKERS = {
    Stage.READ: Limit.STORAGE_LATENCY,
    Stage.STORAGE: Limit.STORAGE_LATENCY,
    Stage.DECODE: Limit.DECODE,
    Stage.TRANSFORM: Limit.TRANSFORM,
    Stage.COLLATE: Limit.COLLATE,
    Stage.TRANSPORT: Limit.IPC,
    Stage.LOCK: Limit.LOCK_CONTENTION,
    Stage.STARTUP: Limit.WORKER_STARTUP,
}
_IN_LOADER = {
    Stage.WAIT,
    Stage.TRANSPORT,
    Stage.SAMPLER,
    Stage.LOCK,
    Stage.READ,
    Stage.DECODE,
    Stage.TRANSFORM,
    Stage.COLLATE,
}
_BY_THREADS = (Stage.READ, Stage.DECODE, Stage.TRANSFORM, Stage.COLLATE)
_LOADER_STARTS = {"loader start", "worker start"}


def by_stall(stall: Estimate) -> Verdict:
    """Return what a stall share says; undecided where its interval reaches past both boundaries."""
    if stall.value >= STALLED:
        return Verdict.DATA_BOUND if stall.low >= FREE else Verdict.UNDECIDED
    if stall.value < FREE:
        return Verdict.COMPUTE_BOUND if stall.high <= STALLED else Verdict.UNDECIDED
    return Verdict.BALANCED if stall.high - stall.low <= STALLED else Verdict.UNDECIDED


def headroom(stall: Estimate | None) -> Estimate | None:
    """Return what removing the stall would gain at most: 1 / (1 - stall) - 1."""
    if stall is None or stall.high >= 1:
        return None
    value, low, high = (s / (1 - s) for s in (stall.value, stall.low, stall.high))
    return Estimate(value, low, high, stall.n)


def diagnose_stacks(run: Run) -> Diagnosis:
    """Return the verdict of sampled stacks, from both sides: the main process and the workers.

    Of several ranks the one that waits for data longest is judged: ranks step together, so the others wait for it.

    Raises:
        ValueError: the run has no stacks.
    """
    late = late_rank(run)
    if late is not None and late[0] is not run:
        found = _diagnose_one(late[0])
        return msgspec.structs.replace(found, evidence=f"rank {late[0].rank} is late: {found.evidence}; {late[1]}")
    return _diagnose_one(run)


def late_rank(run: Run) -> tuple[Run, str] | None:
    """Return the rank that waits for data while the others do not, with a clause on what that costs them.

    In a collective all wait for the last to come, so a share of time that only one rank spends in its loader is one
    that the others spend waiting for it, in a backward pass or wherever else their gradients meet.
    """
    stalls = [(stall.value, r) for r in (run, *run.ranks) if (stall := stack_stall(stacks_of(r, "main"))) is not None]
    if len(stalls) < 2:
        return None
    most, slowest = max(stalls, key=lambda s: s[0])
    others = [value for value, r in stalls if r is not slowest]
    if most - max(others) < _LATE:
        return None
    cost = most - sum(others) / len(others)
    return (
        slowest,
        f"the other ranks wait for data {format_share(max(others))} at most, and for it about {format_share(cost)}",
    )


def _diagnose_one(run: Run) -> Diagnosis:
    main = stacks_of(run, "main")
    if main is None and stacks_of(run, "worker") is None:
        raise ValueError("the run has no stacks")
    stall = stack_stall(main)
    if stall is None or main is None or stall.n < FEWEST_STACKS:
        seen = 0 if stall is None else stall.n
        text = f"{seen} stacks of the main process at work are too few; {FEWEST_STACKS} are needed"
        return verdict_of(Verdict.UNDECIDED, None, text, [], stall)
    transfer, communication = share_of(main, Stage.TRANSFER), share_of(main, Stage.COMMUNICATION)
    reasons = _stack_reasons(run)
    waits = f"the main process is inside the loader {format_share(stall.value)} of the time"
    verdict = by_stall(stall)
    idle = _idle(run)
    if idle is not None and idle > 0.5 and verdict is Verdict.DATA_BOUND and stall.low < STALLED:
        text = f"{waits}, though its workers are idle {format_share(idle)} of theirs: the two sides disagree"
        return verdict_of(Verdict.UNDECIDED, None, text, reasons, stall)
    if idle is not None and idle > 0.5 and verdict is Verdict.BALANCED:
        verdict = Verdict.COMPUTE_BOUND  # what is left is the cost of handing batches over
    if verdict is Verdict.DATA_BOUND:
        limit, because = stage_below(run)
        if (limit is Limit.OVERSUBSCRIPTION and _too_many_workers(run)) or few_deliver(run):
            verdict = Verdict.MISCONFIGURED
        return verdict_of(verdict, limit, f"{waits}; {because}" if because else waits, reasons, stall)
    if transfer >= STALLED and transfer > stall.value:
        text = f"the main process copies to the device {format_share(transfer)} of the time; {waits}"
        return verdict_of(Verdict.DATA_BOUND, Limit.HOST_TO_DEVICE, text, reasons, stall)
    if communication >= COMMUNICATES:
        text = f"the main process is in collectives {format_share(communication)} of the time; {waits}"
        return verdict_of(Verdict.COMMUNICATION_BOUND, Limit.COMMUNICATION, text, reasons, stall)
    if share_of(main, Stage.OTHER) > 0.5:
        text = (
            f"{format_share(share_of(main, Stage.OTHER))} of the main process's stacks are in no known stage; {waits}"
        )
        return verdict_of(Verdict.UNDECIDED, None, text, reasons, stall)
    if verdict is Verdict.COMPUTE_BOUND and idle is not None and idle < _LITTLE_IDLE:
        text = f"{waits}, and its workers are busy {format_share(1 - idle)} of theirs: they just keep up"
        return verdict_of(Verdict.BALANCED, None, text, reasons, stall)
    if verdict is Verdict.COMPUTE_BOUND:
        text = waits + (f"; its workers are idle {format_share(idle)} of theirs" if idle is not None else "")
        if (hot := _hottest(main, Stage.STEP)) is not None:
            reasons.insert(0, f"the step's hottest place is {_place(hot)}")
        return verdict_of(verdict, Limit.STEP, text, reasons, stall)
    return verdict_of(verdict, None, waits, reasons, stall)


def verdict_of(
    verdict: Verdict, limit: Limit | None, evidence: str, reasons: list[str], stall: Estimate | None
) -> Diagnosis:
    """Return the diagnosis of a recording, which knows a stall share at most: headroom follows from it."""
    return Diagnosis(
        verdict=verdict,
        limiting_stage=limit,
        evidence=evidence,
        reasons=reasons,
        stall_share=StallShare(measured=stall),
        headroom=headroom(stall),
    )


def _loaders(run: Run) -> list[LoaderRun]:
    return [loader for loader in run.loaders if loader.stacks or loader.processes]


def stacks_of(run: Run, role: str) -> StackShares | None:
    """Return the stacks of a role, of all loaders together."""
    found = [s for loader in _loaders(run) for s in loader.stacks if s.role == role]
    if len(found) < 2:
        return found[0] if found else None
    stages: Counter[Stage] = Counter()
    for shares in found:
        stages.update(shares.stages)
    hottest = sorted((h for s in found for h in s.hottest), key=lambda h: -h.samples)
    return StackShares(role=role, samples=sum(s.samples for s in found), stages=dict(stages), hottest=hottest)


def share_of(shares: StackShares | None, *stages: Stage) -> float:
    if shares is None or not shares.samples:
        return 0.0
    return sum(shares.stages.get(stage, 0) for stage in stages) / shares.samples


def stack_stall(main: StackShares | None) -> Estimate | None:
    """Return the share of the main process's time inside the loader, with a Wilson interval."""
    if main is None:
        return None
    of_loader = _loader_starts(main)
    total = main.samples - (main.stages.get(Stage.STARTUP, 0) - of_loader)  # imports are before the loop, not in it
    if total <= 0:
        return None
    inside = sum(main.stages.get(stage, 0) for stage in _IN_LOADER) + of_loader
    return wilson(inside, total)


def _loader_starts(main: StackShares) -> int:
    """Return the stacks in which workers are started or ended; other start-up (imports) is not the loader's."""
    found = sum(h.samples for h in main.hottest if h.stage is Stage.STARTUP and h.rule in _LOADER_STARTS)
    return min(main.stages.get(Stage.STARTUP, 0), found)


def wilson(hits: int, total: int) -> Estimate:
    """Return a share with its 95% Wilson interval.

    >>> wilson(0, 100).low, round(wilson(50, 100).high, 3)
    (0.0, 0.596)
    """
    z, p = 1.959964, hits / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return Estimate(p, max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half)), total)


def _idle(run: Run) -> float | None:
    workers = stacks_of(run, "worker")
    return None if workers is None else share_of(workers, Stage.WAIT)


def _hottest(shares: StackShares | None, *stages: Stage) -> HotFrame | None:
    return next((h for h in shares.hottest if h.stage in stages), None) if shares is not None else None


def _place(hot: HotFrame) -> str:
    return f"{hot.function} at {hot.file}:{hot.line}"


def stage_below(run: Run) -> tuple[Limit | None, str]:
    """Return which stage of the loader is to blame for the wait, and the clause that says why."""
    main, workers = stacks_of(run, "main"), stacks_of(run, "worker")
    limit, because = _of_main(main, None if workers is None else share_of(workers, Stage.WAIT))
    if limit is not None or workers is None:
        if limit in (Limit.IPC, Limit.WORKER_STARTUP) and (text := oversubscribed(run)):
            return Limit.OVERSUBSCRIPTION, f"{because}; {text}"
        return limit, because
    idle = share_of(workers, Stage.WAIT)
    limit, because = _of_threads(run, idle)
    if limit is not None:
        return limit, because
    counts = {s: n for s, n in workers.stages.items() if s in _OF_WORKERS}
    if not counts:
        return None, "its workers are idle, too"
    stage = max(counts, key=lambda s: counts[s])
    hot, busy = _hottest(workers, stage), workers.samples - workers.stages.get(Stage.WAIT, 0)
    because = f"the workers are busy {format_share(1 - idle)} of theirs, "
    because += f"{format_share(counts[stage] / busy)} of it in {stage.value}"
    because += f", hottest in {_place(hot)}" if hot is not None else ""
    because += f"; {text}" if (text := few_deliver(run)) else ""
    limit = _OF_WORKERS[stage]
    if limit is Limit.STORAGE_LATENCY and reads_large_blocks(run):
        limit = Limit.STORAGE_BANDWIDTH
    if stage not in (Stage.READ, Stage.LOCK) and (text := oversubscribed(run)):
        return Limit.OVERSUBSCRIPTION, f"{because}; {text}"
    return limit, because


def _of_main(main: StackShares | None, idle: float | None) -> tuple[Limit | None, str]:
    """Return what the main process itself does inside the loader, where that is more than wait.

    Receiving batches counts only where the workers are idle: busy ones answer late when asked for their memory.
    """
    if main is None:
        return None, ""
    inside = {s: main.stages.get(s, 0) for s in _IN_LOADER}
    inside[Stage.STARTUP] = _loader_starts(main)
    total = sum(inside.values())
    stage = max(inside, key=lambda s: inside[s])
    if not total or stage is Stage.WAIT or (stage is Stage.TRANSPORT and idle is not None and idle < 0.3):
        return None, ""
    hot = _hottest(main, stage)
    where = f", hottest in {_place(hot)}" if hot is not None else ""
    limit = Limit.SAMPLER if stage is Stage.SAMPLER else _OF_WORKERS[stage]
    return limit, f"{format_share(inside[stage] / total)} of it in {stage.value} in the main process itself{where}"


def _of_threads(run: Run, idle: float) -> tuple[Limit | None, str]:
    """Return the limit where a thread between idle workers and the loop is what is busy."""
    main, threads = stacks_of(run, "main"), stacks_of(run, "thread")
    if main is None or threads is None or idle < 0.3:
        return None, ""
    counts = {s: threads.stages.get(s, 0) for s in (Stage.TRANSFER, *_BY_THREADS)}
    if sum(counts.values()) < 0.5 * main.samples:
        return None, ""
    stage = max(counts, key=lambda s: counts[s])
    hot = _hottest(threads, stage)
    where = f", in {_place(hot)}" if hot is not None else ""
    text = (
        f"a thread between workers and loop is busy{where}, while the workers are idle {format_share(idle)} of theirs"
    )
    return (Limit.HOST_TO_DEVICE if stage is Stage.TRANSFER else Limit.IPC), text


def few_deliver(run: Run) -> str:
    """Return the clause that says that most workers never have anything to do; empty where they have."""
    workers = [p for loader in _loaders(run) for p in loader.processes if p.role == "worker" and p.states]
    idle = [
        sum(n for s, n in p.states.items() if "poll" in s or "select" in s) / sum(p.states.values()) for p in workers
    ]
    busy = sum(share < 0.5 for share in idle)
    if not busy or 2 * sum(share > 0.9 for share in idle) < len(idle):
        return ""
    return f"only {busy} of {len(idle)} workers work at all: fewer shards than workers, it seems"


def reads_large_blocks(run: Run) -> bool:
    """Return whether the workers read in blocks so large that bandwidth, not latency, is what they wait for."""
    workers = [p for loader in run.loaders for p in loader.processes if p.role == "worker"]
    ops = sum(p.read_ops or 0 for p in workers)
    return ops > 0 and sum(p.read_bytes or 0 for p in workers) / ops >= _LARGE_READ_BYTES


def _num_workers(run: Run) -> int:
    return sum(loader.settings.num_workers for loader in _loaders(run) if loader.settings is not None)


def _too_many_workers(run: Run) -> bool:
    load = _load(run)
    return load is not None and _num_workers(run) > 2 * load.cores


def oversubscribed(run: Run) -> str:
    """Return the clause that says that the job's own workers are too many for the cores; empty where they are not."""
    load = _load(run)
    if load is None or load.own_cores + load.other_cores < 0.9 * load.cores or not _too_many_workers(run):
        return ""
    return f"{_num_workers(run)} workers share {load.cores:.0f} cores, none of which is free"


def _load(run: Run) -> HostLoad | None:
    return next((loader.load for loader in _loaders(run) if loader.load is not None), None)


def _stack_reasons(run: Run) -> list[str]:
    reasons = []
    for role, name in (("worker", "workers"), ("main", "main process")):
        shares = stacks_of(run, role)
        if shares is None:
            continue
        top = sorted(shares.stages.items(), key=lambda item: -item[1])
        parts = [f"{s.value} {format_share(n / shares.samples)}" for s, n in top[:6] if n >= 0.005 * shares.samples]
        reasons.append(f"{name}: {', '.join(parts)} of {shares.samples} stacks")
    load = _load(run)
    if load is not None and load.other_cores + load.steal_cores > 0.25 * load.cores:
        others = load.other_cores + load.steal_cores
        reasons.append(f"processes outside the job take {others:.1f} of {load.cores:.0f} cores from it")
    if share_of(stacks_of(run, "main"), Stage.CHECKPOINT) >= FREE:
        reasons.append(
            f"checkpoints take {format_share(share_of(stacks_of(run, 'main'), Stage.CHECKPOINT))} of the time"
        )
    if not any(loader.stacks for loader in run.loaders if loader.settings and loader.settings.num_workers):
        reasons.append("no DataLoader worker was seen: batches are made in the main process or by other means")
    return reasons
