"""Processes that compute for a loader's workers: children waited for batch by batch, and helpers that live on."""

from __future__ import annotations

import numpy as np

from ioprobe.model.rows import Rows
from ioprobe.run import LoaderRun, Stage

FULL = 0.85
"""Cores in use over the cores there are, from which on who wants one stands in line [fraction]."""
SERVES = 0.6
"""Cores that helpers use over the cores that waiting workers could have them use, at least [fraction]."""
LEAST_CORES = 0.25
"""Cores below which nobody else is taken to compute for the workers."""
_APART = 1.3
"""Rates of two measurements that differ enough to tell what follows the loader."""
_SAME_WINDOW = 0.3
"""How far the window of the load may differ from the measurement's own [fraction]."""
_IDLE = (Stage.WAIT, Stage.LOCK)
_COMPUTING = (Stage.DECODE, Stage.TRANSFORM)
_FETCHING = (Stage.READ, *_COMPUTING, Stage.LOCK)


def helper_cpu_s(source: LoaderRun, others: list[LoaderRun], cores: float) -> float:
    """Return the CPU per batch of processes that work for the workers and outlive the batch [s]; 0 without any.

    A pool or a decoder that a worker keeps tells its CPU only when it ends. But the job's processes together used more
    than workers and main process account for, while workers that wait for no core were blocked; and where the loader
    is slower, so are they. A job beside the loader would not care.

    Args:
        source: A measurement of the loader alone.
        others: Further measurements, of which those at another pace tell.
        cores: Cores that the job may use.
    """
    found = _unexplained(source)
    if found is None:
        return 0.0
    used, blocked, pace = found
    free = cores - source.load.other_cores if source.load is not None else cores
    if used < max(LEAST_CORES, SERVES * min(free, blocked)):
        return 0.0
    for other in others:
        seen = _unexplained(other) if other is not source and other.name == source.name else None
        if seen is None or max(pace, seen[2]) < _APART * min(pace, seen[2]):
            continue
        slow, fast = sorted([(pace, used), (seen[2], seen[0])])
        if fast[1] < slow[1] * (1 + 0.5 * (fast[0] / slow[0] - 1)):
            return 0.0
    return used / pace


def _unexplained(source: LoaderRun) -> tuple[float, float, float] | None:
    """Return (cores that the job's processes used and nobody is known to, workers blocked on average, batches/s)."""
    load, table, main = source.load, source.workers, source.main
    if source.coupled or load is None or table is None or not table.fetch_wall_s or not main.wait_s:
        return None
    if abs(load.window_s - source.wall_s) > _SAME_WINDOW * source.wall_s or threads_compute(source):
        return None
    busy = sum(table.fetch_wall_s) + sum(table.collate_wall_s)
    cpu = sum(table.fetch_cpu_s) + sum(table.collate_cpu_s)
    blocked = busy - cpu - sum(table.fetch_runq_s) - sum(table.collate_runq_s)
    beside = sum(table.other_cpu_s) + sum(table.child_cpu_s)
    if blocked - beside < 0.5 * busy:
        return None
    # A worker's start computes, too: imports, an index.
    known = cpu + beside + sum(main.wait_cpu_s) + sum(source.worker_start_s) + sum(source.worker_init_s)
    window = load.window_s
    return load.own_cores - known / window, (blocked - beside) / window, len(table.fetch_wall_s) / window


def threads_compute(source: LoaderRun) -> bool:
    """Whether threads of the main process, beside the one that trains, were seen at work and not waiting."""
    main = sum(s.samples for s in source.stacks if s.role == "main")
    busy = sum(n for s in source.stacks if s.role == "thread" for stage, n in s.stages.items() if stage not in _IDLE)
    return main > 0 and busy > 0.1 * main


def in_line_s(rows: Rows, source: LoaderRun, children_s: float, helpers_s: float, cores: float) -> float:
    """Return for how long per batch a worker waits for its processes to get a core [s].

    The kernel tells how long the worker's own thread stood in line, and of its children nothing. With all cores taken,
    they stand in line for whatever a worker waits for them longer than they compute.

    Args:
        rows: As measured by the workers' main threads.
        source: The measurement.
        children_s: CPU per batch of processes that ended with it [s].
        helpers_s: The same of those that live on [s]; a worker that has such helpers waits for nothing else.
        cores: Cores that the job may use.
    """
    load, processes_s = source.load, children_s + helpers_s
    if load is None or load.own_cores + load.other_cores < FULL * cores:
        return 0.0
    blocked = float(rows.fetch_blocked_s.mean())
    if processes_s < 0.5 * float((rows.cpu_s + rows.other_cpu_s).mean() + processes_s):
        return 0.0
    return max(0.0, blocked * (1.0 if helpers_s else _waiting_share(source)) - processes_s)


def _waiting_share(source: LoaderRun) -> float:
    """Return the share of a worker's stacks, while it fetches, that say computing and so not reading [fraction]."""
    worker = next((s for s in source.stacks if s.role == "worker"), None)
    counts = {stage: worker.stages.get(stage, 0) for stage in _FETCHING} if worker is not None else {}
    total = sum(counts.values())
    return float(np.divide(sum(counts[s] for s in _COMPUTING), total)) if total else 0.0
