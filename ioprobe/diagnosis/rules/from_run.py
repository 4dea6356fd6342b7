"""A saved run -> the facts that only a measurement can tell."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ioprobe.run import LoaderRun, MainBatches, Run, WorkerBatches

Floats = NDArray[np.float64]
# A batch that is put travels through a queue and a pipe before the main process has it [s].
DELIVERY_S = 0.003
LEAST_BATCHES = 8


def run_facts(run: Run) -> dict[str, Any]:
    """Return what a run showed, by name of :class:`PipelineFacts`; what it cannot carry is left out."""
    measured = run.loop() or run.loader_alone()
    facts: dict[str, Any] = {}
    failures = [m.failure for m in run.loaders if m.failure] + list(run.failures)
    if failures:
        facts["failure"] = f"{failures[0].kind}: {failures[0].message}"
    if run.step and run.step.durations_s:
        facts["step_s"] = float(np.mean(run.step.durations_s))
    if measured is not None:
        facts.update(_loader_facts(measured, facts.get("step_s")))
        if measured.load is not None:
            facts["other_load"] = (measured.load.other_cores + measured.load.steal_cores) / measured.load.cores
    for loader in run.loaders:
        if loader.repeats is not None and loader.settings and loader.repeats.batches >= LEAST_BATCHES:
            facts["distinct_share"] = loader.repeats.distinct / loader.repeats.batches
            if loader.repeats.workers_delivering:
                facts["idle_workers"] = max(0, loader.settings.num_workers - loader.repeats.workers_delivering)
    for loader in run.loaders:
        if loader.workers and "runq_share" not in facts:
            facts.update(_busy_facts(loader.workers, _since(loader)))
    return {name: value for name, value in facts.items() if value is not None}


def _loader_facts(measured: LoaderRun, step_s: float | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"batch_bytes": measured.batch_bytes, "batch_tensors": measured.batch_tensors}
    if measured.worker_start_s or measured.worker_init_s:
        facts["worker_start_s"] = _mean(measured.worker_start_s) + _mean(measured.worker_init_s)
    first, main = measured.warmup_batches, measured.main
    steady = len(main.wait_s) - first
    if steady < LEAST_BATCHES:
        return facts
    wait = np.asarray(main.wait_s[first:])
    wall = float(main.call_s[-1] + main.wait_s[-1] - main.call_s[first]) + (main.step_s[-1] if main.step_s else 0.0)
    if measured.coupled and wall > 0:
        facts["stall_share"] = float(wait.sum()) / wall
        step_s = step_s or _mean(main.step_s[first:])
        facts["step_s"] = step_s
        if measured.epoch_edges_s and main.epoch:
            facts["edge_share"] = _edge_seconds(main, first) / wall
    if main.sampler_s:
        facts["sampler_s"] = float(np.mean(main.sampler_s[first:]))
    samples = float(np.mean(main.samples[first:])) if main.samples else None
    if measured.workers is not None and measured.workers.put_s:
        facts.update(_worker_facts(measured, measured.workers, step_s, samples))
        if measured.coupled and wall > 0 and measured.settings and measured.settings.num_workers > 1:
            facts["head_of_line_share"] = head_of_line_seconds(main, measured.workers, first) / wall
    return facts


def _edge_seconds(main: MainBatches, first: int) -> float:
    """Waits for the first batch of every epoch that began in steady state [s]."""
    epochs = np.asarray(main.epoch)
    edges = np.flatnonzero(np.diff(epochs) > 0) + 1
    return float(sum(main.wait_s[i] for i in edges if i >= first))


def _worker_facts(
    measured: LoaderRun, workers: WorkerBatches, step_s: float | None, samples: float | None
) -> dict[str, Any]:
    since = _since(measured)
    keep = np.asarray(workers.start_s) >= since
    if int(keep.sum()) < LEAST_BATCHES:
        return {}
    fetch = np.asarray(workers.fetch_wall_s)[keep]
    wall = fetch + np.asarray(workers.collate_wall_s)[keep]
    facts = _busy_facts(workers, since)
    # Waiting for a core is the host's doing; what a fetch takes by itself is the data's.
    queued = (np.asarray(workers.fetch_runq_s) + np.asarray(workers.collate_runq_s))[keep]
    own = np.clip(wall - queued, 0.0, None)
    middle = float(np.median(own))
    facts["batch_spread"] = float(np.quantile(own, 0.99)) / middle if middle > 0 else None
    if samples:
        facts["sample_s"] = float(np.median(fetch)) / samples
    if step_s and measured.coupled and measured.settings and measured.settings.num_workers:
        facts["burst_batches"] = _burst_batches(own, step_s, measured.settings.num_workers)
    return facts


def _since(measured: LoaderRun) -> float:
    """When steady state begins [s]; 0 where the main process got too few batches to tell."""
    main, first = measured.main, measured.warmup_batches
    return main.call_s[first] if len(main.call_s) >= first + LEAST_BATCHES else 0.0


def _busy_facts(workers: WorkerBatches, since: float) -> dict[str, Any]:
    """How workers spend their time, from as few as three batches; the first of each, which starts up, only in need."""
    seen: set[int] = set()
    keep = np.zeros(len(workers.start_s), dtype=bool)
    for row in np.argsort(workers.start_s):
        keep[row] = workers.worker[row] in seen and workers.start_s[row] >= since
        seen.add(workers.worker[row])
    if int(keep.sum()) < 4:
        keep[:] = True
    if int(keep.sum()) < 3:
        return {}
    wall = (np.asarray(workers.fetch_wall_s) + np.asarray(workers.collate_wall_s))[keep]
    cpu = (np.asarray(workers.fetch_cpu_s) + np.asarray(workers.collate_cpu_s))[keep]
    runq = (np.asarray(workers.fetch_runq_s) + np.asarray(workers.collate_runq_s))[keep]
    total = float(wall.sum())
    if total <= 0:
        return {}
    # A worker that waits for a process of its own waits for a core's work.
    children = float(np.asarray(workers.child_cpu_s)[keep].sum()) if workers.child_cpu_s else 0.0
    facts: dict[str, Any] = {
        "runq_share": float(runq.sum()) / total,
        "blocked_share": max(0.0, 1 - (float(cpu.sum() + runq.sum()) + children) / total),
    }
    if workers.other_cpu_s and cpu.sum() > 0:
        other = float(np.asarray(workers.other_cpu_s)[keep].sum())
        facts["threads_per_worker"] = 1 + other / float(cpu.sum())
        facts["helper_cores"] = other / total
        facts["wanted_cores"] = (float(cpu.sum() + runq.sum() + other) + children) / total
    return facts


def _burst_batches(wall: Floats, step_s: float, num_workers: int) -> float | None:
    """Steps that the usual long pause of a worker lasts; None where supply is too slow even on average."""
    if float(wall.mean()) / num_workers > 0.95 * step_s:
        return None
    long = wall[wall > 8 * max(float(np.median(wall)), 1e-4)]
    if long.size < 2:
        return 0.0
    return float(np.median(long)) / step_s


def head_of_line_seconds(main: MainBatches, workers: WorkerBatches, first: int) -> float:
    """Return the seconds of steady state that handing batches over in order cost [s].

    When batch k is asked for, any order would have served it as soon as k + 1 batches had been put. Such a wait costs
    the share of the workers that had nothing to do meanwhile: workers that never stop deliver no more in another order.
    """
    put = np.sort(np.asarray(workers.put_s))
    count = min(len(main.wait_s), put.size)
    if count <= first:
        return 0.0
    call = np.asarray(main.call_s[:count])
    got = call + np.asarray(main.wait_s[:count])
    transport = np.zeros(count)
    transport[: len(main.transport_s)] = main.transport_s[:count]  # a loop that failed lacks the last
    begin = np.maximum(call, put[:count])
    end = np.maximum(begin, got - transport - DELIVERY_S)
    return _idle_seconds(workers, begin[first:], end[first:])


def _idle_seconds(workers: WorkerBatches, begin: Floats, end: Floats) -> float:
    """The time from each begin to its end that a worker spends without a task, mean over workers; the sum [s]."""
    worker, start, idle = (np.asarray(column) for column in (workers.worker, workers.start_s, workers.idle_s))
    numbers = np.unique(worker)
    total = 0.0
    for number in numbers:
        rows = np.flatnonzero(worker == number)
        rows = rows[np.argsort(start[rows])]
        # Idle seconds so far over time: level while the worker is busy, rising while it waits for a task.
        at = np.column_stack((start[rows] - idle[rows], start[rows])).ravel()
        after = np.cumsum(idle[rows])
        so_far = np.column_stack((after - idle[rows], after)).ravel()
        total += float((np.interp(end, at, so_far) - np.interp(begin, at, so_far)).sum())
    return total / max(1, numbers.size)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0
