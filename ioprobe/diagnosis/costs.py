"""Where a worker's time goes, per sample: read, decode, transform, lock, collate; CPU, blocked, in line for a core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ioprobe.diagnosis.types import StageCost
from ioprobe.run import HotFrame, LoaderRun, StackShares, Stage
from ioprobe.stats import Floats

_FETCH_STAGES = (Stage.READ, Stage.DECODE, Stage.TRANSFORM, Stage.LOCK)
_COMPUTING = (Stage.DECODE, Stage.TRANSFORM)
_FEWEST_STACKS = 12
BUSY_WORKERS = 0.2
"""Of a worker's life: waiting for a task, below which the workers limit the loader and not who receives [fraction]."""


@dataclass(frozen=True)
class WorkerCosts:
    """Means per batch over a measurement's worker rows [s]; shares are fractions of the workers' busy time."""

    batches: int
    workers: int
    delivering: int
    """Workers that made at least one batch."""
    busy_s: float
    idle_share: float
    """Of a worker's life: waiting for a task [fraction]."""
    cpu_s: float
    blocked_s: float
    runq_s: float
    other_cpu_s: float
    """CPU of the workers' other threads per batch: queue feeder, OpenMP, readers [s]."""
    process_cpu_s: float
    """CPU per batch of processes that compute for the workers: children waited for, and helpers that live on [s]."""
    handed_s: float
    """Of fetching: waiting for threads of the worker's own that compute [s per batch]."""
    feeder_share: float | None
    """Share of stacks in which the queue's feeder thread was at work; None without stacks."""
    fetch_s: dict[Stage, float]
    """Wall time of fetching by stage, time in line for a core left out [s]."""
    fetch_blocked_s: dict[Stage, float]
    collate_s: float
    collate_cpu_s: float
    collate_runq_s: float
    service_spread: float
    """99th percentile of a batch's running time over its median."""
    slow_s: float
    """99th percentile of a batch's running time [s]."""
    read_bytes: float | None
    """Bytes through read(2) per batch."""
    read_ops: float | None
    worker_batches: dict[int, int]
    hottest: dict[Stage, HotFrame]

    @property
    def all_cpu_s(self) -> float:
        """CPU per batch of the workers, all their threads and the processes that compute for them [s]."""
        return self.cpu_s + self.other_cpu_s + self.process_cpu_s

    @property
    def on_processes(self) -> bool:
        """Whether most of what a batch takes is computed by processes that the workers wait for."""
        return self.process_cpu_s > 0.5 * self.all_cpu_s and self.process_cpu_s > self.cpu_s

    @property
    def running_s(self) -> float:
        """Busy time less the time in line for a core [s per batch]."""
        return max(1e-9, self.busy_s - self.runq_s)

    @property
    def cpu_share(self) -> float:
        """CPU over running time; threads and processes that a worker hands its work to and waits for compute, too."""
        waited_for = self.handed_s + min(self.process_cpu_s, max(0.0, self.running_s - self.cpu_s - self.handed_s))
        return min(1.0, (self.cpu_s + waited_for) / self.running_s)

    @property
    def blocked_share(self) -> float:
        """Blocked over running time."""
        return min(1.0, self.blocked_s / self.running_s)

    @property
    def runq_share(self) -> float:
        """In line for a core over busy time."""
        return min(1.0, self.runq_s / max(1e-9, self.busy_s))

    @property
    def reads_on_cpu(self) -> bool:
        """Whether reading dominates and is CPU: the reader inflates and parses, and no device is waited for."""
        return self.dominant() is Stage.READ and self.cpu_share > 0.5 and self.blocked_share < 0.15

    def dominant(self) -> Stage:
        """The stage that takes most of the running time."""
        parts = {**self.fetch_s, Stage.COLLATE: self.collate_s - self.collate_runq_s}
        return max(parts, key=lambda stage: parts[stage])


