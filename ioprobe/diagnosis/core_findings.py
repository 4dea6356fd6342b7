"""Causes that lie in the cores: who else runs on them while the workers wait for one."""

from __future__ import annotations

from ioprobe.diagnosis.evidence import Evidence
from ioprobe.diagnosis.fetch_limits import fetch_limit
from ioprobe.diagnosis.finding import Finding
from ioprobe.model.helpers import FULL
from ioprobe.run import Limit, LoaderRun, Stage
from ioprobe.units import format_seconds, format_share

LEAST_POOL = 0.1
"""CPU of a worker's other threads over the time it takes for a batch, below which they crowd nobody out [fraction]."""

CROWDED = 0.4
"""Of a worker's time: in line for a core, from which on even a pool that does all the work is too wide [fraction]."""
MOST_IDLE = 0.3
"""Share of their time that workers may have nothing to do and still be short of cores [fraction]."""
LEAST_OWN = 0.5
"""Cores that a loader's own processes keep busy, from which on they may be what it waits for [cores]."""


def own_processes(e: Evidence) -> Finding | None:
    """No DataLoader: processes that the loader started by itself (a pool's) compute, and the loop waits for them."""
    run = e.run.loader_alone()
    if e.settings is not None or e.costs is not None or e.alone is None or run is None or run.load is None:
        return None
    main = e.alone.wait_cpu_share
    own = run.load.own_cores - main
    if main > 0.5 or not e.waits_for_data:
        return None
    if own < LEAST_OWN:
        return _own_wait(e, run, max(0.0, own))
    if e.threads_compute:
        return None
    others = f" (other processes use {run.load.other_cores:.1f})" if run.load.other_cores >= 0.2 else ""
    full = run.load.own_cores + run.load.other_cores >= FULL * e.cores
    return Finding(
        "own-processes-fill-cores" if full else "own-processes",
        Limit.OVERSUBSCRIPTION if full else Limit.TRANSFORM,
        False,
        0.88,
        f"processes that the loader started use {own:.1f} of {e.cores:g} cores, and the loop's own thread "
        f"{format_share(main)} of one: what those processes compute is what the loop waits for"
        + (f", and no core is left for more of them{others}" if full else ""),
    )


def _own_wait(e: Evidence, run: LoaderRun, own: float) -> Finding | None:
    """The loop's own thread waits for others of the loader, and those do not compute: they wait, too."""
    seen = [shares for shares in run.stacks if shares.role in ("main", "thread")]
    main = sum(shares.samples for shares in seen if shares.role == "main")
    waits = sum(shares.stages.get(Stage.WAIT, 0) for shares in seen if shares.role == "main")
    busy = sum(shares.samples - shares.stages.get(Stage.WAIT, 0) for shares in seen)
    if not main or waits < 0.6 * main or busy > 0.25 * sum(shares.samples for shares in seen):
        return None
    return Finding(
        "own-processes-wait",
        Limit.STORAGE_LATENCY,
        False,
        0.6,
        f"the loop's own thread waits for processes or threads of the loader, which use {own:.1f} of {e.cores:g} "
        "cores: they wait themselves, for storage or a network",
    )


def thread_pools(e: Evidence) -> Finding | None:
    """Workers each run a thread pool, and the pools crowd each other out."""
    costs = e.loop_costs or e.costs
    if costs is None or e.workers < 1 or not e.waits_for_data:
        return None
    if e.costs is not None and e.costs.idle_share > MOST_IDLE:
        return None  # drained alone they have nothing to do: what holds the loader up is not in them
    feeder = (costs.feeder_share or 0.0) * costs.busy_s / max(1e-9, 1 - costs.idle_share)
    pooled = costs.other_cpu_s - min(costs.other_cpu_s, feeder)
    share = pooled / max(1e-9, costs.cpu_s + costs.other_cpu_s)
    if share < 0.25 or costs.runq_share < 0.1 or pooled < max(0.3 * costs.cpu_s, LEAST_POOL * costs.busy_s):
        return None
    if costs.handed_s > 0.5 * costs.running_s and costs.runq_share < CROWDED:
        return None  # the pool is who does the work, not who gets in its way
    pools = "1 worker runs" if e.workers == 1 else f"{e.workers} workers each run"
    return Finding(
        "thread-pools",
        Limit.OVERSUBSCRIPTION,
        True,
        min(0.95, 0.6 + share / 2),
        f"other threads inside the workers use {format_seconds(pooled)} of CPU a batch beside "
        f"{format_seconds(costs.cpu_s)} of the worker itself, and wait {format_share(costs.runq_share)} of the time "
        f"for one of {e.cores:g} cores: {pools} a thread pool",
    )


