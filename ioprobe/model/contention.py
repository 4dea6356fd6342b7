"""What measurements say of resources that workers share: cores, locks, bandwidth; and of unlike workers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ioprobe.model.profile import Floats, Ints
from ioprobe.model.rows import ALONE, Rows
from ioprobe.run import StackShares, Stage

LEAST_PAIRS = 6
GROWTH = 1.08
"""Growth of blocked time with company that is no accident."""


@dataclass(frozen=True)
class Company:
    """How a worker's batch changes when other workers are at work."""

    cpu_growth: float
    """CPU time in company over CPU time alone [fraction]."""
    blocked_growth: float
    """Blocked time in company over blocked time alone [fraction]."""
    cpu_alone_s: float
    blocked_alone_s: float
    """Means per batch made alone [s]."""
    pairs: int
    """Batches compared."""


def company(crowded: Rows, others: list[Rows]) -> Company | None:
    """Compare batches made in company with batches made alone, the same data where task numbers tell.

    Args:
        crowded: The measurement to explain.
        others: Further measurements of the same loader; a slow step leaves workers mostly alone.
    """
    best: Company | None = None
    for rows in others:
        found = _same_batches(crowded, rows) or _same_means(crowded, rows)
        if found is not None and (best is None or found.pairs > best.pairs):
            best = found
    return best


def in_main_process(crowded: Rows, cpu_s: float, blocked_s: float) -> Company:
    """Compare with batches made without workers, whose waits are those of a batch alone.

    CPU is not compared: the main process fills no shared memory.
    """
    growth = float(crowded.fetch_blocked_s.mean()) / blocked_s if blocked_s > 0 else math.inf
    return Company(1.0, growth, cpu_s, blocked_s, crowded.size)


def like_for_like(crowded: Rows, other: Rows) -> tuple[float, float]:
    """Return mean CPU and blocked time of another measurement's batches, as if it had seen the same batches [s].

    A short measurement may catch more or fewer of the slow batches. Where task
    numbers tell which data it was, the same batches are compared; else means are
    taken as they are.
    """
    cpu, blocked = float(other.cpu_s.mean()), float(other.blocked_s.mean())
    _, mine, theirs = np.intersect1d(crowded.index, other.index, return_indices=True)
    if mine.size < LEAST_PAIRS or (crowded.index < 0).any():
        return cpu, blocked
    same, seen = crowded.only(mine), other.only(theirs)
    cpu *= _ratio(crowded.cpu_s, same.cpu_s) * _ratio(seen.cpu_s, other.cpu_s)
    blocked *= _ratio(crowded.blocked_s, same.blocked_s) * _ratio(seen.blocked_s, other.blocked_s)
    return cpu, blocked


def _ratio(a: Floats, b: Floats) -> float:
    return float(a.mean() / b.mean()) if b.mean() > 0 else 1.0


def _same_batches(crowded: Rows, other: Rows) -> Company | None:
    """Compare pairs of one batch. Within one measurement nothing is compared: long batches have more company."""
    together = crowded.only(np.flatnonzero((crowded.crowd > 2 * ALONE) & (crowded.index >= 0)))
    alone = other.only(np.flatnonzero((other.crowd < ALONE) & (other.index >= 0)))
    _, mine, theirs = np.intersect1d(together.index, alone.index, return_indices=True)
    return _compare(together.only(mine), alone.only(theirs))


def _same_means(crowded: Rows, other: Rows) -> Company | None:
    if crowded.crowd.mean() < 2 * ALONE or other.crowd.mean() > ALONE:
        return None
    return _compare(crowded, other)


def _compare(together: Rows, alone: Rows) -> Company | None:
    if min(alone.size, together.size) < LEAST_PAIRS:
        return None
    # Collating waits for no storage; a thread that waits there waits for its own process's GIL.
    cpu, blocked = float(alone.cpu_s.mean()), float(alone.fetch_blocked_s.mean())
    return Company(
        cpu_growth=_middle_ratio(together.cpu_s, alone.cpu_s),
        blocked_growth=float(together.fetch_blocked_s.mean()) / blocked if blocked > 0 else math.inf,
        cpu_alone_s=cpu,
        blocked_alone_s=blocked,
        pairs=alone.size,
    )


def _middle_ratio(a: Floats, b: Floats) -> float:
    """Ratio of sums; of pairs where they are pairs, so that one disturbed batch does not carry it."""
    if b.sum() <= 0:
        return 1.0
    if a.size == b.size and (b > 0).all():
        return float(np.median(a / b))
    return float(np.mean(a) / np.mean(b))


def lock_share(stacks: list[StackShares]) -> float:
    """Return the share of the workers' stacks that stood at a lock [fraction]."""
    workers = [s for s in stacks if s.role == "worker"]
    total = sum(s.samples for s in workers)
    return sum(s.stages.get(Stage.LOCK, 0) for s in workers) / total if total else 0.0


def rise_together(rows: Rows) -> float:
    """Return the correlation of blocked times with those of the neighbours in other workers, 0 where not known.

    Independent waits do not know of each other; waits in one queue do, and
    strongly: what delays one worker delays all. Only waits that vary tell.
    """
    value = rows.blocked_s
    if rows.size < 24 or value.mean() <= 0 or value.std() < 0.04 * value.mean():
        return 0.0
    order = np.argsort(rows.start_s)
    worker, start, put, value = rows.worker[order], rows.start_s[order], rows.put_s[order], value[order]
    longest = float((put - start).max())
    mine, theirs = [], []
    for i in range(worker.size):
        first, last = int(np.searchsorted(start, start[i] - longest)), int(np.searchsorted(start, put[i]))
        overlap = np.minimum(put[i], put[first:last]) - np.maximum(start[i], start[first:last])
        weight = np.where((worker[first:last] != worker[i]) & (overlap > 0), overlap, 0.0)
        if weight.sum() > 0:
            mine.append(value[i])
            theirs.append(float((weight * value[first:last]).sum() / weight.sum()))
    a, b = np.asarray(mine), np.asarray(theirs)
    if a.size < 24 or a.std() <= 0 or b.std() <= 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def workers_differ(worker: Ints, service_s: Floats) -> bool:
    """Return whether workers are of different speed, by a rank test between the slowest and the fastest."""
    groups = [service_s[worker == w] for w in np.unique(worker)]
    if len(groups) < 2 or min(g.size for g in groups) < 8:
        return False
    medians = [float(np.median(g)) for g in groups]
    slow, fast = groups[int(np.argmax(medians))], groups[int(np.argmin(medians))]
    if max(medians) < 1.2 * min(medians):
        return False
    above = float(np.mean(slow[:, None] > fast[None, :]))
    error = np.sqrt((slow.size + fast.size + 1) / (12.0 * slow.size * fast.size))
    return bool((above - 0.5) / error > 5)
