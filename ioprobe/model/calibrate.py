"""From one measured run to the demands that the model replays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ioprobe.errors import MeasureError
from ioprobe.model.contention import find_serial, workers_differ
from ioprobe.model.profile import (
    Floats,
    Ints,
    MainCosts,
    Memory,
    Profile,
    Serial,
    Setting,
    Startup,
    StepCosts,
)
from ioprobe.run import Caveat, LoaderFacts, LoaderRun, LoaderSettings, MainBatches, Run, StepRun, WorkerBatches
from ioprobe.stats import Estimate, ratio

LEAST_BATCHES = 8
BOOKKEEPING_S = 60e-6
"""CPU of ``next(loader)`` itself: task tables, sending one task. Small; only splits what is measured as a sum."""
QUEUE_THREAD_S = 0.4e-3
"""CPU per tensor that the worker's queue threads may take before further threads are suspected."""


def calibrate(run: Run, *, use_loop: bool = False) -> Profile:
    """Return the demands of the run's loader.

    Args:
        run: A run with a measurement of the loader alone (or of the loop).
        use_loop: Calibrate from the coupled loop even where the loader was measured alone.

    Raises:
        MeasureError: the run holds no loader measurement, or one too short to calibrate from.
    """
    source = _source(run, use_loop)
    facts = run.facts or LoaderFacts()
    profile = _measure(run, source, facts)
    return _correct(profile, source)


def _source(run: Run, use_loop: bool) -> LoaderRun:
    order = [run.loop(), run.loader_alone()] if use_loop else [run.loader_alone(), run.loop()]
    order += list(reversed(run.loaders))
    for source in order:
        if source is not None and source.failure is None and len(source.main.wait_s) >= LEAST_BATCHES:
            return source
    longest = max((len(m.main.wait_s) for m in run.loaders), default=None)
    if longest is None:
        raise MeasureError(
            "cannot predict: the run holds no measurement of the loader",
            hint="measure one with 'ioprobe loader TARGET --output DIR' or 'ioprobe analyze TARGET'",
        )
    raise MeasureError(
        f"cannot predict: the longest loader measurement has {longest} batches; expected {LEAST_BATCHES} or more",
        hint="measure longer (--seconds), or with smaller batches",
    )


def _measure(run: Run, source: LoaderRun, facts: LoaderFacts) -> Profile:
    settings = source.settings
    kind = facts.kind if settings is not None and facts.adaptable else "opaque"
    step = _step(run.step, source)
    samples = _samples_per_batch(source.main)
    base = Profile(
        kind=kind,
        current=_setting(settings, step, source),
        cores=run.host.usable_cores,
        samples_per_batch=samples,
        batches_per_epoch=_epoch_length(source, facts),
        step=step,
        startup=_startup(source),
        memory=_memory(source),
        waits_s=np.asarray(source.main.wait_s, dtype=np.float64)[_steady(source) :],
        measured=_throughput(source),
        n=len(source.main.wait_s) - _steady(source),
    )
    rows = source.workers
    if rows is not None and len(rows.fetch_wall_s) >= LEAST_BATCHES:
        return _with_workers(base, source, rows, facts)
    if settings is not None and settings.num_workers == 0:
        return _inline(base, source)
    caveat = Caveat(
        code="no-worker-times",
        text="the workers' own times were not measured; the loader can only be replayed as it was",
        settle="ioprobe loader TARGET",
    )
    return replace(base, kind="opaque", caveats=(caveat,))


def _setting(settings: LoaderSettings | None, step: StepCosts, source: LoaderRun) -> Setting:
    step_s = None if source.coupled or step.durations_s.size else 0.0
    if settings is None:
        return Setting(0, step_s=step_s)
    return Setting(
        num_workers=settings.num_workers,
        prefetch_factor=settings.prefetch_factor or 2,
        persistent_workers=settings.persistent_workers,
        in_order=settings.in_order,
        pin_memory=settings.pin_memory,
        step_s=step_s,
    )


