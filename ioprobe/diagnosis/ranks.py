"""Several ranks of one job, timed batch by batch: who is late, what that costs the others, and whose loop decides.

Ranks meet in every backward pass or collective, which ends for all at about the same time. The last to come stays the
shortest; what the others stay beyond that, they wait for it. Only durations are compared, so clocks need not agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ioprobe.diagnosis.recordings import rank_summaries as recorded_summaries
from ioprobe.diagnosis.steady import Steady, steady
from ioprobe.diagnosis.types import RankSummary
from ioprobe.run import Run
from ioprobe.units import format_seconds, format_share

LATE = 0.02
"""A rank is late when the others wait this share of the loop for it [fraction]."""
_FEWEST = 8


@dataclass(frozen=True)
class Late:
    """The rank that the others wait for."""

    rank: int
    wait_s: float
    """What each other rank waits for it per step, on average [s]."""
    share: float
    """The same over their time per step [fraction]."""


def everyone(run: Run) -> list[Run]:
    """Return the runs of all ranks, in their order."""
    return sorted([run, *run.ranks], key=lambda r: r.rank)


def latest(run: Run) -> Late | None:
    """Return the late rank; None where there is none, or the ranks' batches cannot be matched."""
    runs = everyone(run)
    loops = [r.loop() for r in runs]
    columns = [loop.main.meeting_s if loop is not None else [] for loop in loops]
    count = min(len(c) for c in columns)
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
    """Return what the late rank costs; empty where no rank is late."""
    late = latest(run)
    if late is None:
        return ""
    stalls = {r.rank: s for r in everyone(run) if (s := steady(r.loop())) is not None}
    text = (
        f"rank {late.rank} is late: each other rank waits {format_seconds(late.wait_s)} a step for it, "
        f"{format_share(late.share)} of its time"
    )
    others = [s.stall_share.value for rank, s in stalls.items() if rank != late.rank]
    if late.rank in stalls and others:
        text += (
            f"; its own wait for data is {format_share(stalls[late.rank].stall_share.value)}, "
            f"theirs {format_share(sum(others) / len(others))}"
        )
    return text


def rank_summaries(run: Run) -> list[RankSummary]:
    """Return one line for each rank of a job with several; empty for one."""
    if not run.ranks:
        return []
    runs = everyone(run)
    seen = [steady(r.loop()) for r in runs]
    if all(s is None for s in seen):
        return recorded_summaries(run)
    late, text = latest(run), late_sentence(run)
    return [_summary(r, s, late, text) for r, s in zip(runs, seen, strict=True)]


def _summary(run: Run, seen: Steady | None, late: Late | None, text: str) -> RankSummary:
    is_late = late is not None and late.rank == run.rank
    because = text if is_late else ""
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
