"""From one measured run to the demands that the model replays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ioprobe.errors import MeasureError
from ioprobe.model.contention import (
    GROWTH,
    Company,
    company,
    in_main_process,
    like_for_like,
    lock_share,
    rise_together,
    workers_differ,
)
from ioprobe.model.fit import fit_correction, fit_second, fit_serial
from ioprobe.model.predict import loader_rate
from ioprobe.model.profile import MainCosts, Memory, Profile, Serial, Setting, Startup, StepCosts
from ioprobe.model.rates import steady_start, throughput
from ioprobe.model.rows import Rows, rows_of
from ioprobe.run import Caveat, LoaderFacts, LoaderRun, LoaderSettings, MainBatches, Run, StepRun
from ioprobe.stats import Estimate

LEAST_BATCHES = 8
BOOKKEEPING_S = 60e-6
"""CPU of ``next(loader)`` itself: task tables, sending one task. It only splits a sum that is measured."""
BUSY_CORES = 1.3
"""Cores in use below which neighbours cannot slow each other's computing."""
LITTLE_BYTES = 100_000
"""Bytes per batch from the device that are no reading of data."""
QUEUE_THREADS_S = 3e-3
QUEUE_THREADS_PER_TENSOR_S = 0.6e-3
"""CPU that a worker's queue threads may take per batch before further threads are suspected."""


def calibrate(run: Run, *, use_loop: bool = False) -> Profile:
    """Return the demands of the run's loader.

    Further measurements in the run (the loop, verifications, a short one with a
    slow step) tell how workers get in each other's way.

    Args:
        run: A run with a measurement of the loader alone (or of the loop).
        use_loop: Calibrate from the coupled loop even where the loader was measured alone.

    Raises:
        MeasureError: the run holds no loader measurement, or one too short to calibrate from.
    """
    asked = _source(run, use_loop)
    source = _with_workers_if_any(run, asked)
    facts = run.facts or LoaderFacts()
    base = _base(run, source, facts)
    if source is not asked:
        base = replace(base, current=_setting(asked.settings, base.step, asked), startup=_startup(source))
    rows = rows_of(source)
    settings = source.settings
    if rows is None and settings is not None and settings.num_workers == 0 and base.kind != "opaque":
        return _inline(base, source)
    if rows is None:
        return _opaque(base)
    # Without workers, batches are made in the main process: nothing to compare with.
    others = [m for m in run.loaders if m is not source and m.name == source.name]
    others = [m for m in others if m.settings is not None and m.settings.num_workers and _alike_cached(m, source)]
    more = [r for m in others if (r := rows_of(m)) is not None]
    return _with_rows(base, source, rows, more, run)


def slow_step_s(profile: Profile) -> float | None:
    """Return the step [s] of a short further measurement that tells how workers get in each other's way.

    With it the workers mostly work one at a time. None where there is nothing to tell: one worker, or a
    profile that has seen workers alone already.
    """
    if not profile.adaptable or profile.current.num_workers < 2 or profile.seen_alone:
        return None
    return 1.25 * profile.batch_wall_s


def _source(run: Run, use_loop: bool) -> LoaderRun:
    order = [run.loop(), run.loader_alone()] if use_loop else [run.loader_alone(), run.loop()]
    order += list(reversed(run.loaders))
    for source in order:
        if source is not None and source.failure is None and len(source.main.wait_s) >= LEAST_BATCHES:
            return source
    if not run.loaders:
        raise MeasureError(
            "cannot predict: the run holds no measurement of the loader",
            hint="measure one with 'ioprobe loader TARGET' or 'ioprobe analyze TARGET'",
        )
    longest = max(len(m.main.wait_s) for m in run.loaders)
    raise MeasureError(
        f"cannot predict: the longest loader measurement has {longest} batches; expected {LEAST_BATCHES} or more",
        hint="measure longer (--seconds), or with smaller batches",
    )


def _with_workers_if_any(run: Run, asked: LoaderRun) -> LoaderRun:
    """Prefer a measurement with workers to one without: the latter knows nothing of moving batches."""
    if asked.settings is None or asked.settings.num_workers:
        return asked
    found = [
        m
        for m in run.loaders
        if m.name == asked.name
        and m.failure is None
        and not m.coupled
        and m.settings is not None
        and m.settings.num_workers
        and len(m.main.wait_s) >= LEAST_BATCHES
        and rows_of(m) is not None
    ]
    return found[-1] if found else asked


