"""From a calibrated profile and a setting to the system that is replayed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ioprobe.model.profile import Floats, Profile, Setting
from ioprobe.model.shards import GOES_ON
from ioprobe.model.simulate import Row, System

MOST_ROWS = 4096


def build(profile: Profile, setting: Setting, *, seed: int = 0) -> System:
    """Return the system of a profile at a setting.

    Args:
        profile: A calibrated loader that is not opaque.
        setting: What to replay; its factors are applied here.
        seed: Rotates the series, so that seeds give independent replays.

    Raises:
        ValueError: the profile is opaque.
    """
    if not profile.adaptable or not profile.fetch_cpu_s.size:
        raise ValueError("an opaque loader has no system to build")
    x, size = setting, setting.batch_size_factor
    main, start, serial = profile.main, profile.startup, profile.serial
    step, step_share = _steps(profile, setting)
    queued = serial is not None and not x.spread_lock
    persistent = x.persistent_workers
    epoch = None if profile.batches_per_epoch is None else max(1, round(profile.batches_per_epoch / size))
    shape = size**0.5 if size > 1 else size  # sending costs part per batch, part per byte
    return System(
        num_workers=x.num_workers,
        rows=_rows(profile, setting, seed),
        prefetch_factor=x.prefetch_factor,
        in_order=x.in_order,
        cores=x.cores or profile.cores,
        segments=_segments(profile),
        worker_batches=None if x.even_shards else _spread(profile.worker_batches, x.num_workers),
        batches_per_epoch=epoch,
        persistent_workers=persistent,
        feed_cpu_s=(
            (profile.feed_cpu_s - profile.share_cpu_s) * shape * x.transport_x
            + profile.threads_cpu_s * size * x.decode_x  # beside the batch, as sending one is beside the next
        )
        * profile.correction,
        share_cpu_s=profile.share_cpu_s * shape * x.transport_x * profile.correction,
        receive_cpu_s=main.receive_cpu_s * shape * x.transport_x,
        receive_busy_s=main.receive_busy_s * shape * x.transport_x,
        receive_crowded_s=main.receive_crowded_s * shape * x.transport_x,
        receive_idle_s=main.receive_idle_s * shape * x.transport_x,
        dispatch_cpu_s=main.dispatch_cpu_s,
        release_s=(main.release_s if x.num_workers or profile.inline_release_s is None else profile.inline_release_s)
        * size,
        step_s=step,
        step_cpu_share=step_share,
        start_s=start.start_s,
        init_s=start.init_s,
        first_extra_s=start.first_extra_s,
        first_blocked_s=start.first_blocked_s,
        again_extra_s=start.again_extra_s,
        again_blocked_s=start.again_blocked_s,
        edge_s=start.draw_s + (start.stop_s if _edges_alike(setting, profile.current) else 0.0),
        serial_channels=serial.channels if serial and queued else 1,
        serial_uses_cpu=bool(serial and queued and serial.uses_cpu),
        serial_hand_over_s=serial.hand_over_s if serial and queued else 0.0,
        contention=profile.contention,
        reference_cores=profile.cores,
        main_first=step_share < 0.5,
    )


def _edges_alike(a: Setting, b: Setting) -> bool:
    """Whether a setting ends its epochs as the measured one, b, did.

    Workers that live on are ended by nobody: what the end of an epoch cost with them is the dataset's own doing.
    """
    if b.num_workers and b.persistent_workers and not a.num_workers:
        return True
    return (a.num_workers > 0, a.persistent_workers) == (b.num_workers > 0, b.persistent_workers)


def _steps(profile: Profile, setting: Setting) -> tuple[tuple[float, ...], float]:
    step = profile.step
    if setting.step_s is not None:
        # The CPU of a faster or slower accelerator's step stays the host's own.
        share = min(1.0, step.cpu_s / setting.step_s) if setting.step_s > 0 and step.cpu_s else 0.0
        return (setting.step_s,), share
    if not step.durations_s.size:
        return (0.0,), 0.0
    durations = step.durations_s * setting.batch_size_factor
    return tuple(durations.tolist()), step.cpu_s / step.mean_s if step.mean_s else 0.0


def _rows(profile: Profile, setting: Setting, seed: int) -> tuple[tuple[Row, ...], ...]:
    cpu, blocked, serial = demands(profile, setting)
    if profile.by_worker or profile.kind == "iterable":
        crews = [np.flatnonzero(profile.worker == w) for w in np.unique(profile.worker)]
        crews = [c for c in crews if c.size]
    else:
        crews = [np.arange(cpu.size)]
    rng = np.random.default_rng(seed)
    series = []
    for crew in crews:
        turned = np.roll(crew, -int(rng.integers(crew.size)) if seed else 0)
        series.append(_resize(cpu[turned], blocked[turned], serial[turned], setting.batch_size_factor))
    if profile.by_worker:
        # Workers beyond those measured are like the fastest: what slows one worker is its own.
        speeds = [float(sum(map(sum, s))) / len(s) for s in series]
        fastest = series[int(np.argmin(speeds))]
        if not setting.num_workers:
            return (fastest,)
        series += [fastest] * (setting.num_workers - len(series))
    return tuple(series)


def demands(profile: Profile, setting: Setting) -> tuple[Floats, Floats, Floats]:
    """Return CPU, blocked and serial time of a worker for each measured batch, factors applied [s]."""
    x = setting
    if x.num_workers == 0:
        return _inline_demands(profile, setting)
    busy = profile.fetch_cpu_s * x.decode_x + profile.collate_cpu_s * x.collate_x
    cpu = (busy + profile.worker_cpu_s) * profile.correction
    blocked = (profile.fetch_blocked_s / x.storage_x + profile.collate_blocked_s) * profile.correction
    serial = np.zeros_like(cpu)
    if profile.serial is not None and not x.spread_lock:
        faster = x.storage_x if profile.serial.kind == "storage" else 1.0
        serial += profile.serial.service_s / faster
        if profile.serial.uses_cpu:
            cpu = np.maximum(0.0, cpu - profile.serial.service_s)
    if x.storage_bytes_per_s and profile.memory.batch_bytes:
        serial = np.maximum(serial, profile.memory.batch_bytes / x.storage_bytes_per_s)
    return cpu, blocked, serial


def _inline_demands(profile: Profile, setting: Setting) -> tuple[Floats, Floats, Floats]:
    """The same in the main process: nothing is handed over, nobody else stands in line."""
    x = setting
    cpu = profile.fetch_cpu_s * x.decode_x + profile.collate_cpu_s * x.collate_x
    blocked = profile.fetch_blocked_s / x.storage_x + profile.collate_blocked_s
    if profile.serial is not None and not x.spread_lock:
        own = profile.serial.service_s / (x.storage_x if profile.serial.kind == "storage" else 1.0)
        if not profile.serial.uses_cpu:
            blocked = blocked + own
    if profile.inline_cpu_s is not None and profile.inline_blocked_s is not None:
        # The measured batches' own pattern, at the level seen in the main process. Where workers differ, only the
        # fastest one's batches are replayed, so they set the level.
        chosen = _fastest(profile)
        cpu = cpu * (
            profile.inline_cpu_s / max(1e-9, float(np.mean((profile.fetch_cpu_s + profile.collate_cpu_s)[chosen])))
        )
        was = float(np.mean(blocked[chosen])) * x.storage_x
        blocked = blocked * (profile.inline_blocked_s / was) if was > 0 else blocked + profile.inline_blocked_s
    if x.storage_bytes_per_s and profile.memory.batch_bytes:
        blocked = np.maximum(blocked, profile.memory.batch_bytes / x.storage_bytes_per_s)
    return cpu, blocked, np.zeros_like(cpu)


def _fastest(profile: Profile) -> Any:
    """Return which batches the fastest worker made, all where workers are alike."""
    if not profile.by_worker:
        return slice(None)
    wall = profile.fetch_cpu_s + profile.fetch_blocked_s + profile.collate_cpu_s + profile.collate_blocked_s
    crew = np.unique(profile.worker)
    best = crew[int(np.argmin([wall[profile.worker == w].mean() for w in crew]))]
    return np.asarray(profile.worker == best)


def _resize(cpu: Floats, blocked: Floats, serial: Floats, factor: float) -> tuple[Row, ...]:
    """Scale batches: whole multiples add successive batches, others scale them."""
    whole = round(factor)
    columns = [cpu, blocked, serial]
    if whole > 1 and abs(factor - whole) < 1e-9 and cpu.size >= 2 * whole:
        cut = cpu.size // whole * whole
        columns = [c[:cut].reshape(-1, whole).sum(axis=1) for c in columns]
    elif factor != 1:
        columns = [c * factor for c in columns]
    return tuple(zip(*(c[:MOST_ROWS].tolist() for c in columns), strict=True))


def _segments(profile: Profile) -> int:
    """Reads and computing alternate sample by sample; a few pieces are enough for the cores."""
    blocked, cpu = profile.service_blocked_s, profile.service_cpu_s
    mixed = min(blocked, cpu) > 0.1 * max(blocked, cpu) if max(blocked, cpu) > 0 else False
    return int(min(4, max(1, profile.samples_per_batch))) if mixed or profile.serial else 1


def _spread(counts: tuple[int, ...] | None, num_workers: int) -> tuple[int, ...] | None:
    """Shards keep their number: more workers than shards leave the others without data."""
    if counts is None or num_workers == 0:
        return None
    shards = [c for c in counts if c]
    return tuple(min(GOES_ON, sum(shards[w::num_workers])) for w in range(num_workers))
