"""From one measured run to the demands that the model replays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ioprobe.errors import MeasureError
from ioprobe.model.company import setting_of, with_rows
from ioprobe.model.fit import fit_edge
from ioprobe.model.handling import mean_of
from ioprobe.model.profile import MainCosts, Memory, Profile, Startup, StepCosts
from ioprobe.model.rates import steady_start, throughput
from ioprobe.model.rows import rows_of
from ioprobe.run import Caveat, LoaderFacts, LoaderRun, MainBatches, Run, StepRun

LEAST_BATCHES = 8


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
        base = replace(base, current=setting_of(asked.settings, base.step, asked), startup=_startup(source))
    rows = rows_of(source)
    settings = source.settings
    if rows is None and settings is not None and settings.num_workers == 0 and base.kind != "opaque":
        return _inline(base, source)
    if rows is None:
        return _opaque(base)
    return fit_edge(with_rows(base, source, rows, run), source)


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
        current=setting_of(settings, step, source),
        cores=_cores(run, source, step),
        samples_per_batch=_samples_per_batch(source.main),
        batches_per_epoch=_epoch_length(source, facts),
        step=step,
        startup=_startup(source),
        memory=_memory(source),
        waits_s=np.asarray(source.main.wait_s, dtype=np.float64)[skip:],
        measured=throughput(source, edges=False),
        foreign_share=_foreign_share(source, run),
        n=len(source.main.wait_s) - skip,
    )


def _cores(run: Run, source: LoaderRun, step: StepCosts) -> float:
    """Return the cores that the loader has: the workers' own where they were bound to fewer than they could use.

    Not where the step computes itself: the host's other cores are its own.
    """
    usable, bound = run.host.usable_cores, source.worker_cores
    crew = source.settings.num_workers if source.settings is not None else 0
    if bound is None or bound >= min(crew, usable) or step.cpu_s > 0.2 * step.mean_s:
        return usable
    return float(bound)


def _foreign_share(source: LoaderRun, run: Run) -> float:
    load = source.load
    return 0.0 if load is None else min(1.0, load.other_cores / max(1.0, run.host.usable_cores))


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
        main=MainCosts(release_s=mean_of(source.main.release_s, skip)),
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
