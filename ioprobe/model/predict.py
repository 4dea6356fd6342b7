"""What a setting would give: the replay, its interval, and when to doubt it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ioprobe.model.bounds import bounds
from ioprobe.model.profile import Floats, Prediction, Profile, Setting
from ioprobe.model.quality import quality_caveat
from ioprobe.model.simulate import System, Trace, simulate
from ioprobe.model.system import build
from ioprobe.run import Caveat
from ioprobe.stats import Estimate

CONFIDENCE_90 = 1.645
KNOWN_ERROR = {"step": 0.059, "workers": 0.109, "cores": 0.112, "main": 0.128, "storage": 0.051, "lock": 0.093}
"""Standard error of the replay by what binds [fraction].

This and ``UNEVEN_S`` are from ``python benchmarks/model_intervals.py``: 1,202 cells of 18 workloads on a 2-core virtual
machine, of two hours with calibrations of their own; its speed drifts, and that is part of them. Such 90% intervals
held 86% of the cells of workloads left out of the fit. Storage and lock bind in one workload each."""
UNEVEN_S = 332e-6
"""Standard error of the time per batch that does not grow with it [s]: wake-ups, switches, collections."""
NEIGHBOURS = 0.35
"""Addition for a host whose cores are all used by others [fraction], from 731 cells calibrated beside some; the 90%
intervals hold 91% of those."""
MOST_BATCHES = 3000
"""Batches of one replay at most; longer epochs have edges that hardly count."""


def predict(profile: Profile, setting: Setting, *, seed: int = 0, batches: int | None = None) -> Prediction:
    """Return what the loop would do at a setting.

    Args:
        profile: A calibrated loader.
        setting: The setting, what-if factors included.
        seed: Seed of the replay; the same seed gives the same answer.
        batches: Batches to replay; None chooses.
    """
    if not profile.adaptable:
        return _opaque(profile, setting)
    system = build(profile, setting, seed=seed)
    length = batches or _length(profile, setting)
    steady = simulate(_endless(system), length)
    samples = profile.samples_per_batch * setting.batch_size_factor
    rate, stall, waits = _steady(steady, setting)
    alone = simulate(_endless(_drained(system)), length)
    loader = _steady(alone, setting)[0]
    ceiling = bounds(profile, setting)
    error = _error(profile, ceiling.binding, 1 / rate if rate > 0 else math.inf)
    epoch_rate, epoch_stall = _epoch(system, samples, rate, stall)
    memory, shm = _memory(profile, setting)
    p50, p95, p99 = (float(q) for q in np.quantile(waits, [0.5, 0.95, 0.99]))
    return Prediction(
        setting=setting,
        samples_per_s=_estimate(rate * samples, error, profile.n),
        stall_share=_stall_estimate(stall, error, profile.n),
        loader_samples_per_s=_estimate(loader * samples, error, profile.n),
        epoch_samples_per_s=epoch_rate,
        epoch_stall_share=epoch_stall,
        wait_p50_s=p50,
        wait_p95_s=p95,
        wait_p99_s=p99,
        time_to_first_batch_s=float(steady.return_s[0]),
        binding=ceiling.binding,
        drains_after_steps=_drain(system, stall, length),
        memory_bytes=memory,
        shm_bytes=shm,
        extrapolates=doubts(profile, setting),
    )


def loader_rate(profile: Profile, setting: Setting, *, seed: int = 0, batches: int | None = None) -> float:
    """Return the steady rate alone [samples/s], without the rest of a prediction."""
    trace = simulate(_endless(build(profile, setting, seed=seed)), batches or _length(profile, setting))
    return _steady(trace, setting)[0] * profile.samples_per_batch * setting.batch_size_factor


def _endless(system: System) -> System:
    return replace(system, batches_per_epoch=None)


def _drained(system: System) -> System:
    return replace(system, step_s=(0.0,), step_cpu_share=0.0, main_first=True)


def _length(profile: Profile, setting: Setting) -> int:
    return int(min(MOST_BATCHES, max(300, 12 * setting.depth, 2 * profile.fetch_cpu_s.size)))


def _steady(trace: Trace, setting: Setting) -> tuple[float, float, Floats]:
    """Return batches per second, stall share and the waits, past the prefetched burst."""
    n = trace.return_s.size
    skip = min(n // 3, max(6, 3 * setting.depth))
    crew = max(1, setting.num_workers)
    last = skip + (n - 1 - skip) // crew * crew  # whole rounds of workers
    span = float(trace.return_s[last] - trace.return_s[skip])
    waits = trace.wait_s[skip + 1 : last + 1]
    if span <= 0:
        return math.inf, 0.0, waits
    return (last - skip) / span, float(waits.sum()) / span, waits


def _epoch(system: System, samples: float, rate: float, stall: float) -> tuple[float | None, float | None]:
    """Rate and stall share over whole epochs, start-up of workers at their edges included."""
    length = system.batches_per_epoch
    if length is None or length > MOST_BATCHES:
        return None, None
    if not system.num_workers and not system.again_extra_s + system.again_blocked_s + system.edge_s:
        return None, None
    # What an edge costs shows within a few rounds of the queue; the rest of a long epoch is steady state.
    played = (
        length
        if system.worker_batches is not None
        else min(length, 40 + 6 * system.num_workers * system.prefetch_factor)
    )
    # One batch more: a replay ends with its last batch, whose step is not in it.
    trace = simulate(replace(system, batches_per_epoch=played), 2 * played + 1)
    if trace.return_s.size <= 2 * played:
        return None, None
    begin, end = float(trace.step_end_s[played - 1]), float(trace.step_end_s[2 * played - 1])
    waits = float(trace.wait_s[played : 2 * played].sum())
    rest = (length - played) / rate if rate > 0 else 0.0
    span = end - begin + rest
    return length / span * samples, (waits + stall * rest) / span


def _drain(system: System, stall: float, length: int) -> int | None:
    """Steps for which a full buffer hides that the loader is too slow."""
    if stall < 0.02 or system.num_workers == 0 or max(system.step_s) <= 0:
        return None
    depth = system.num_workers * system.prefetch_factor
    trace = simulate(_endless(system), max(50, min(length, 20 * depth)), start_full=True)
    floor = system.receive_cpu_s + system.receive_busy_s + system.dispatch_cpu_s
    slow = np.flatnonzero(trace.wait_s[1:] > 2 * floor + 0.02 * float(np.mean(system.step_s)))
    return int(slow[0]) + 1 if slow.size else None


def _memory(profile: Profile, setting: Setting) -> tuple[float | None, float | None]:
    worker, batch = profile.memory.worker_bytes, profile.memory.batch_bytes
    held = None if batch is None else batch * setting.batch_size_factor * max(1, setting.depth + 1)
    if setting.num_workers == 0:
        return held, 0.0
    total = None if worker is None else worker * setting.num_workers + (held or 0.0)
    return total, held


def _error(profile: Profile, binding: str, per_batch_s: float) -> float:
    """Standard error of a predicted rate [fraction]: the calibration's own and the model's known one."""
    own = calibration_error(profile, binding)
    uneven = UNEVEN_S / max(per_batch_s, UNEVEN_S)
    return math.hypot(own, KNOWN_ERROR[binding], uneven, NEIGHBOURS * profile.foreign_share)


def calibration_error(profile: Profile, binding: str) -> float:
    """Return the part of a prediction's standard error that the calibration knows of itself [fraction]."""
    if binding == "step":
        return 0.0
    return min(0.5, profile.measured.relative_halfwidth / 1.96) if profile.measured is not None else 0.05