def too_many_workers(e: Evidence) -> Finding | None:
    """Many more workers than cores, and all of them compute."""
    costs = e.loop_costs or e.costs
    if costs is None or e.workers < 4 * e.cores or not e.cpu_bound or not e.waits_for_data:
        return None
    if costs.runq_share < 0.4:
        return None
    return Finding(
        "too-many-workers",
        Limit.OVERSUBSCRIPTION,
        True,
        0.8,
        f"{e.workers} CPU-bound workers share {e.cores:g} cores: each waits {format_share(costs.runq_share)} of its "
        "time for a core",
    )


def pinned(e: Evidence) -> Finding | None:
    """Workers may use fewer cores than the job has and they could fill: a CPU mask, inherited or set."""
    costs = e.loop_costs or e.costs
    if costs is None or not e.waits_for_data or costs.runq_share < 0.2:
        return None
    could_use = e.cores if costs.handed_s > 0.5 * costs.running_s else min(e.cores, e.workers)
    bound = e.worker_cores
    if bound >= could_use:
        return None
    them = "1 worker is" if e.workers == 1 else f"{e.workers} workers are"
    return Finding(
        "pinned",
        Limit.OVERSUBSCRIPTION,
        True,
        0.93,
        f"{them} bound to {bound:g} of {e.cores:g} usable cores by their CPU mask, and wait "
        f"{format_share(costs.runq_share)} of the time for a core",
    )


def neighbours(e: Evidence) -> Finding | None:
    """Other processes of the job take the cores that the workers need."""
    costs = e.costs
    if costs is None or not e.cpu_bound or costs.runq_share < 0.2 or not e.waits_for_data:
        return None
    # Workers that idle want no more cores, and the workers of a second DataLoader of the same loader are no strangers.
    if costs.idle_share > MOST_IDLE or e.facts.inner_loaders > 1:
        return None
    others = e.other_cores
    if others < 0.25 * e.cores or e.foreign_cores > 0.6 * others:
        return None  # load from outside the job is a caveat about the measurement, not a finding about the job
    return Finding(
        "neighbours",
        Limit.OVERSUBSCRIPTION,
        False,
        min(0.9, 0.4 + others / e.cores),
        f"other processes of this job (a second loader, background threads) use {others:.1f} of {e.cores:g} cores; the "
        f"workers wait {format_share(costs.runq_share)} of their time for a core",
    )


def step_contention(e: Evidence) -> Finding | None:
    """Step and workers share the cores: together they are slower than either alone."""
    loop, alone, step, slower = e.loop, e.alone, e.step, e.interference
    if loop is None or alone is None or step is None or slower is None or step.emulated:
        return None
    best = min(alone.samples_per_s.value, step.samples_per_s.value)
    lost = 1 - loop.samples_per_s.value / best
    if slower < 1.2 or lost < 0.2 or (step.cores or 0.0) < 0.5:
        return None
    return Finding(
        "step-contention",
        Limit.OVERSUBSCRIPTION,
        False,
        min(0.9, 0.5 + lost),
        f"the step itself uses {step.cores or 0:.1f} of {e.cores:g} cores: with the loader running it takes "
        f"{slower:.2f} times as long, and together they reach {format_share(1 - lost)} of the slower one's own rate",
        remedy="" if e.workers else _processes(e) if e.threads_compute else "step-contention-in-process",
    )


def _processes(e: Evidence) -> str:
    """Return the remedy for threads that load: worker processes, which share no interpreter's lock with the step."""
    return "no-workers" if e.settings is not None else "same-thread"


def loading_threads(e: Evidence) -> Finding | None:
    """No worker processes: threads of this process make the batches, and the step is slower beside them."""
    slower = e.interference
    if e.workers or slower is None or slower < 1.1 or not e.threads_compute or not e.waits_for_data:
        return None
    if e.alone is None or step_contention(e) is not None:
        return None
    return Finding(
        "loading-threads",
        fetch_limit(e),
        False,
        0.5,
        f"threads of this process make the batches, {format_seconds(e.alone.cycle_s)} each, and share the "
        f"interpreter's lock with the step, which takes {slower:.2f} times as long beside them",
        remedy=_processes(e),
    )