def _base(run: Run, source: LoaderRun, facts: LoaderFacts) -> Profile:
    settings = source.settings
    step = _step(run.step, source)
    skip = steady_start(source)
    return Profile(
        kind=facts.kind if settings is not None and facts.adaptable else "opaque",
        current=_setting(settings, step, source),
        cores=run.host.usable_cores,
        samples_per_batch=_samples_per_batch(source.main),
        batches_per_epoch=_epoch_length(source, facts),
        step=step,
        startup=_startup(source),
        memory=_memory(source),
        waits_s=np.asarray(source.main.wait_s, dtype=np.float64)[skip:],
        measured=throughput(source),
        foreign_share=_foreign_share(source, run),
        n=len(source.main.wait_s) - skip,
    )


def _foreign_share(source: LoaderRun, run: Run) -> float:
    load = source.load
    return 0.0 if load is None else min(1.0, load.other_cores / max(1.0, run.host.usable_cores))


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


def _samples_per_batch(main: MainBatches) -> float:
    return float(np.mean(main.samples)) if main.samples else 1.0


def _epoch_length(source: LoaderRun, facts: LoaderFacts) -> int | None:
    if facts.num_batches is not None:
        return facts.num_batches
    epochs = np.asarray(source.main.epoch)
    if epochs.size and epochs[-1] > 0:
        return int(np.median(np.bincount(epochs)[:-1]))
    return None


def _step(step: StepRun | None, source: LoaderRun) -> StepCosts:
    if step is not None and step.durations_s and step.failure is None:
        durations = np.asarray(step.durations_s, dtype=np.float64)
        cpu = float(np.mean(step.cpu_s)) if step.cpu_s and not step.emulated else 0.0
        return StepCosts(durations, cpu, float(step.samples_per_step))
    if source.coupled and source.main.step_s:
        durations = np.asarray(source.main.step_s, dtype=np.float64)[steady_start(source) :]
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


def _with_rows(base: Profile, source: LoaderRun, rows: Rows, more: list[Rows], run: Run) -> Profile:
    feed, threads = _other_threads(rows, source)
    crew = source.settings.num_workers if source.settings is not None else 0
    with_others = company(rows, more) if crew > 1 else None
    profile = replace(
        base,
        fetch_cpu_s=rows.fetch_cpu_s,
        fetch_blocked_s=rows.fetch_blocked_s,
        collate_cpu_s=rows.collate_cpu_s,
        collate_blocked_s=rows.collate_blocked_s,
        worker=rows.worker,
        by_worker=workers_differ(rows.worker, rows.cpu_s + rows.blocked_s),
        worker_batches=_delivered_by(rows, base, crew),
        worker_cpu_s=rows.overhead_s,
        feed_cpu_s=feed,
        threads_cpu_s=threads,
        main=_main_costs(source, rows, run.loaders),
        startup=replace(base.startup, first_extra_s=rows.first_extra_s),
        batch_wall_s=float(np.mean(rows.put_s - rows.start_s)),
        seen_alone=with_others is not None,
    )
    profile = _with_inline(profile, source, rows, run)
    if with_others is not None:
        profile = _with_contention(profile, rows, source, with_others)
    if not profile.adaptable:
        return profile  # a wrapper around the loader paces it: only its measured waits can be replayed
    drained = not source.coupled
    step = np.asarray(source.main.step_s, dtype=np.float64)[steady_start(source) :]
    here = _setting(source.settings, profile.step, source).at(
        step_s=0.0 if drained or not step.size else float(step.mean())
    )
    second = _second(run, source)
    # Where workers differ by themselves, one batch in the main process tells nothing of a queue.
    if with_others is None and profile.inline_blocked_s is not None and crew > 1 and not profile.by_worker:
        with_others = in_main_process(rows, profile.inline_cpu_s or 0.0, profile.inline_blocked_s)
        profile = replace(profile, seen_alone=True)
    if second is not None and with_others is None:
        there, rate = second
        suspect = _suspect_by_rate(profile, source, rows, here, there, rate)
        profile = replace(profile, seen_alone=True)
        if suspect is None:
            return fit_correction(profile, here)
        # Within the noise the fuller queue is taken: it promises less of more workers.
        fuller = rate.value + 0.5 * (rate.high - rate.value) * (1 if there.num_workers < here.num_workers else -1)
        return fit_second(profile, here, suspect, there, fuller)
    suspect = _suspect(profile, source, rows, with_others) if _loader_binds(source) else None
    if suspect is not None:
        profile = fit_serial(profile, here, suspect, with_others.blocked_alone_s if with_others else None)
    return fit_correction(profile, here)


def _alike_cached(a: LoaderRun, b: LoaderRun) -> bool:
    """Whether both read alike from the device: a warm cache is no faster storage, and cold reads are no queue."""
    if a.device_read_bytes is None or b.device_read_bytes is None:
        return True
    read = [m.device_read_bytes / max(1, len(m.main.wait_s)) for m in (a, b) if m.device_read_bytes is not None]
    return max(read) < LITTLE_BYTES or min(read) > 0.5 * max(read)


