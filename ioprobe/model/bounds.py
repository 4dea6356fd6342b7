"""Ceilings in closed form: what each resource alone would allow, in microseconds."""

from __future__ import annotations

import numpy as np

from ioprobe.model.profile import Bounds, Profile, Setting
from ioprobe.model.system import demands


def bounds(profile: Profile, setting: Setting) -> Bounds:
    """Return the ceiling of every resource at a setting; the lowest binds.

    Asymptotic bounds of a closed queueing network (Denning & Buzen 1978): each
    resource serves at most 1/demand batches per second.

    >>> import numpy as np
    >>> series = np.full(10, 0.010)
    >>> zeros = np.zeros(10)
    >>> loader = Profile(kind="map", current=Setting(2), cores=2.0, samples_per_batch=8.0,
    ...     fetch_cpu_s=series, fetch_blocked_s=series, collate_cpu_s=zeros, collate_blocked_s=zeros,
    ...     worker=np.zeros(10, dtype=int))
    >>> found = bounds(loader, Setting(1, step_s=0.005))
    >>> found.binding, round(found.samples_per_s)
    ('workers', 400)
    """
    step = profile.step.mean_s * setting.batch_size_factor if setting.step_s is None else setting.step_s
    samples = profile.samples_per_batch * setting.batch_size_factor
    if not profile.adaptable or not profile.fetch_cpu_s.size:
        times = {"workers": float(profile.waits_s.mean()) if profile.waits_s.size else 0.0, "step": step}
        return _lowest(times, samples)
    cpu, blocked, serial = (float(np.mean(d)) * setting.batch_size_factor for d in demands(profile, setting))
    main = profile.main
    handling = main.receive_cpu_s + main.dispatch_cpu_s
    handling_wall = handling + min(main.receive_busy_s, main.receive_idle_s) + main.release_s
    cores = setting.cores or profile.cores
    step_cpu = profile.step.cpu_s * (setting.batch_size_factor if setting.step_s is None else 1.0) if step else 0.0
    own = cpu + blocked + serial
    if setting.num_workers == 0:
        return _lowest({"main": own + main.dispatch_cpu_s + step}, samples)
    crew = setting.num_workers
    if profile.worker_batches is not None and not setting.even_shards:
        crew = min(crew, sum(1 for c in profile.worker_batches if c))
    times = {
        "workers": own / max(1, crew),
        "cores": (cpu + profile.feed_cpu_s + profile.threads_cpu_s + handling + main.release_s + step_cpu) / cores,
        "main": handling_wall + step,
        "step": step,
    }
    if serial:
        kind = profile.serial.kind if profile.serial else "storage"
        times[kind] = serial / (profile.serial.channels if profile.serial else 1)
    if step and handling_wall < 0.5 * step:
        # A step with its hand-over is the step's ceiling, not the main process's.
        times["step"] = times.pop("main")
    return _lowest(times, samples)


def _lowest(times: dict[str, float], samples: float) -> Bounds:
    limits = {name: samples / t for name, t in times.items() if t > 0}
    if not limits:
        return Bounds(float("inf"), "main", {})
    binding = min(limits, key=lambda name: limits[name])
    return Bounds(limits[binding], binding, limits)
