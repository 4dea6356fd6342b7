"""Runs made of numbers, for tests that need to know the truth."""

from __future__ import annotations

from collections.abc import Sequence

from ioprobe.run import Host, LoaderRun, LoaderSettings, MainBatches, Run, WorkerBatches, Workload


def loader_run(
    wait_s: Sequence[float],
    step_s: Sequence[float] = (),
    *,
    samples: int = 16,
    workers: WorkerBatches | None = None,
    num_workers: int = 2,
    warmup: int = 0,
    begun_s: float | None = None,
    first_batch_s: float | None = None,
    pss_bytes: Sequence[int] = (),
) -> LoaderRun:
    """A loader's measurement from its waits and steps; coupled where there are steps."""
    steps = list(step_s)
    calls, at = [], 0.0
    for i, wait in enumerate(wait_s):
        calls.append(at)
        at += wait + (steps[i] if steps else 0.0)
    return LoaderRun(
        coupled=bool(steps),
        settings=LoaderSettings(num_workers=num_workers, prefetch_factor=2, batch_size=samples),
        main=MainBatches(
            call_s=calls, wait_s=list(wait_s), step_s=steps, samples=[samples] * len(calls), epoch=[0] * len(calls)
        ),
        workers=workers,
        warmup_batches=warmup,
        wall_s=at,
        begun_s=begun_s,
        time_to_first_batch_s=first_batch_s,
        worker_pss_bytes=list(pss_bytes),
    )


def worker_rows(fetch_s: Sequence[float], *, cpu: float = 1.0, runq: float = 0.0, workers: int = 2) -> WorkerBatches:
    """Workers' rows from fetch times; cpu and runq are shares of each."""
    n = len(fetch_s)
    start, put, free = [], [], [0.0] * workers
    for i, seconds in enumerate(fetch_s):
        start.append(free[i % workers])
        free[i % workers] += seconds
        put.append(free[i % workers])
    return WorkerBatches(
        worker=[i % workers for i in range(n)],
        index=list(range(n)),
        start_s=start,
        idle_s=[0.0] * n,
        fetch_wall_s=list(fetch_s),
        fetch_cpu_s=[cpu * x for x in fetch_s],
        fetch_runq_s=[runq * x for x in fetch_s],
        collate_wall_s=[0.0] * n,
        collate_cpu_s=[0.0] * n,
        collate_runq_s=[0.0] * n,
        other_cpu_s=[0.0] * n,
        put_s=put,
        nbytes=[1000] * n,
        read_bytes=[-1] * n,
        read_ops=[-1] * n,
    )


def in_order_run(
    fetch_s: Sequence[float], step_s: float, *, workers: int = 2, prefetch: int = 2, runq: float = 0.0
) -> LoaderRun:
    """A coupled loop over a loader that hands batches over in order: its tasks go out as torch's do."""
    rows = worker_rows(fetch_s, cpu=1.0 - runq, runq=runq, workers=workers)
    free, asked, waits, got = [0.0] * workers, 0.0, [], []
    for k, seconds in enumerate(fetch_s):
        # The first tasks go out at once, each later one when the batch that many before it was handed over.
        given = got[k - workers * prefetch] if k >= workers * prefetch else 0.0
        rows.idle_s[k] = max(0.0, given - free[k % workers])
        rows.start_s[k] = free[k % workers] + rows.idle_s[k]
        free[k % workers] = rows.put_s[k] = rows.start_s[k] + seconds
        waits.append(max(0.0, rows.put_s[k] - asked))
        got.append(asked + waits[-1])
        asked = got[-1] + step_s
    return loader_run(waits, [step_s] * len(waits), workers=rows, num_workers=workers)


def run_of(*loaders: LoaderRun, cores: float = 8.0, cpu_model: str = "cpu") -> Run:
    """A run that holds these measurements."""
    return Run(
        kind="loader",
        created_at="2026-01-01T00:00:00Z",
        version="0",
        host=Host(usable_cores=cores, logical_cores=int(cores), cpu_model=cpu_model),
        workload=Workload(target="t"),
        loaders=list(loaders),
    )
