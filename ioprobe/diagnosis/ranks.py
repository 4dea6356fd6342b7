"""Several ranks of one job, timed batch by batch: who is late, what that costs the others, and whose loop decides.

Ranks meet in every backward pass or collective, which ends for all at about the same time. The last to come stays the
shortest; what the others stay beyond that, they wait for it. Only durations are compared, so clocks need not agree.
Ranks that do not meet (the step is emulated, or does not communicate) run each at its own pace; in training the slowest
one would set the pace of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ioprobe.diagnosis.evidence import gather
from ioprobe.diagnosis.recordings import rank_summaries as recorded_summaries
from ioprobe.diagnosis.steady import Steady, steady
from ioprobe.diagnosis.types import RankSummary
from ioprobe.run import Caveat, Run
from ioprobe.units import format_bandwidth, format_count, format_rate, format_seconds, format_share

LATE = 0.02
"""A rank is late when the others wait this share of the loop for it [fraction]."""
_FEWEST = 8
_SLOWER = 0.05
"""Ranks that do not meet: one is late when its pace is this much below that of the next slowest [fraction]."""
_DEARER = 1.2
"""A stage is to blame when it costs a late rank this many times what it costs the others."""


@dataclass(frozen=True)
class Late:
    """The rank that the others wait for."""

    rank: int
    wait_s: float
    """What each other rank waits for it per step, on average [s]."""
    share: float
    """The same over their time per step [fraction]."""
    meets: bool = True
    """Whether the ranks did wait; False where they ran apart and would wait in training."""


def everyone(run: Run) -> list[Run]:
    """Return the runs of all ranks, in their order."""
    return sorted([run, *run.ranks], key=lambda r: r.rank)


def latest(run: Run) -> Late | None:
    """Return the late rank; None where there is none, or the ranks' batches cannot be matched."""
    runs = everyone(run)
    loops = [r.loop() for r in runs]
    columns = [loop.main.meeting_s if loop is not None else [] for loop in loops]
    count = min(len(c) for c in columns)
    if len(runs) > 1 and not any(columns):
        return _slowest(runs)
    if len(runs) < 2 or count < _FEWEST or max(len(c) for c in columns) > 1.1 * count + 2:
        return None
    first = count // 8  # the first steps start workers and allocate
    stays = np.asarray([c[first:count] for c in columns])
    extra = stays - stays.min(axis=0)
    kept = np.zeros(len(runs))
    np.add.at(kept, stays.argmin(axis=0), extra.sum(axis=0) / (len(runs) - 1))
    worst = int(kept.argmax())
    lengths = []
    for loop in loops:
        assert loop is not None
        lengths.append(np.sum(loop.main.wait_s[first:count]) + np.sum(loop.main.step_s[first:count]))
    window = float(np.mean(lengths))
    if window <= 0 or kept[worst] < LATE * window or kept[worst] < 2 * float(np.sort(kept)[-2]):
        return None
    return Late(runs[worst].rank, float(kept[worst]) / (count - first), float(kept[worst]) / window)


def _slowest(runs: list[Run]) -> Late | None:
    """Return the rank that is clearly slower than all others, of ranks that ran apart."""
    seen = [(r, s) for r in runs if (s := steady(r.loop())) is not None and s.n >= _FEWEST]
    if len(seen) < 2 or len(seen) < len(runs):
        return None
    (last, own), *others = sorted(seen, key=lambda pair: pair[1].cycle_s, reverse=True)
    next_ = others[0][1]
    if own.cycle_s < (1 + _SLOWER) * next_.cycle_s or own.samples_per_s.high > next_.samples_per_s.low:
        return None
    wait = own.cycle_s - float(np.mean([s.cycle_s for _, s in others]))
    return Late(last.rank, wait, wait / own.cycle_s, meets=False)


def leading(run: Run) -> Run:
    """Return the run of the rank that sets the job's pace: the late one, else the one that waits most for data."""
    late = latest(run)
    runs = everyone(run)
    if late is not None:
        return next(r for r in runs if r.rank == late.rank)
    seen = [(r, steady(r.loop())) for r in runs]
    stalls = [(s.stall_share.value, r) for r, s in seen if s is not None]
    if not stalls:
        return run
    most = max(stalls, key=lambda pair: pair[0])
    own = next((stall for stall, r in stalls if r is run), None)
    return run if own is not None and most[0] - own < 0.05 else most[1]