def _with_inline(profile: Profile, source: LoaderRun, crowded: Rows, run: Run) -> Profile:
    """Add what a measurement without workers says: no shared memory is filled, no core is shared."""
    for m in run.loaders:
        inline = m.settings is not None and not m.settings.num_workers and m.failure is None and m.name == source.name
        rows = rows_of(m) if inline and m is not source and _alike_cached(m, source) else None
        if rows is not None and rows.size >= LEAST_BATCHES // 2:
            cpu, blocked = like_for_like(crowded, rows)
            release = _mean(m.main.release_s, 1)
            return replace(profile, inline_cpu_s=cpu, inline_blocked_s=blocked, inline_release_s=release)
    return profile


def _second(run: Run, source: LoaderRun) -> tuple[Setting, Estimate] | None:
    """Return another drained measurement at another number of workers, the one that differs most."""
    found = []
    for m in run.loaders:
        rate = throughput(m)
        if m.coupled or source.coupled or m.failure is not None or m.name != source.name or rate is None:
            continue
        if m.settings is None or source.settings is None or not m.settings.num_workers:
            continue
        apart = abs(np.log(m.settings.num_workers / max(1, source.settings.num_workers)))
        if apart > 0:
            found.append((float(apart), _setting(m.settings, StepCosts(), m), rate))
    if not found:
        return None
    _, there, rate = max(found, key=lambda f: f[0])
    return there, rate


def _suspect_by_rate(
    profile: Profile, source: LoaderRun, rows: Rows, here: Setting, there: Setting, rate: Estimate
) -> Serial | None:
    """Return a queue where the rates at two worker counts differ less than independent workers' would."""
    own = profile.measured
    if own is None or rows.blocked_s.mean() < 0.15 * (rows.cpu_s + rows.blocked_s).mean():
        return None
    plain = fit_correction(profile, here)
    ratio = loader_rate(plain, there) / rate.value
    scales_less = ratio < 1 if there.num_workers < here.num_workers else ratio > 1
    noise = min(0.25, own.relative_halfwidth + rate.relative_halfwidth)
    if not scales_less or abs(np.log(ratio)) < max(0.08, noise):
        return None
    kind = "lock" if lock_share(source.stacks) >= 0.1 else "storage"
    because = (
        f"{there.num_workers} workers deliver {rate.value:.0f} samples/s and {here.num_workers} {own.value:.0f}: "
        "independent waits would scale with the workers"
    )
    return Serial(kind=kind, service_s=0.0, because=because)


def _other_threads(rows: Rows, source: LoaderRun) -> tuple[float, float]:
    """Split the worker's other threads into the queue's (pickling, descriptors) and the dataset's own."""
    other, own = float(np.mean(rows.other_cpu_s)), float(np.mean(rows.cpu_s))
    queue = QUEUE_THREADS_S + QUEUE_THREADS_PER_TENSOR_S * (source.batch_tensors or 1)
    if source.settings is not None and source.settings.num_workers == 0:
        return 0.0, 0.0
    if other > queue and other > 0.3 * own:
        return 0.0, other
    return other, 0.0


def _with_contention(profile: Profile, rows: Rows, source: LoaderRun, found: Company) -> Profile:
    """Take out of the CPU times what busy neighbours add; the replay adds it where there are any."""
    cores = profile.cores
    if cores <= 1 or not 1.02 < found.cpu_growth < 3.0:
        return profile
    busy = min(source.load.own_cores if source.load is not None else 1.0 + float(rows.crowd.mean()), cores)
    if busy < BUSY_CORES:
        return profile
    growth = found.cpu_growth
    slowdown = (growth - 1) * (cores - 1) / (busy - 1)
    return replace(
        profile,
        contention=slowdown,
        fetch_cpu_s=profile.fetch_cpu_s / growth,
        collate_cpu_s=profile.collate_cpu_s / growth,
        worker_cpu_s=profile.worker_cpu_s / growth,
        feed_cpu_s=profile.feed_cpu_s / growth,
        threads_cpu_s=profile.threads_cpu_s / growth,
    )


def _loader_binds(source: LoaderRun) -> bool:
    """Whether the measured rate is the loader's, not the step's."""
    main, skip = source.main, steady_start(source)
    if not source.coupled or not main.step_s:
        return True
    waited, stepped = sum(main.wait_s[skip:]), sum(main.step_s[skip:])
    return waited > 0.15 * (waited + stepped)


