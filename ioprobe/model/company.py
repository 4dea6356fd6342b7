"""How workers get in each other's way, from all measurements of a run: cores, queues, shards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

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
from ioprobe.model.handling import main_costs, mean_of, other_threads, shared_cpu_s, waits_for_own_threads
from ioprobe.model.helpers import helper_cpu_s, in_line_s
from ioprobe.model.predict import loader_rate
from ioprobe.model.profile import Profile, Serial, Setting, StepCosts
from ioprobe.model.rates import steady_start, throughput
from ioprobe.model.rows import LEAST_ROWS, Extra, Rows, rows_of
from ioprobe.model.shards import GOES_ON, delivered_by, settled_s
from ioprobe.run import LoaderRun, LoaderSettings, Run
from ioprobe.stats import Estimate

BUSY_CORES = 1.3
"""Cores in use below which neighbours cannot slow each other's computing."""
MISCOUNTED = 0.05
"""How far off the counted time without a core may be [fraction]."""
LITTLE_BYTES = 100_000
"""Bytes per batch from the device that are no reading of data."""


def setting_of(settings: LoaderSettings | None, step: StepCosts, source: LoaderRun) -> Setting:
    """Return the setting that a measurement was made at; drained where it has no step."""
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


def with_rows(base: Profile, source: LoaderRun, rows: Rows, run: Run) -> Profile:
    """Return the profile with the workers' demands, what they add to each other taken apart.

    Args:
        base: What is known without the workers' rows.
        source: The measurement to calibrate from.
        rows: Its rows.
        run: The run, whose further measurements tell what workers alone, or the main process, take.
    """
    helpers = helper_cpu_s(source, run.loaders, base.cores)
    feed, threads = other_threads(rows, source)
    children = float(rows.child_cpu_s.mean())
    in_line = in_line_s(rows, source, children, helpers, base.cores)
    rows, beside = waits_for_own_threads(rows, threads + children + helpers, in_line)
    main = main_costs(source, rows, run.loaders, base.cores)
    crew = source.settings.num_workers if source.settings is not None else 0
    with_others = company(rows, _others(source, run, helpers)) if crew > 1 else None
    shards = delivered_by(source) if base.kind == "iterable" else None
    if shards is not None and max(shards) == GOES_ON:
        rows = rows.only(np.isin(rows.worker, [w for w, count in enumerate(shards) if count]))
    # A worker that persists calls a stream's __iter__ again for each epoch, and of a map nothing.
    persistent = source.settings is not None and source.settings.persistent_workers
    again = rows.again if persistent or base.kind == "iterable" else Extra()
    profile = replace(
        base,
        fetch_cpu_s=rows.fetch_cpu_s,
        fetch_blocked_s=rows.fetch_blocked_s,
        collate_cpu_s=rows.collate_cpu_s,
        collate_blocked_s=rows.collate_blocked_s,
        worker=rows.worker,
        by_worker=workers_differ(rows.worker, rows.cpu_s + rows.blocked_s),
        worker_batches=shards,
        worker_cpu_s=rows.overhead_s,
        feed_cpu_s=feed,
        share_cpu_s=shared_cpu_s(feed, main, source),
        threads_cpu_s=beside,
        main=main,
        startup=replace(
            base.startup,
            first_extra_s=rows.first.cpu_s,
            first_blocked_s=rows.first.blocked_s,
            again_extra_s=again.cpu_s,
            again_blocked_s=again.blocked_s,
        ),
        measured=_measured(source, shards),
        batch_wall_s=float(np.mean(rows.put_s - rows.start_s)),
        seen_alone=with_others is not None,
    )
    profile = _with_inline(profile, source, rows, run, helpers)
    if with_others is not None:
        profile = _with_contention(profile, rows, source, with_others)
    if not profile.adaptable:
        return profile  # a wrapper around the loader paces it: only its measured waits can be replayed
    drained = not source.coupled
    step = np.asarray(source.main.step_s, dtype=np.float64)[steady_start(source) :]
    here = setting_of(source.settings, profile.step, source).at(
        step_s=0.0 if drained or not step.size else float(step.mean())
    )
    second = _second(run, source)
    # Where workers differ by themselves, one batch in the main process tells nothing of a queue.
    if with_others is None and profile.inline_blocked_s is not None and crew > 1 and not profile.by_worker:
        with_others = in_main_process(rows, profile.inline_cpu_s or 0.0, profile.inline_blocked_s)
        profile = replace(profile, seen_alone=True)
    if with_others is not None:
        profile, rows = _without_miscounted(profile, rows, with_others)
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