def _steady(source: LoaderRun) -> int:
    """Leading batches to leave out of the main process's series."""
    n = len(source.main.wait_s)
    return min(max(source.warmup_batches, 1), n // 2)


def _samples_per_batch(main: MainBatches) -> float:
    return float(np.mean(main.samples)) if main.samples else 1.0


def _epoch_length(source: LoaderRun, facts: LoaderFacts) -> int | None:
    if facts.num_batches is not None:
        return facts.num_batches
    epochs = np.asarray(source.main.epoch)
    if epochs.size and epochs[-1] > 0:
        return int(np.median(np.bincount(epochs)[:-1]))
    return None


def _throughput(source: LoaderRun) -> Estimate | None:
    main, skip = source.main, _steady(source)
    call = np.asarray(main.call_s, dtype=np.float64)
    if call.size != len(main.wait_s) or call.size - skip < 4:
        return None
    back = call + np.asarray(main.wait_s)
    samples = np.asarray(main.samples or [1] * call.size, dtype=np.float64)
    return ratio(samples[skip + 1 :], np.diff(back[skip:]))


def _step(step: StepRun | None, source: LoaderRun) -> StepCosts:
    if step is not None and step.durations_s and step.failure is None:
        durations = np.asarray(step.durations_s, dtype=np.float64)
        cpu = float(np.mean(step.cpu_s)) if step.cpu_s and not step.emulated else 0.0
        return StepCosts(durations, cpu, float(step.samples_per_step))
    if source.coupled and source.main.step_s:
        durations = np.asarray(source.main.step_s, dtype=np.float64)[_steady(source) :]
        return StepCosts(durations, 0.0, _samples_per_batch(source.main))
    return StepCosts()


def _startup(source: LoaderRun) -> Startup:
    edges = source.epoch_edges_s
    return Startup(
        start_s=float(np.mean(source.worker_start_s)) if source.worker_start_s else 0.0,
        init_s=float(np.mean(source.worker_init_s)) if source.worker_init_s else 0.0,
        edge_s=float(np.median(edges)) if edges else None,
        first_batch_s=source.time_to_first_batch_s,
    )


def _memory(source: LoaderRun) -> Memory:
    pss = source.worker_pss_bytes
    return Memory(
        worker_bytes=float(np.mean(pss)) if pss else None,
        batch_bytes=None if source.batch_bytes is None else float(source.batch_bytes),
    )


@dataclass(frozen=True)
class _Rows:
    """A worker's rows as arrays, in order of the task where it is known, first batches of workers left out."""

    worker: Ints
    start_s: Floats
    put_s: Floats
    fetch_cpu_s: Floats
    fetch_blocked_s: Floats
    collate_cpu_s: Floats
    collate_blocked_s: Floats
    other_cpu_s: Floats
    nbytes: Floats


def _column(values: list[float] | list[int], n: int) -> Floats:
    return np.asarray(values, dtype=np.float64) if len(values) == n else np.zeros(n)


def _blocked(wall: Floats, cpu: Floats, runq: Floats) -> Floats:
    """Wall less CPU less waiting for a core; below 2% of the CPU it is the clocks' own error."""
    blocked = np.maximum(0.0, wall - cpu - runq)
    return np.zeros_like(blocked) if blocked.mean() < 0.02 * cpu.mean() else blocked


def _rows(rows: WorkerBatches) -> tuple[_Rows, float, float]:
    """Return the rows, CPU of taking and handing over [s], and what first batches cost more [s]."""
    n = len(rows.fetch_wall_s)
    worker = np.asarray(rows.worker, dtype=np.int64)
    index = np.asarray(rows.index if len(rows.index) == n else range(n))
    start, put = _column(rows.start_s, n), _column(rows.put_s, n)
    order = np.lexsort((start, index)) if (index >= 0).all() and np.unique(index).size == n else np.argsort(start)
    fetch = _column(rows.fetch_wall_s, n)
    collate = _column(rows.collate_wall_s, n)
    fetch_cpu, collate_cpu = _column(rows.fetch_cpu_s, n), _column(rows.collate_cpu_s, n)
    fetch_blocked = _blocked(fetch, fetch_cpu, _column(rows.fetch_runq_s, n))
    collate_blocked = _blocked(collate, collate_cpu, _column(rows.collate_runq_s, n))
    first = np.zeros(n, dtype=bool)
    for w in np.unique(worker):
        mine = np.flatnonzero(worker == w)
        first[mine[np.argmin(start[mine])]] = True
    keep = order[~first[order]] if n - first.sum() >= LEAST_BATCHES // 2 else order
    work = fetch + collate
    extra = max(0.0, float(np.median(work[first]) - np.median(work[keep]))) if first.any() else 0.0
    found = _Rows(
        worker[keep],
        start[keep],
        put[keep],
        fetch_cpu[keep],
        fetch_blocked[keep],
        collate_cpu[keep],
        collate_blocked[keep],
        _column(rows.other_cpu_s, n)[keep],
        _column(rows.nbytes, n)[keep],
    )
    hand_over = np.maximum(0.0, put - start - work)[keep]
    return found, _gaps(rows, n) + float(np.median(hand_over)), extra


def _gaps(rows: WorkerBatches, n: int) -> float:
    """Median time between handing a batch over and asking for the next task [s]."""
    worker, start, put = np.asarray(rows.worker), _column(rows.start_s, n), _column(rows.put_s, n)
    idle = _column(rows.idle_s, n)
    gaps = []
    for w in np.unique(worker):
        mine = np.flatnonzero(worker == w)
        mine = mine[np.argsort(start[mine])]
        gaps.append(start[mine][1:] - idle[mine][1:] - put[mine][:-1])
    every = np.concatenate(gaps)
    return max(0.0, float(np.median(every))) if every.size else 0.0


def _with_workers(base: Profile, source: LoaderRun, table: WorkerBatches, facts: LoaderFacts) -> Profile:
    rows, worker_cpu, extra = _rows(table)
    feed, threads = _other_threads(rows, source)
    serial = find_serial(rows.worker, rows.start_s, rows.put_s, rows.fetch_blocked_s, rows.fetch_cpu_s, source.stacks)
    blocked = rows.fetch_blocked_s
    if serial is not None:
        blocked = _less_queueing(blocked, serial)
    delivering = _delivered_by(table, source, facts)
    return replace(
        base,
        fetch_cpu_s=rows.fetch_cpu_s,
        fetch_blocked_s=blocked,
        collate_cpu_s=rows.collate_cpu_s,
        collate_blocked_s=rows.collate_blocked_s,
        worker=rows.worker,
        by_worker=workers_differ(rows.worker, rows.fetch_cpu_s + rows.fetch_blocked_s + rows.collate_cpu_s),
        worker_batches=delivering,
        worker_cpu_s=worker_cpu,
        feed_cpu_s=feed,
        threads_cpu_s=threads,
        main=_main_costs(source, rows),
        startup=replace(base.startup, first_extra_s=extra),
        serial=serial,
    )


def _other_threads(rows: _Rows, source: LoaderRun) -> tuple[float, float]:
    """Split the worker's other threads into the queue's (pickling, descriptors) and the dataset's own."""
    other = float(np.mean(rows.other_cpu_s))
    own = float(np.mean(rows.fetch_cpu_s + rows.collate_cpu_s))
    queue = QUEUE_THREAD_S * (1 + (source.batch_tensors or 1))
    if other > queue and other > 0.3 * own:
        return queue / 2, other - queue / 2
    return other, 0.0


def _less_queueing(blocked: Floats, serial: Serial) -> Floats:
    """Keep of the blocked time what is not spent in or before the server; the replay makes the queue anew."""
    rest = max(0.0, float(np.min(blocked)) - serial.service_s) if serial.kind == "storage" else 0.0
    return np.full_like(blocked, rest)


def _delivered_by(table: WorkerBatches, source: LoaderRun, facts: LoaderFacts) -> tuple[int, ...] | None:
    """Batches per worker and epoch where an iterable dataset serves its workers unevenly."""
    settings = source.settings
    if settings is None or facts.kind != "iterable" or settings.num_workers < 2:
        return None
    counts = np.bincount(np.asarray(table.worker, dtype=np.int64), minlength=settings.num_workers)
    if (counts > 0).all() or counts.sum() < 4 * settings.num_workers:
        return None
    # The ones that never delivered have no data; the others are not known to end.
    return tuple(1 << 40 if c else 0 for c in counts)


def _main_costs(source: LoaderRun, rows: _Rows) -> MainCosts:
    main, skip = source.main, _steady(source)
    wait_cpu = np.asarray(main.wait_cpu_s[skip:], dtype=np.float64)
    transport = np.asarray(main.transport_s[skip:], dtype=np.float64)
    sampler = np.asarray(main.sampler_s[skip:], dtype=np.float64)
    release = np.asarray(main.release_s[skip:], dtype=np.float64)
    received = float(np.mean(transport)) if transport.size else 0.0
    drawn = float(np.mean(sampler)) if sampler.size else 0.0
    cpu = float(np.mean(wait_cpu)) if wait_cpu.size else received + drawn
    if source.settings is not None and source.settings.num_workers == 0:
        # The main process fetches by itself: what its workers' rows do not hold is bookkeeping.
        own = float(np.mean(rows.fetch_cpu_s + rows.collate_cpu_s))
        return MainCosts(
            dispatch_cpu_s=max(drawn, cpu - own), release_s=float(np.mean(release)) if release.size else 0.0
        )
    receive = min(received, max(0.0, cpu - drawn - BOOKKEEPING_S))
    blocked = max(0.0, received - receive)
    return MainCosts(
        receive_cpu_s=receive,
        receive_busy_s=blocked,
        receive_idle_s=blocked,
        dispatch_cpu_s=max(drawn, cpu - receive),
        release_s=float(np.mean(release)) if release.size else 0.0,
    )


def _inline(base: Profile, source: LoaderRun) -> Profile:
    """num_workers=0 without rows: the wait is the fetch."""
    main, skip = source.main, _steady(source)
    wait = np.asarray(main.wait_s[skip:], dtype=np.float64)
    cpu = np.asarray(main.wait_cpu_s[skip:], dtype=np.float64)
    cpu = np.minimum(cpu, wait) if cpu.size == wait.size else wait
    zeros = np.zeros_like(wait)
    return replace(
        base,
        fetch_cpu_s=cpu,
        fetch_blocked_s=_blocked(wait, cpu, zeros),
        collate_cpu_s=zeros,
        collate_blocked_s=zeros,
        worker=np.zeros(wait.size, dtype=np.int64),
        main=MainCosts(release_s=float(np.mean(main.release_s[skip:])) if main.release_s[skip:] else 0.0),
        caveats=(
            *base.caveats,
            Caveat(
                code="calibrated-without-workers",
                text="calibrated with num_workers=0: the cost of moving batches between processes is not measured",
                settle="ioprobe loader TARGET --num-workers 2",
            ),
        ),
    )


def _correct(profile: Profile, source: LoaderRun) -> Profile:
    """Scale CPU demands so that the model reproduces the very setting that it was calibrated at."""
    if profile.kind == "opaque" or profile.measured is None or profile.current.num_workers == 0:
        return profile
    from ioprobe.model.predict import loader_rate

    step = np.asarray(source.main.step_s, dtype=np.float64)[_steady(source) :] if source.coupled else np.zeros(0)
    here = profile.current.at(step_s=float(step.mean()) if step.size else 0.0)
    corrected = profile
    for _ in range(3):
        simulated = loader_rate(corrected, here)
        error = simulated / profile.measured.value
        if abs(error - 1) < 0.003 or not 0.5 < corrected.correction * error < 1.6:
            break
        corrected = replace(corrected, correction=corrected.correction * error)
    return corrected