def late_sentence(run: Run) -> str:
    """Return what the late rank costs and why it is late; empty where no rank is."""
    late = latest(run)
    if late is None:
        return ""
    stalls = {r.rank: s for r in everyone(run) if (s := steady(r.loop())) is not None}
    if late.meets:
        text = f"rank {late.rank} is late: each other rank waits {format_seconds(late.wait_s)} a step for it, "
        text += f"{format_share(late.share)} of its time"
    else:
        text = f"rank {late.rank} is the slowest: in training, where ranks wait for each other every step, each other "
        text += f"rank would wait {format_seconds(late.wait_s)} a step for it, {format_share(late.share)} of its time"
    others = [s.stall_share.value for rank, s in stalls.items() if rank != late.rank]
    if late.rank in stalls and others:
        text += (
            f"; its own wait for data is {format_share(stalls[late.rank].stall_share.value)}, "
            f"theirs {format_share(sum(others) / len(others))}"
        )
    why = why_late(run, late.rank)
    return f"{text}; {why}" if why else text


def why_late(run: Run, rank: int) -> str:
    """Return the stage that costs a rank more than the others, with both figures; empty where none stands out."""
    costs = {r.rank: stage_seconds(r) for r in everyone(run)}
    own, others = costs.pop(rank), list(costs.values())
    found: list[tuple[float, str, float, float]] = []
    for stage, seconds in own.items():
        theirs = [c[stage] for c in others if stage in c]
        if not theirs:
            continue
        usual = float(np.median(theirs))
        if seconds > _DEARER * usual:
            found.append((seconds - usual, stage, seconds, usual))
    if not found:
        return ""
    _, stage, seconds, usual = max(found)
    what = "a worker in line for a core" if stage == "cores" else stage
    return f"{what} takes it {format_seconds(seconds)} a sample, the others {format_seconds(usual)}"


def stage_seconds(run: Run) -> dict[str, float]:
    """Return what each stage costs this rank, in one worker or its main process [s per sample]."""
    e = gather(run)
    seen = e.alone or e.loop
    if seen is None:
        return {}
    per = max(1.0, seen.samples_per_batch)
    found: dict[str, float] = {}
    if e.costs is not None:
        found = {stage.value: seconds for stage, seconds in e.costs.fetch_s.items()}
        found["collate"] = e.costs.collate_s - e.costs.collate_runq_s
        found["cores"] = e.costs.runq_s
    elif e.alone is not None:
        found["loader"] = e.alone.cycle_s
    found["sampler"] = (seen.sampler_share or 0.0) * seen.cycle_s
    found["transport"] = (seen.transport_share or 0.0) * seen.cycle_s
    if e.step is not None:
        found["step"] = e.step.seconds
    return {stage: seconds / per for stage, seconds in found.items()}


def counted(run: Run) -> list[Run]:
    """Return one run of each data-parallel group: ranks that share a model work on the same samples.

    Ranks count through tp first, then cp, dp and pp.
    """
    sizes = run.workload.parallel
    if not sizes:
        return everyone(run)
    inner = sizes["tp"] * sizes["cp"]
    return [r for r in everyone(run) if r.rank % inner == 0 and r.rank < inner * sizes["dp"]]


def totals(run: Run) -> dict[str, float]:
    """Return the figures of the job as a whole, by name with the unit at its end; empty for one rank."""
    runs = counted(run)
    seen = [s for r in runs if (s := steady(r.loop() or r.loader_alone())) is not None]
    wanted = run.workload.parallel.get("dp", run.world_size)
    found: dict[str, float] = {"ranks": float(run.world_size), "data_parallel_ranks": float(wanted)}
    if len(seen) < wanted or not seen:
        return found  # a sum over some of the ranks would say nothing of the job
    rates = [s.samples_per_s.value for s in seen]
    found["all_ranks_samples_per_s"] = sum(rates)
    found["rank_spread_share"] = (max(rates) - min(rates)) / (sum(rates) / len(rates))
    late = latest(run)
    if late is not None and not late.meets:
        found["all_ranks_in_step_samples_per_s"] = len(rates) * min(rates)
    if run.workload.tokens_per_sample:
        found["all_ranks_tokens_per_s"] = sum(rates) * run.workload.tokens_per_sample
    return found


