"""Make the replay reproduce the very measurement that it was calibrated from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ioprobe.model.bounds import bounds
from ioprobe.model.predict import loader_rate
from ioprobe.model.profile import Profile, Serial, Setting
from ioprobe.model.simulate import simulate
from ioprobe.model.system import build
from ioprobe.run import LoaderRun

CLOSE = 0.004
"""Relative error at which the replay is as good as the measurement."""
AMPLE = 0.01
"""Excess of a replayed rate that still counts as explained [fraction]."""
FIT_BATCHES = 160
"""Batches of a replay within a nested fit; the rates it compares differ by more than its noise."""
MOST_EPOCH = 3000
"""Batches of an epoch beyond which its edge hardly counts."""
MOST = 1.35
"""A larger correction than this (or its inverse) is no correction but another cause."""


def fit_serial(profile: Profile, here: Setting, suspect: Serial, blocked_alone_s: float | None) -> Profile:
    """Return the profile with the shared queue's service time found by bisection on the measured rate.

    Args:
        profile: Calibrated but for the queue; its blocked times still hold the queueing.
        here: The measured setting.
        suspect: The queue, its service time open.
        blocked_alone_s: Blocked time of a batch made alone [s]; None where none was seen.
    """
    if profile.measured is None or profile.measured.value <= 0:
        return profile
    per_batch = profile.samples_per_batch / profile.measured.value
    cpu = float(profile.fetch_cpu_s.mean())
    blocked = float(profile.fetch_blocked_s.mean())
    # Without a look at workers alone, take the queue as never empty: the batches' rate is the server's.
    alone = blocked_alone_s if blocked_alone_s is not None else max(0.0, blocked - per_batch * (here.num_workers - 1))
    low, high = 0.0, min(per_batch, alone + cpu)
    if blocked_alone_s is None:
        low = high
    for _ in range(12):
        middle = (low + high) / 2
        if loader_rate(_queued(profile, suspect, middle, alone), here) > profile.measured.value:
            low = middle
        else:
            high = middle
        if high - low < CLOSE * per_batch:
            break
    return _queued(profile, suspect, (low + high) / 2, alone)


def fit_second(profile: Profile, here: Setting, suspect: Serial, there: Setting, rate: float) -> Profile:
    """Return the profile with a shared queue that explains the rates at two worker counts.

    For each service time of the queue, what a batch is blocked besides is fitted
    to the rate here; the service time is then bisected on the rate there. The
    more of the waiting is queueing, the less the number of workers matters.

    Args:
        profile: Calibrated but for the queue.
        here: The setting that it was calibrated at.
        suspect: The queue, its service time open.
        there: Another measured setting.
        rate: Throughput there [samples/s].
    """
    if profile.measured is None or profile.measured.value <= 0 or rate <= 0:
        return profile
    fewer = there.num_workers < here.num_workers
    # A queue that never empties delivers alike with fewer workers and with more.
    rate = min(rate, 0.995 * profile.measured.value) if fewer else max(rate, 1.005 * profile.measured.value)
    low, high = 0.0, profile.samples_per_batch / max(rate, profile.measured.value)
    best, least = profile, math.inf
    for _ in range(9):
        service = (low + high) / 2
        fitted = _beside(profile, here, suspect, service)
        found = loader_rate(fitted, there, batches=FIT_BATCHES)
        if abs(math.log(found / rate)) < least:
            best, least = fitted, abs(math.log(found / rate))
        # More queueing brings the rate with fewer workers up, and with more workers down.
        if (found < rate) == fewer:
            low = service
        else:
            high = service
    return best


def _beside(profile: Profile, here: Setting, suspect: Serial, service_s: float) -> Profile:
    """Fit what a batch is blocked outside the queue to the rate here; the least that explains it.

    A queue that never empties hides what comes before it, so many values would do.
    """
    assert profile.measured is not None
    most = profile.measured.value * (1 + AMPLE)
    low, high = service_s, max(service_s, float(profile.fetch_blocked_s.mean()))
    fitted = _queued(profile, suspect, service_s, low)
    if loader_rate(fitted, here, batches=FIT_BATCHES) <= most:
        return fitted
    for _ in range(7):
        alone = (low + high) / 2
        fitted = _queued(profile, suspect, service_s, alone)
        if loader_rate(fitted, here, batches=FIT_BATCHES) > most:
            low = alone
        else:
            high = alone
    return fitted


def _queued(profile: Profile, suspect: Serial, service_s: float, alone_s: float) -> Profile:
    """Split what a batch alone is blocked into the server's part and the rest; the replay queues anew."""
    rest = np.full_like(profile.fetch_blocked_s, max(0.0, alone_s - service_s))
    uses_cpu = service_s > 2 * alone_s
    # What the server takes beyond all that a batch alone is blocked is the price of standing in line.
    own = service_s if uses_cpu else min(service_s, alone_s)
    serial = replace(suspect, service_s=own, hand_over_s=service_s - own, uses_cpu=uses_cpu)
    return replace(profile, serial=serial, fetch_blocked_s=rest)


def fit_edge(profile: Profile, source: LoaderRun) -> Profile:
    """Return the profile with what an edge between epochs took beyond starting workers and their first batches.

    Stopping the old workers is in no time of theirs. Only the edges of the measurement calibrated from count.
    """
    here, length = profile.current, profile.batches_per_epoch
    if not (profile.adaptable and length and profile.startup.edge_s is not None):
        return profile
    if length > MOST_EPOCH:
        return profile
    drained = here if source.coupled else here.at(step_s=0.0)
    system = replace(build(profile, drained), batches_per_epoch=length)
    trace = simulate(system, length + 1)
    if trace.return_s.size <= length:
        return profile
    more = profile.startup.edge_s - float(trace.wait_s[length])
    drawn = min(max(0.0, more), _drawn_s(source))
    return replace(profile, startup=replace(profile.startup, draw_s=drawn, stop_s=max(0.0, more - drawn)))


def _drawn_s(source: LoaderRun) -> float:
    """Return how long the sampler took at an epoch's first batch, by the median [s]; 0 where that is not known."""
    main = source.main
    if len(main.sampler_s) != len(main.epoch) or len(main.epoch) < 2:
        return 0.0
    edges = np.flatnonzero(np.diff(main.epoch) > 0) + 1
    return float(np.median(np.asarray(main.sampler_s)[edges])) if edges.size else 0.0


def fit_correction(profile: Profile, here: Setting) -> Profile:
    """Make the replay give the measured rate: switches, caches, wake-ups are in no worker's own time.

    Where cores bind, threads on all cores slow each other by what is missing; else the workers' times are scaled.
    """
    if profile.measured is None or here.num_workers == 0 or profile.measured.value <= 0:
        return profile
    binding = bounds(profile, here).binding
    if binding not in ("workers", "cores"):
        return profile
    fitted = profile
    for _ in range(4):
        error = loader_rate(fitted, here) / profile.measured.value
        if abs(error - 1) < CLOSE:
            break
        # Neighbours that took cores slowed this measurement; they are no trait of the loader.
        error **= 1 - profile.foreign_share
        slowed = (1 + fitted.contention) * error - 1
        if binding == "cores" and profile.cores > 1 and fitted.correction == 1 and 0 <= slowed < MOST - 1:
            fitted = replace(fitted, contention=slowed)
            continue
        wanted = fitted.correction * error
        if not 1 / MOST < wanted < MOST:
            break
        fitted = replace(fitted, correction=wanted)
    return fitted