def _measured(source: LoaderRun, shards: tuple[int, ...] | None) -> Estimate | None:
    """Return the rate that the replay of the steady state has to reproduce; None where there is no such state."""
    if shards is None:
        return throughput(source, edges=False)
    if max(shards) < GOES_ON:
        return None
    return throughput(source, edges=False, after_s=settled_s(source))


def _others(source: LoaderRun, run: Run, helpers_s: float) -> list[Rows]:
    """Rows of further measurements with workers; without them the main process makes batches another way."""
    found = [m for m in run.loaders if m is not source and m.name == source.name]
    found = [m for m in found if m.settings is not None and m.settings.num_workers and _alike_cached(m, source)]
    pairs = [(r, m) for m in found if (r := rows_of(m)) is not None]
    return [_own(r, other_threads(r, m)[1] + helpers_s) for r, m in pairs]


def _own(rows: Rows, threads_s: float) -> Rows:
    """Return rows with the waiting for the worker's own threads and processes as computing."""
    return waits_for_own_threads(rows, threads_s + float(rows.child_cpu_s.mean()))[0]


def _alike_cached(a: LoaderRun, b: LoaderRun) -> bool:
    """Whether both read alike from the device: a warm cache is no faster storage, and cold reads are no queue."""
    if a.device_read_bytes is None or b.device_read_bytes is None:
        return True
    read = [m.device_read_bytes / max(1, len(m.main.wait_s)) for m in (a, b) if m.device_read_bytes is not None]
    return max(read) < LITTLE_BYTES or min(read) > 0.5 * max(read)


def _with_inline(profile: Profile, source: LoaderRun, crowded: Rows, run: Run, helpers_s: float) -> Profile:
    """Add what a measurement without workers says: no shared memory is filled, no core is shared."""
    for m in run.loaders:
        inline = m.settings is not None and not m.settings.num_workers and m.failure is None and m.name == source.name
        rows = rows_of(m) if inline and m is not source and _alike_cached(m, source) else None
        if rows is not None and rows.size >= LEAST_ROWS:
            cpu, blocked = like_for_like(crowded, _own(rows, helpers_s))
            release = mean_of(m.main.release_s, 1)
            return replace(profile, inline_cpu_s=cpu, inline_blocked_s=blocked, inline_release_s=release)
    return profile


def _second(run: Run, source: LoaderRun) -> tuple[Setting, Estimate] | None:
    """Return another drained measurement at another number of workers, the one that differs most."""
    found = []
    for m in run.loaders:
        rate = throughput(m, edges=False)
        if m.coupled or source.coupled or m.failure is not None or m.name != source.name or rate is None:
            continue
        if m.settings is None or source.settings is None or not m.settings.num_workers:
            continue
        apart = abs(np.log(m.settings.num_workers / max(1, source.settings.num_workers)))
        if apart > 0:
            found.append((float(apart), setting_of(m.settings, StepCosts(), m), rate))
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


def _without_miscounted(profile: Profile, rows: Rows, found: Company) -> tuple[Profile, Rows]:
    """Take out of the waits what is only miscounted: the time without a core is known to some per cent of itself."""
    blocked = float(rows.fetch_blocked_s.mean())
    added = blocked - found.blocked_alone_s
    if not 0 < added < MISCOUNTED * (profile.batch_wall_s - float((rows.cpu_s + rows.blocked_s).mean())):
        return profile, rows
    own = rows.fetch_blocked_s * (found.blocked_alone_s / blocked)
    return replace(profile, fetch_blocked_s=own), replace(rows, fetch_blocked_s=own)


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
        share_cpu_s=profile.share_cpu_s / growth,
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
        added = float(rows.fetch_blocked_s.mean()) - found.blocked_alone_s
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