def worker_costs(run: LoaderRun | None, first: int = 0, helper_cpu_s: float = 0.0) -> WorkerCosts | None:
    """Return the costs of a measurement's workers; None where there are no rows.

    Args:
        run: The measurement.
        first: Batches to leave out at the start (each worker's first rows hold imports and cold caches).
        helper_cpu_s: CPU per batch of processes that serve the workers and outlive the batch [s].
    """
    if run is None or run.workers is None or not run.workers.worker:
        return None
    rows = run.workers
    worker = np.asarray(rows.worker)
    keep = _kept(worker, first)

    def column(values: list[float] | list[int]) -> Floats:
        return np.asarray(values, dtype=np.float64)[keep]

    fetch, fetch_cpu, fetch_runq = column(rows.fetch_wall_s), column(rows.fetch_cpu_s), column(rows.fetch_runq_s)
    collate, collate_cpu = column(rows.collate_wall_s), column(rows.collate_cpu_s)
    collate_runq, idle = column(rows.collate_runq_s), column(rows.idle_s)
    busy = fetch + collate
    fetch_blocked = float(np.maximum(0.0, fetch - fetch_cpu - fetch_runq).mean())
    collate_blocked = float(np.maximum(0.0, collate - collate_cpu - collate_runq).mean())
    # Without workers the main thread does their work.
    role = "worker" if run.settings is None or run.settings.num_workers else "main"
    stacks = next((s for s in run.stacks if s.role == role), None)
    feeder = next((s for s in run.stacks if s.role == "worker-thread"), None)
    by_stage, blocked = _split(float((fetch - fetch_runq).clip(0).mean()), fetch_blocked, stacks)
    handed = _handed_to_threads(feeder, stacks, float(column(rows.other_cpu_s).mean()), fetch_blocked)
    if handed:
        assert feeder is not None
        fetch_blocked -= _to_threads(by_stage, blocked, handed, feeder)
    processes = helper_cpu_s + (float(column(rows.child_cpu_s).mean()) if rows.child_cpu_s else 0.0)
    fetch_blocked -= _to_processes(by_stage, blocked, min(processes, fetch_blocked))
    if helper_cpu_s:  # waiting for a pipe of theirs looks like reading, also while they wait for a core
        waited = blocked[Stage.READ]
        for times in (by_stage, blocked):
            times[Stage.READ] -= waited
            times[Stage.DECODE] += waited
    known = column(rows.read_bytes)
    # Standing in line for a core is somebody else's doing, not the batch's.
    running = (busy - fetch_runq - collate_runq).clip(0)
    median, slow = float(np.median(running)), float(np.quantile(running, 0.99))
    numbers, counts = np.unique(worker, return_counts=True)
    return WorkerCosts(
        batches=int(busy.size),
        workers=run.settings.num_workers if run.settings else int(numbers.size),
        delivering=int(numbers.size),
        busy_s=float(busy.mean()),
        idle_share=float(idle.sum() / max(1e-9, idle.sum() + busy.sum())),
        cpu_s=float(fetch_cpu.mean() + collate_cpu.mean()),
        blocked_s=fetch_blocked + collate_blocked,
        runq_s=float(fetch_runq.mean() + collate_runq.mean()),
        other_cpu_s=float(column(rows.other_cpu_s).mean()),
        process_cpu_s=processes,
        handed_s=handed,
        feeder_share=_feeder(feeder, stacks),
        fetch_s=by_stage,
        fetch_blocked_s=blocked,
        collate_s=float(collate.mean()),
        collate_cpu_s=float(collate_cpu.mean()),
        collate_runq_s=float(collate_runq.mean()),
        service_spread=slow / median if median > 0 else 1.0,
        slow_s=slow,
        read_bytes=float(known.mean()) if known.size and known.min() >= 0 else None,
        read_ops=float(column(rows.read_ops).mean()) if known.size and known.min() >= 0 else None,
        worker_batches={int(k): int(c) for k, c in zip(numbers, counts, strict=True)},
        hottest=_hottest(stacks),
    )