def total_sentence(run: Run) -> str:
    """Return the job's throughput in words; empty where it is not known."""
    found = totals(run)
    rate = found.get("all_ranks_samples_per_s")
    if rate is None:
        return ""
    text = f"all {run.world_size} ranks together: {format_rate(rate)}"
    if run.workload.parallel:
        text += f", summed over {format_count(found['data_parallel_ranks'])} data-parallel ranks"
    in_step = found.get("all_ranks_in_step_samples_per_s")
    return f"{text}; at the pace of the slowest {format_rate(in_step)}" if in_step is not None else text


def duplicate_reads(run: Run) -> Caveat | None:
    """Return a caveat where ranks that work on the same samples each load them."""
    sizes = run.workload.parallel
    if not sizes:
        return None
    loading = [r for r in everyone(run) if any(m.main.call_s for m in r.loaders)]
    share = run.world_size // sizes["dp"]
    if len(loading) <= sizes["dp"]:
        return None
    names = " x ".join(f"{name} {sizes[name]}" for name in ("tp", "pp", "cp") if sizes[name] > 1)
    return Caveat(
        "duplicate-reads",
        f"{len(loading)} ranks load, but only {sizes['dp']} are data-parallel: with {names} each sample is read and "
        f"decoded {share} times",
        "load in one rank of each group and broadcast to the others",
    )


def storage_curve(run: Run) -> dict[int, float]:
    """Return what the storage gave to 1, 2, 4, ... ranks that read at once [bytes/s], by their number."""
    found: dict[int, list[float]] = {}
    for r in everyone(run):
        for job in r.storage:
            head, _, count = job.pattern.partition("-")
            if head == "ranks" and count.isdigit() and job.window_s > 0 and job.failure is None:
                found.setdefault(int(count), []).append(job.bytes_read / job.window_s)
    return {count: sum(rates) for count, rates in sorted(found.items()) if len(rates) == count}


def knee(curve: dict[int, float]) -> int | None:
    """Return the number of ranks beyond which more bring next to nothing; None where it rises to the end.

    >>> knee({1: 100.0, 2: 195.0, 4: 210.0}), knee({1: 100.0, 2: 190.0})
    (2, None)
    """
    for (count, rate), (more, faster) in zip(list(curve.items())[:-1], list(curve.items())[1:], strict=True):
        if faster < rate * (1 + 0.25 * (more / count - 1)):
            return count
    return None


def storage_sentence(run: Run) -> str:
    """Return how storage scales with ranks; empty where it was not measured."""
    curve = storage_curve(run)
    if len(curve) < 2:
        return ""
    points = ", ".join(f"{format_bandwidth(rate)} to {count}" for count, rate in curve.items())
    bend = knee(curve)
    more = f"more than {bend} at once bring next to nothing" if bend else "it still rises with every rank"
    return f"storage gives {points} rank{'s' if max(curve) > 1 else ''} that read at once; {more}"


def rank_summaries(run: Run, told: str | None = None) -> list[RankSummary]:
    """Return one line for each rank of a job with several; empty for one.

    Args:
        run: Rank 0's, with the others in it.
        told: What :func:`late_sentence` gave, where that is at hand.
    """
    if not run.ranks:
        return []
    runs = everyone(run)
    seen = [steady(r.loop()) for r in runs]
    if all(s is None for s in seen):
        return recorded_summaries(run)
    late, text = latest(run), late_sentence(run) if told is None else told
    return [_summary(r, s, late, text) for r, s in zip(runs, seen, strict=True)]


def _summary(run: Run, seen: Steady | None, late: Late | None, text: str) -> RankSummary:
    is_late = late is not None and late.rank == run.rank
    because = text.partition(": ")[2] if is_late else ""
    if late is not None and not is_late:
        because = f"waits for rank {late.rank}"
    return RankSummary(
        rank=run.rank,
        host=run.host.hostname,
        samples_per_s=seen.samples_per_s if seen else None,
        stall_share=seen.stall_share if seen else None,
        late=is_late,
        because=because,
    )