def _estimate(value: float, error: float, n: int) -> Estimate:
    half = CONFIDENCE_90 * error
    return Estimate(value, value * max(0.0, 1 - half), value * (1 + half), n)


def _stall_estimate(stall: float, error: float, n: int) -> Estimate:
    # stall = 1 - step * rate: an error of the rate moves what is not stall.
    half = CONFIDENCE_90 * error * (1 - stall)
    return Estimate(stall, max(0.0, stall - half), min(1.0, stall + half), n)


def doubts(profile: Profile, setting: Setting) -> tuple[Caveat, ...]:
    """Return why to trust a prediction at a setting less."""
    found = list(profile.caveats)
    here = max(1, profile.current.num_workers)
    if setting.num_workers > 4 * here:
        found.append(
            Caveat(
                code="extrapolates",
                text=f"num_workers={setting.num_workers} is {setting.num_workers / here:.0f} times the measured {here}",
                settle=f"ioprobe loader TARGET --num-workers {setting.num_workers}",
            )
        )
    if setting.cores is not None and setting.cores > 2 * profile.cores:
        found.append(
            Caveat(
                code="extrapolates",
                text=f"{setting.cores:g} cores; measured on {profile.cores:g}",
                settle="ioprobe loader TARGET on a host with that many cores",
            )
        )
    size = profile.samples_per_batch
    if round(size * setting.batch_size_factor) != round(size):
        found.append(quality_caveat(f"batches of {setting.batch_size_factor:.3g} times the measured size"))
    if setting.batch_size_factor > 4 or setting.batch_size_factor < 0.25:
        found.append(
            Caveat(
                code="extrapolates",
                text=f"batches of {setting.batch_size_factor:.2g} times the measured size: time is taken to grow alike",
                settle="ioprobe loader TARGET with that batch size",
            )
        )
    if setting.num_workers > 1 and here > 1 and not profile.seen_alone and profile.serial is None:
        blocked = profile.service_blocked_s
        if setting.num_workers > here and blocked > 0.35 * (blocked + profile.service_cpu_s):
            found.append(
                Caveat(
                    code="one-setting",
                    text=f"measured with {here} workers only: a lock or a full link would look like latency",
                    settle="ioprobe loader TARGET --num-workers 1",
                )
            )
    return tuple(found)


