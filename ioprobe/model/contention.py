"""What one run says of resources that workers share: locks, bandwidth, unlike workers."""

from __future__ import annotations

import numpy as np

from ioprobe.model.profile import Floats, Ints, Serial
from ioprobe.run import StackShares, Stage

LEAST_OVERLAPS = 24
"""Batches with a neighbour before a correlation is believed."""


def find_serial(
    worker: Ints,
    start_s: Floats,
    put_s: Floats,
    blocked_s: Floats,
    cpu_s: Floats,
    stacks: list[StackShares] | None = None,
) -> Serial | None:
    """Return the server that workers queue for, or None.

    Independent waits do not know of each other. Waits in one queue do: what
    delays one worker delays all whose batches overlap it in time. So the
    correlation between a batch's blocked time and that of its neighbours in
    other workers tells a shared server (or a lock) from latency.

    Args:
        worker: Worker of each batch, shape (batches,).
        start_s: Start of each batch [s].
        put_s: End of each batch [s].
        blocked_s: Blocked time of each batch [s].
        cpu_s: CPU time of each batch [s].
        stacks: Sampled stacks; frames in locks turn a server into a lock.
    """
    crew = int(np.unique(worker).size)
    if crew < 2 or blocked_s.mean() < 0.05 * (blocked_s + cpu_s).mean():
        return None
    locked = _lock_share(stacks or [])
    r, pairs = neighbour_correlation(worker, start_s, put_s, blocked_s)
    if locked < 0.1 and not (pairs >= LEAST_OVERLAPS and r > max(0.5, 3 / np.sqrt(pairs))):
        return None
    wall = float(put_s.max() - start_s.min())
    per_batch = wall / worker.size
    # In a queue that never empties the server's time per batch is the loader's; blocked time is crew - 1 of them.
    expected_blocked = per_batch * crew - float(cpu_s.mean())
    if float(blocked_s.mean()) < 0.5 * expected_blocked:
        return None
    kind = "lock" if locked >= 0.1 else "storage"
    because = (
        f"workers were in a lock in {100 * locked:.0f}% of their stacks"
        if kind == "lock"
        else f"blocked times of workers rise and fall together (correlation {r:.2f} over {pairs} batches)"
    )
    holds_cpu = kind == "lock" and float(cpu_s.mean()) > 0.5 * per_batch
    return Serial(kind=kind, service_s=per_batch, uses_cpu=holds_cpu, because=because)


def _lock_share(stacks: list[StackShares]) -> float:
    workers = [s for s in stacks if s.role == "worker"]
    total = sum(s.samples for s in workers)
    return sum(s.stages.get(Stage.LOCK, 0) for s in workers) / total if total else 0.0


def neighbour_correlation(worker: Ints, start_s: Floats, put_s: Floats, value: Floats) -> tuple[float, int]:
    """Return the correlation of each batch's value with its neighbours' mean, and over how many batches.

    Neighbours are batches of other workers that overlap it in time, weighted by the overlap.
    """
    order = np.argsort(start_s)
    worker, start_s, put_s, value = worker[order], start_s[order], put_s[order], value[order]
    longest = float((put_s - start_s).max())
    mine, theirs = [], []
    for i in range(worker.size):
        first = int(np.searchsorted(start_s, start_s[i] - longest))
        last = int(np.searchsorted(start_s, put_s[i]))
        overlap = np.minimum(put_s[i], put_s[first:last]) - np.maximum(start_s[i], start_s[first:last])
        weight = np.where((worker[first:last] != worker[i]) & (overlap > 0), overlap, 0.0)
        if weight.sum() > 0:
            mine.append(value[i])
            theirs.append(float((weight * value[first:last]).sum() / weight.sum()))
    a, b = np.asarray(mine), np.asarray(theirs)
    if a.size < 3 or a.std() < 1e-9 or b.std() < 1e-9:
        return 0.0, int(a.size)
    return float(np.corrcoef(a, b)[0, 1]), int(a.size)


def workers_differ(worker: Ints, service_s: Floats) -> bool:
    """Return whether workers are of different speed, by a rank test between the slowest and the fastest."""
    crew = np.unique(worker)
    groups = [service_s[worker == w] for w in crew]
    if len(groups) < 2 or min(g.size for g in groups) < 8:
        return False
    medians = [float(np.median(g)) for g in groups]
    slow, fast = groups[int(np.argmax(medians))], groups[int(np.argmin(medians))]
    if max(medians) < 1.2 * min(medians):
        return False
    above = float(np.mean(slow[:, None] > fast[None, :]))
    error = np.sqrt((slow.size + fast.size + 1) / (12.0 * slow.size * fast.size))
    return bool((above - 0.5) / error > 5)