def _kept(worker: np.ndarray[tuple[int], np.dtype[np.int64]], first: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    keep = np.ones(worker.size, dtype=np.bool_)
    if first <= 0 or worker.size < 3 * first:
        # At least each worker's very first batch, where there is enough without it.
        if worker.size >= 12:
            _, heads = np.unique(worker, return_index=True)
            keep[heads] = False
        return keep
    keep[:first] = False
    return keep


def _split(
    running_s: float, blocked_s: float, stacks: StackShares | None
) -> tuple[dict[Stage, float], dict[Stage, float]]:
    """Divide fetching among stages by stacks; without enough of them, by blocked against CPU time."""
    counts = {stage: (stacks.stages.get(stage, 0) if stacks else 0) for stage in _FETCH_STAGES}
    total = sum(counts.values())
    if total < _FEWEST_STACKS:
        times = dict.fromkeys(_FETCH_STAGES, 0.0)
        times[Stage.READ] = min(blocked_s, running_s)
        times[Stage.TRANSFORM] = max(0.0, running_s - blocked_s)
        return times, {**dict.fromkeys(_FETCH_STAGES, 0.0), Stage.READ: times[Stage.READ]}
    times = {stage: running_s * count / total for stage, count in counts.items()}
    return times, _blocked(times, blocked_s)


def _blocked(times: dict[Stage, float], blocked_s: float) -> dict[Stage, float]:
    """Give the blocked time to lock and read first: who waits, waits there; what is left to the rest in proportion."""
    found = dict.fromkeys(times, 0.0)
    left = blocked_s
    for stage in (Stage.LOCK, Stage.READ):
        found[stage] = min(left, times[stage])
        left -= found[stage]
    rest = {stage: times[stage] for stage in times if stage not in (Stage.LOCK, Stage.READ)}
    total = sum(rest.values())
    for stage, seconds in rest.items():
        found[stage] = min(seconds, left * seconds / total) if total > 0 else 0.0
    return found


def _handed_to_threads(
    threads: StackShares | None, main: StackShares | None, other_cpu_s: float, blocked_s: float
) -> float:
    """Return how long a worker's main thread waits per batch for threads of its own that compute [s].

    Not for a device: the process uses the CPU meanwhile, and the stacks of those threads stand in the user's code.
    """
    if threads is None or main is None or other_cpu_s < 0.5 * blocked_s:
        return 0.0
    at_work = sum(threads.stages.get(stage, 0) for stage in _COMPUTING)
    busy = main.samples - main.stages.get(Stage.WAIT, 0)
    return min(blocked_s, other_cpu_s) if at_work >= max(_FEWEST_STACKS, 0.5 * busy) else 0.0


def _to_threads(times: dict[Stage, float], blocked: dict[Stage, float], handed_s: float, threads: StackShares) -> float:
    """Move blocked time to the stages that a worker's own threads are at meanwhile; returns how much was moved [s]."""
    moved = 0.0
    for stage in (Stage.READ, *_COMPUTING, Stage.LOCK):  # waiting for a future looks like reading
        part = min(handed_s - moved, blocked[stage])
        times[stage] -= part
        blocked[stage] -= part
        moved += part
    at_work = {stage: threads.stages.get(stage, 0) for stage in _COMPUTING}
    for stage, count in at_work.items():
        times[stage] += moved * count / sum(at_work.values())
    return moved


def _to_processes(times: dict[Stage, float], blocked: dict[Stage, float], computed_s: float) -> float:
    """Take out of the blocked time what processes computed meanwhile; returns how much that was [s].

    Where the stacks say computing, waiting for it is that; waiting for a pipe looks like reading, and is decoding.
    """
    moved = 0.0
    for stage in (*_COMPUTING, Stage.READ, Stage.LOCK):
        part = min(computed_s - moved, blocked[stage])
        blocked[stage] -= part
        moved += part
        if stage not in _COMPUTING:
            times[stage] -= part
            times[Stage.DECODE] += part
    return moved


def _feeder(threads: StackShares | None, main: StackShares | None) -> float | None:
    if main is None or not main.samples:
        return None
    if threads is None:
        return 0.0
    return min(1.0, threads.stages.get(Stage.TRANSPORT, 0) / main.samples)


def _hottest(stacks: StackShares | None) -> dict[Stage, HotFrame]:
    found: dict[Stage, HotFrame] = {}
    for frame in stacks.hottest if stacks else []:
        found.setdefault(frame.stage, frame)
    return found


def place_of(frame: HotFrame | None) -> str:
    """Return `` (function, file:line)`` for a sentence, '' for None; a package's file counts from the package.

    >>> place_of(HotFrame(stage=Stage.DECODE, function="f", file="/x/site-packages/PIL/Image.py", line=7, samples=1))
    ' (f, PIL/Image.py:7)'
    """
    if frame is None:
        return ""
    file = frame.file
    for marker, kept in (("site-packages/", ""), ("dist-packages/", ""), ("/ioprobe/data/", "ioprobe/data/")):
        _, found, rest = file.rpartition(marker)
        if found:
            file = kept + rest
            break
    return f" ({frame.function}, {file}:{frame.line})"


def stage_table(costs: WorkerCosts | None, samples_per_batch: float, main: dict[Stage, float]) -> list[StageCost]:
    """Return the stages per sample, workers first, then the main process's.

    Args:
        costs: The workers'; None without workers' rows.
        samples_per_batch: Samples in a batch.
        main: Seconds per batch in the main process, by stage.
    """
    rows: list[StageCost] = []
    per = max(1.0, samples_per_batch)
    if costs is not None:
        total = costs.busy_s + 1e-12
        fetch_running = sum(costs.fetch_s.values()) + 1e-12
        fetch_runq = max(0.0, costs.runq_s - costs.collate_runq_s)
        for stage in _FETCH_STAGES:
            seconds = costs.fetch_s.get(stage, 0.0)
            runq = fetch_runq * seconds / fetch_running
            if seconds + runq < 0.005 * total:
                continue
            blocked = costs.fetch_blocked_s.get(stage, 0.0)
            rows.append(
                StageCost(
                    stage=stage,
                    wall_s=(seconds + runq) / per,
                    cpu_s=max(0.0, seconds - blocked) / per,
                    blocked_s=blocked / per,
                    runq_s=runq / per,
                    share=(seconds + runq) / total,
                    hottest=costs.hottest.get(stage),
                )
            )
        blocked = max(0.0, costs.collate_s - costs.collate_cpu_s - costs.collate_runq_s)
        rows.append(
            StageCost(
                stage=Stage.COLLATE,
                wall_s=costs.collate_s / per,
                cpu_s=costs.collate_cpu_s / per,
                blocked_s=blocked / per,
                runq_s=costs.collate_runq_s / per,
                share=costs.collate_s / total,
                hottest=costs.hottest.get(Stage.COLLATE),
            )
        )
    rows += [StageCost(stage=stage, wall_s=s / per, where="main") for stage, s in main.items() if s > 0]
    return rows
