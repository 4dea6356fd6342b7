"""Runs made by the replay itself, so that every demand behind them is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from ioprobe.model.simulate import System, Trace, simulate
from ioprobe.run import (
    Host,
    HostLoad,
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

SAMPLES = 16


def loader_run(system: System, batches: int, **more: Any) -> LoaderRun:
    """Return what the instruments would have seen of a replayed loader.

    Blocked time holds the queueing for the serial server, as it would in reality;
    time without a core is in ``fetch_runq_s``.
    """
    trace = simulate(system, batches, record=True)
    coupled = system.step_s != (0.0,)
    step = trace.step_end_s - trace.return_s
    main = MainBatches(
        call_s=trace.call_s.tolist(),
        wait_s=trace.wait_s.tolist(),
        wait_cpu_s=[system.receive_cpu_s + system.dispatch_cpu_s] * batches,
        sampler_s=[0.0] * batches,
        transport_s=[system.receive_cpu_s] * batches,
        release_s=[0.0] * batches,
        step_s=step.tolist() if coupled else [],
        samples=[SAMPLES] * batches,
        epoch=trace.epoch.tolist(),
    )
    settings = LoaderSettings(
        num_workers=system.num_workers,
        prefetch_factor=system.prefetch_factor,
        in_order=system.in_order,
        persistent_workers=system.persistent_workers,
        shuffle=False,
    )
    return LoaderRun(
        coupled=coupled,
        settings=settings,
        main=main,
        workers=_workers(system, trace),
        warmup_batches=settings.depth,
        batch_bytes=1_000_000,
        batch_tensors=2,
        worker_pss_bytes=[200_000_000] * system.num_workers,
        worker_start_s=[system.start_s] * system.num_workers,
        worker_init_s=[system.init_s] * system.num_workers,
        epoch_edges_s=trace.wait_s[1:][np.diff(trace.epoch) > 0].tolist(),
        load=HostLoad(window_s=1.0, own_cores=min(system.cores, system.num_workers), other_cores=0.0, cores=2.0),
        **more,
    )


def _workers(system: System, trace: Trace) -> WorkerBatches:
    rows = WorkerBatches()
    begun: dict[int, float] = {}
    last: dict[int, float] = {}
    count: dict[int, int] = {}
    for event in trace.order:
        if event.kind == "start":
            begun[event.task] = event.at_s
        if event.kind != "made":
            continue
        w = event.worker
        k = count[w] = count.get(w, -1) + 1
        series = system.rows[w % len(system.rows)] if len(system.rows) > 1 else system.rows[0]
        cpu, blocked, serial = series[(k if len(system.rows) > 1 else event.task) % len(series)]
        if system.serial_uses_cpu:
            cpu += serial
            serial = 0.0
        wall = event.at_s - begun[event.task]
        queued = wall - cpu - blocked - serial if system.rows[0][0][2] else 0.0
        runq = max(0.0, wall - cpu - blocked - serial - queued) if system.cores < np.inf else 0.0
        rows.worker.append(w)
        rows.index.append(event.task)
        rows.start_s.append(begun[event.task])
        rows.idle_s.append(max(0.0, begun[event.task] - last.get(w, begun[event.task])))
        rows.fetch_wall_s.append(wall)
        rows.fetch_cpu_s.append(cpu)
        rows.fetch_runq_s.append(runq)
        rows.collate_wall_s.append(0.0)
        rows.collate_cpu_s.append(0.0)
        rows.collate_runq_s.append(0.0)
        rows.other_cpu_s.append(system.feed_cpu_s)
        rows.put_s.append(event.at_s)
        rows.nbytes.append(1_000_000)
        rows.read_bytes.append(-1)
        rows.read_ops.append(-1)
        last[w] = event.at_s
    return rows


def run_of(*loaders: LoaderRun, cores: float = 2.0, kind: str = "map", **more: Any) -> Run:
    """Return a run that holds the measurements."""
    facts = LoaderFacts(kind=kind, settings=loaders[0].settings, num_batches=more.pop("num_batches", None))
    return Run(
        kind="loader",
        created_at="2026-11-28T00:00:00+00:00",
        version="0",
        host=Host(usable_cores=cores, logical_cores=int(cores)),
        workload=Workload(target="truth"),
        facts=facts,
        loaders=list(loaders),
        **more,
    )


def at_lock(share: float) -> list[StackShares]:
    """Return stacks of workers that stood at a lock for a share of them."""
    locked = round(1000 * share)
    return [StackShares(role="worker", samples=1000, stages={Stage.LOCK: locked, Stage.DECODE: 1000 - locked})]


def emulated_step(seconds: float) -> StepRun:
    """Return a step of constant length."""
    return StepRun(durations_s=[seconds] * 8, samples_per_step=SAMPLES, emulated=True)


def noisy(mean_s: float, spread: float, count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a gamma series with that mean and relative spread."""
    shape = 1 / spread**2
    return np.random.default_rng(seed).gamma(shape, mean_s / shape, count)