def _opaque(profile: Profile, setting: Setting) -> Prediction:
    """Replay the measured gaps between batches against another step; workers cannot be varied."""
    waits = profile.waits_s
    step = (profile.step.mean_s if setting.step_s is None else setting.step_s) + profile.beside_step_s
    per_batch = profile.samples_per_batch / profile.measured.value if profile.measured else float(waits.mean())
    made = max(per_batch, 1e-9)
    period = max(made, step + profile.inline_s)
    stall = max(0.0, 1 - step / period)
    error = _error(profile, "step" if step >= made else "workers", period) + 0.02
    rate = profile.samples_per_batch / period
    epoch_rate = epoch_stall = None
    length, edge_s = profile.batches_per_epoch, profile.startup.edge_s
    if length and edge_s is not None:
        whole = period + max(0.0, edge_s - made) / length  # no step runs while an epoch's first batch is waited for
        epoch_rate, epoch_stall = profile.samples_per_batch / whole, max(0.0, 1 - step / whole)
    p50, p95, p99 = (float(q) for q in np.quantile(np.maximum(profile.inline_s, waits - step), [0.5, 0.95, 0.99]))
    loader = "main" if profile.inline_s > 0.5 * made else "workers"
    return Prediction(
        setting=setting,
        samples_per_s=_estimate(rate, error, profile.n),
        stall_share=_stall_estimate(stall, error, profile.n),
        loader_samples_per_s=_estimate(profile.samples_per_batch / made, error, profile.n),
        epoch_samples_per_s=epoch_rate,
        epoch_stall_share=epoch_stall,
        wait_p50_s=p50,
        wait_p95_s=p95,
        wait_p99_s=p99,
        time_to_first_batch_s=profile.startup.first_batch_s or 0.0,
        binding="step" if step >= made else loader,
        drains_after_steps=None,
        memory_bytes=None,
        shm_bytes=None,
        extrapolates=profile.caveats,
    )
