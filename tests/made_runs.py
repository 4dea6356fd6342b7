"""Runs made from a few numbers, so that the truth is known by construction."""

from __future__ import annotations

from typing import Any

from ioprobe.run import (
    Host,
    LoaderFacts,
    LoaderRun,
    LoaderSettings,
    MainBatches,
    Run,
    StackShares,
    Stage,
    StepRun,
    WorkerBatches,
    Workload,
)


def main_batches(
    n: int,
    *,
    wait_s: float,
    step_s: float | None,
    samples: int = 16,
    epoch_batches: int | None = None,
    edge_s: float = 0.0,
    sampler_s: float = 0.0,
    transport_s: float = 0.0,
    release_s: float = 0.0,
) -> MainBatches:
    """Batches with constant times; the first batch of each epoch waits ``edge_s``."""
    rows, clock = MainBatches(), 0.0
    for k in range(n):
        epoch, place = divmod(k, epoch_batches) if epoch_batches else (0, k)
        wait = edge_s if epoch_batches and place == 0 else wait_s
        rows.call_s.append(clock)
        rows.wait_s.append(wait)
        rows.wait_cpu_s.append(0.1 * wait)
        rows.sampler_s.append(sampler_s)
        rows.transport_s.append(transport_s)
        rows.release_s.append(release_s)
        rows.samples.append(samples)
        rows.ready.append(0)
        rows.epoch.append(epoch)
        if step_s is not None:
            rows.step_s.append(step_s)
        clock += wait + release_s + (step_s or 0.0)
    return rows


def worker_batches(
    n: int,
    *,
    workers: int,
    fetch_s: float,
    cpu_s: float,
    idle_s: float = 0.0,
    runq_s: float = 0.0,
    collate_s: float = 0.0,
    other_cpu_s: float = 0.0,
    child_cpu_s: float = 0.0,
    nbytes: int = 100_000,
    read_bytes: int = 100_000,
    delivering: int | None = None,
    slow_every: int | None = None,
    slow_x: float = 1.0,
) -> WorkerBatches:
    """Rows of workers with constant times; every ``slow_every``-th batch takes ``slow_x`` times as long."""
    rows, clock = WorkerBatches(), 0.0
    active = delivering or workers
    for k in range(n):
        factor = slow_x if slow_every and k % slow_every == 0 else 1.0
        rows.worker.append(k % active)
        rows.index.append(k)
        rows.start_s.append(clock)
        rows.idle_s.append(idle_s)
        rows.fetch_wall_s.append((fetch_s + runq_s) * factor)
        rows.fetch_cpu_s.append(cpu_s * factor)
        rows.fetch_runq_s.append(runq_s * factor)
        rows.collate_wall_s.append(collate_s)
        rows.collate_cpu_s.append(collate_s)
        rows.collate_runq_s.append(0.0)
        rows.other_cpu_s.append(other_cpu_s)
        rows.child_cpu_s.append(child_cpu_s)
        rows.put_s.append(clock + fetch_s * factor)
        rows.nbytes.append(nbytes)
        rows.read_bytes.append(read_bytes)
        rows.read_ops.append(16)
        clock += (fetch_s + runq_s) * factor / active
    return rows


def stacks(role: str = "worker", **counts: int) -> StackShares:
    """Stack shares with the given counts by stage name."""
    stages = {Stage(name): count for name, count in counts.items()}
    return StackShares(role=role, samples=sum(counts.values()), stages=stages)


def make_run(
    *,
    loop_wait_s: float,
    step_s: float,
    loader_cycle_s: float,
    n: int = 200,
    workers: int = 2,
    worker: WorkerBatches | None = None,
    stages: list[StackShares] | None = None,
    cores: float = 2.0,
    facts: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    loop: dict[str, Any] | None = None,
    alone: dict[str, Any] | None = None,
    step_parts: dict[str, float] | None = None,
    emulated: bool = False,
    step_cpu_s: float = 0.0,
) -> Run:
    """A whole analysis: the loop waits ``loop_wait_s`` a batch, the loader alone takes ``loader_cycle_s`` a batch."""
    made = LoaderSettings(
        **{
            "num_workers": workers,
            "prefetch_factor": 2 if workers else None,
            "batch_size": 16,
            "persistent_workers": True,
            **(settings or {}),
        }
    )
    coupled = LoaderRun(
        coupled=True,
        settings=made,
        main=main_batches(n, wait_s=loop_wait_s, step_s=step_s, **(loop or {})),
        workers=worker,
        warmup_batches=4,
        stacks=stages or [],
        batch_bytes=100_000,
    )
    drained = LoaderRun(
        coupled=False,
        settings=made,
        main=main_batches(n, wait_s=loader_cycle_s, step_s=None, **(alone or {})),
        workers=worker,
        warmup_batches=4,
        stacks=stages or [],
        batch_bytes=100_000,
    )
    return Run(
        kind="analyze",
        created_at="2026-11-28T00:00:00+00:00",
        version="0",
        host=Host(usable_cores=cores),
        workload=Workload(target="made"),
        facts=LoaderFacts(**{"kind": "map", "settings": made, **(facts or {})}),
        loaders=[coupled, drained],
        step=StepRun(
            durations_s=[step_s] * 50,
            samples_per_step=16,
            emulated=emulated,
            parts_s=step_parts or {},
            cpu_s=[step_cpu_s] * 50,
        ),
    )