def _suspect(profile: Profile, source: LoaderRun, rows: Rows, found: Company | None) -> Serial | None:
    """Return the queue that workers seem to stand in, its service time still open."""
    if source.settings is None or source.settings.num_workers < 2 or profile.worker_batches is not None:
        return None
    service = float((rows.cpu_s + rows.blocked_s).mean())
    locked = lock_share(source.stacks)
    kind = "lock" if locked >= 0.1 else "storage"
    if found is not None:
        added = float(rows.blocked_s.mean()) - found.blocked_alone_s
        if found.blocked_growth < GROWTH or added < 0.05 * service:
            return None
        because = f"workers block {found.blocked_growth:.1f} times as long in company as alone"
        return Serial(kind=kind, service_s=0.0, because=because)
    if rows.blocked_s.mean() < 0.1 * service:
        return None
    if kind == "lock":
        because = f"workers stood at a lock in {100 * locked:.0f}% of their stacks"
        return Serial(kind=kind, service_s=0.0, because=because)
    together = rise_together(rows)
    if together < 0.5:
        return None
    because = f"blocked times of workers rise and fall together (correlation {together:.2f})"
    return Serial(kind=kind, service_s=0.0, because=because)


def _delivered_by(rows: Rows, base: Profile, crew: int) -> tuple[int, ...] | None:
    """Batches per worker where an iterable dataset has none for some of its workers."""
    if base.kind != "iterable" or crew < 2:
        return None
    counts = np.bincount(rows.worker, minlength=crew)
    if (counts > 0).all() or counts.sum() < 4 * crew:
        return None
    return tuple(1 << 40 if c else 0 for c in counts)


def _main_costs(source: LoaderRun, rows: Rows, loaders: list[LoaderRun]) -> MainCosts:
    main, skip = source.main, steady_start(source)
    received, drawn = _mean(main.transport_s, skip), _mean(main.sampler_s, skip)
    cpu = _mean(main.wait_cpu_s, skip) or received + drawn
    release = _mean(main.release_s, skip)
    if source.settings is not None and source.settings.num_workers == 0:
        # The main process fetches by itself: what the rows do not hold is bookkeeping.
        return MainCosts(dispatch_cpu_s=max(drawn, cpu - float(rows.cpu_s.mean())), release_s=release)
    receive = min(received, max(0.0, cpu - drawn - BOOKKEEPING_S))
    busy = max(0.0, received - receive)
    dispatch = max(drawn, cpu - receive)
    ready = [r for m in loaders if m.coupled and m.name == source.name and (r := _ready_wait(m)) is not None]
    idle = max(0.0, min(ready) - receive - dispatch) if ready else busy
    busy = max(busy, idle)
    return MainCosts(
        receive_cpu_s=receive,
        receive_busy_s=busy,
        receive_idle_s=idle,
        dispatch_cpu_s=dispatch,
        release_s=release,
    )


def _ready_wait(loop: LoaderRun) -> float | None:
    """Return the usual wait for a batch that lies ready [s]: all of it is handling; None where none did."""
    skip = steady_start(loop)
    waits = [w for w, ready in zip(loop.main.wait_s[skip:], loop.main.ready[skip:], strict=False) if ready > 0]
    settings = loop.settings
    if len(waits) < LEAST_BATCHES or settings is None or not settings.num_workers:
        return None
    return float(np.median(waits))


def _mean(values: list[float], skip: int) -> float:
    kept = values[skip:]
    return float(np.mean(kept)) if kept else 0.0


def _inline(base: Profile, source: LoaderRun) -> Profile:
    """num_workers=0 without rows: the wait is the fetch."""
    skip = steady_start(source)
    wait = np.asarray(source.main.wait_s[skip:], dtype=np.float64)
    cpu = np.asarray(source.main.wait_cpu_s[skip:], dtype=np.float64)
    cpu = np.minimum(cpu, wait) if cpu.size == wait.size else wait
    zeros = np.zeros_like(wait)
    caveat = Caveat(
        code="calibrated-without-workers",
        text="calibrated with num_workers=0: the cost of moving batches between processes is not measured",
        settle="ioprobe loader TARGET --num-workers 2",
    )
    return replace(
        base,
        fetch_cpu_s=cpu,
        fetch_blocked_s=np.maximum(0.0, wait - cpu),
        collate_cpu_s=zeros,
        collate_blocked_s=zeros,
        worker=np.zeros(wait.size, dtype=np.int64),
        main=MainCosts(release_s=_mean(source.main.release_s, skip)),
        caveats=(*base.caveats, caveat),
    )


def _opaque(base: Profile) -> Profile:
    if base.kind == "opaque":
        return base
    caveat = Caveat(
        code="no-worker-times",
        text="the workers' own times were not measured; the loader can only be replayed as it was",
        settle="ioprobe loader TARGET",
    )
    return replace(base, kind="opaque", caveats=(*base.caveats, caveat))
