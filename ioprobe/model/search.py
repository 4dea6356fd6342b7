"""The setting to choose: the fewest workers, then the least memory, within 1% of the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ioprobe.model.bounds import bounds
from ioprobe.model.predict import predict
from ioprobe.model.profile import Prediction, Profile, Setting
from ioprobe.stats import Estimate

PLATEAU = 0.96
"""Predicted over closed-form rate from which on a setting counts as having reached its ceiling."""

_BINDS = {"workers": "workers bind", "cores": "cores bind", "main": "the main process binds", "step": "the step binds"}

REMEDIES = {
    "decode": "reading and transforming twice as fast (decode library, smaller images, GPU decode)",
    "storage": "storage twice as fast (local copy, cache, larger reads)",
    "collate": "collating twice as fast",
    "transport": "smaller or fewer tensors per batch: half the cost of moving it",
    "cores": "twice the cores",
    "lock": "the queue that workers share removed",
    "shards": "shards split evenly, one at least per worker",
}


@dataclass(frozen=True)
class Limits:
    """What the host and the data allow. None sets no limit."""

    max_workers: int = 32
    cores: float | None = None
    """Usable cores of the host [cores]."""
    ram_bytes: float | None = None
    """Memory left for workers of all ranks [bytes]."""
    shm_bytes: float | None = None
    """Room in /dev/shm for all ranks [bytes]."""
    shards: int | None = None
    """Shards of an iterable dataset: more workers than shards idle."""
    ranks_per_host: int = 1
    """Training processes that share the host, each with workers of its own."""
    prefetch_factors: tuple[int, ...] = (1, 2, 4, 8)


@dataclass(frozen=True)
class Seen:
    """A real run at a setting, against the model."""

    num_workers: int
    prefetch_factor: int
    ratio: float
    """Measured over predicted throughput [fraction]."""


@dataclass(frozen=True)
class Remedy:
    """Something other than a setting, and what the model gives for it."""

    code: str
    """``decode`` ``storage`` ``lock`` ``shards`` ``transport`` ``collate`` ``cores`` or ``step``."""
    text: str
    gain: float
    """Throughput over the recommended setting's, minus 1 [fraction]."""


@dataclass(frozen=True)
class SearchResult:
    """The search's answer."""

    recommended: Setting
    predicted: Prediction
    current: Prediction
    gain: float
    """Predicted throughput at the recommended setting over the current one's, minus 1 [fraction]."""
    action: str
    """``change``, ``fewer-workers`` or ``no-change``."""
    reason: str
    candidates: tuple[Prediction, ...]
    """All settings looked at, best first."""
    also: tuple[Remedy, ...] = ()


def search(
    profile: Profile,
    current: Setting,
    *,
    limits: Limits | None = None,
    tolerance: float = 0.01,
    seed: int = 0,
    seen: Sequence[Seen] = (),
) -> SearchResult:
    """Return the setting to choose and why.

    Args:
        profile: A calibrated loader.
        current: The setting in use; its step and what-if factors are kept.
        limits: What host and data allow.
        tolerance: How much less than the best is as good [fraction].
        seed: Seed of the replays.
        seen: Real runs; predictions near them are scaled to agree.
    """
    limits = limits or Limits()
    here = corrected(predict(profile, current, seed=seed), seen)
    if not profile.adaptable:
        reason = "the loader is not a DataLoader whose settings can be changed"
        return SearchResult(current, here, here, 0.0, "no-change", reason, (here,), remedies(profile, here, seed=seed))
    grid = [s for s in _grid(profile, current, limits) if s != current]
    found = [corrected(predict(profile, s, seed=seed), seen) for s in grid] if seen else _climb(profile, grid, seed)
    allowed = [p for p in found if _fits(p, limits)]
    # One batch ahead leaves no cushion for what no model knows; it is for hosts without room for two.
    cushioned = [p for p in allowed if p.setting.prefetch_factor > 1 and p.setting.num_workers]
    if cushioned:
        allowed = [p for p in allowed if p.setting.prefetch_factor > 1 or not p.setting.num_workers]
    if _fits(here, limits):
        allowed.append(here)
    if not allowed:
        allowed = [here]
    best = max(_score(p) for p in allowed)
    good = [p for p in allowed if _score(p) >= best * (1 - tolerance)]
    pick = min(good, key=lambda p: _cost(p, current))
    gain = _score(pick) / _score(here) - 1 if _score(here) > 0 else 0.0
    computes = profile.service_cpu_s > profile.service_blocked_s
    pick, action, reason = _decide(pick, here, gain, tolerance, limits, computes)
    gain = _score(pick) / _score(here) - 1 if _score(here) > 0 else 0.0
    ranked = tuple(sorted(allowed, key=lambda p: (-_score(p), *_cost(p, current))))
    return SearchResult(pick.setting, pick, here, gain, action, reason, ranked, remedies(profile, pick, seed=seed))


def _climb(profile: Profile, grid: Sequence[Setting], seed: int) -> list[Prediction]:
    """Return predictions of the settings worth a replay, cheapest first.

    A setting is passed over where a cheaper one was replayed already, comes near what no setting like it can exceed
    (the closed-form ceiling), and has that same ceiling: on the plateau, more workers and deeper queues only cost.
    """
    found: list[tuple[Prediction, float]] = []
    for s in sorted(grid, key=lambda s: (s.num_workers, s.prefetch_factor)):
        ceiling = bounds(profile, s).samples_per_s
        flat = any(
            p.setting.num_workers <= s.num_workers
            and p.setting.prefetch_factor <= s.prefetch_factor
            and p.setting.prefetch_factor > 1
            and p.setting.persistent_workers == s.persistent_workers
            and reached >= 0.995 * ceiling
            and p.samples_per_s.value >= PLATEAU * ceiling
            for p, reached in found
        )
        if not flat:
            found.append((predict(profile, s, seed=seed), ceiling))
    return [p for p, _ in found]


def corrected(p: Prediction, seen: Sequence[Seen]) -> Prediction:
    """Return a prediction scaled by what real runs at near settings gave over theirs.

    Weights fall with the distance in log(num_workers): what the model misses
    (a cache, a lock, the hypervisor) changes slowly from one count to the next.
    """
    if not seen:
        return p
    total = weight = 0.0
    for run in seen:
        far = abs(math.log((p.setting.num_workers + 1) / (run.num_workers + 1)))
        far += 0.25 * abs(math.log(p.setting.prefetch_factor / run.prefetch_factor))
        near = math.exp(-far / 0.4)
        total += near * math.log(run.ratio)
        weight += near
    factor = math.exp(total / max(1.0, weight))
    stall = p.stall_share
    # stall = 1 - step x rate: a slower loop waits more.
    moved = min(1.0, max(0.0, 1 - (1 - stall.value) * factor))
    shift = moved - stall.value
    return replace(
        p,
        samples_per_s=p.samples_per_s.scaled(factor),
        epoch_samples_per_s=None if p.epoch_samples_per_s is None else p.epoch_samples_per_s * factor,
        stall_share=Estimate(
            moved, min(1.0, max(0.0, stall.low + shift)), min(1.0, max(0.0, stall.high + shift)), stall.n
        ),
    )


def _score(p: Prediction) -> float:
    """Throughput that counts: whole epochs where their edges are known, else steady state."""
    return p.epoch_samples_per_s or p.samples_per_s.value


def _cost(p: Prediction, current: Setting) -> tuple[float, ...]:
    s = p.setting
    changes = sum((s.prefetch_factor != current.prefetch_factor, s.persistent_workers != current.persistent_workers))
    return (float(s.num_workers), p.memory_bytes or float(s.depth), float(s.depth), float(changes))


def _grid(profile: Profile, current: Setting, limits: Limits) -> list[Setting]:
    """Every worker count the host may carry; prefetch depths; workers that stay where epochs are short."""
    most = most_workers(profile, current, limits)
    counts = [w for w in range(most + 1) if w <= 16 or w % 4 == 0]
    edges = profile.batches_per_epoch is not None and profile.batches_per_epoch <= 3000
    grid = []
    for workers in counts:
        if workers == 0:
            grid.append(current.at(num_workers=0, persistent_workers=False))
            continue
        for factor in limits.prefetch_factors:
            stay = {current.persistent_workers, True} if edges else {current.persistent_workers}
            grid += [
                current.at(num_workers=workers, prefetch_factor=factor, persistent_workers=p) for p in sorted(stay)
            ]
    return grid


def most_workers(profile: Profile, current: Setting, limits: Limits) -> int:
    """Return the largest worker count worth a look: cores for computing, several times as many for waiting."""
    cores = (limits.cores or current.cores or profile.cores) / max(1, limits.ranks_per_host)
    cpu, blocked = profile.service_cpu_s, profile.service_blocked_s
    overlap = (cpu + blocked) / cpu if cpu > 0 else float(limits.max_workers)
    most = max(2.0, cores * min(overlap, 16.0) * 1.25 + 1)
    if limits.shards is not None and profile.kind == "iterable":
        most = min(most, max(1, limits.shards))
    return int(min(limits.max_workers, max(most, min(current.num_workers, limits.max_workers))))


def _fits(p: Prediction, limits: Limits) -> bool:
    return not _lacks(p, limits)


def _lacks(p: Prediction, limits: Limits) -> str:
    """What a setting asks for above what there is; empty where it fits."""
    ranks = max(1, limits.ranks_per_host)
    for need, room, place in (
        (p.memory_bytes, limits.ram_bytes, "in memory"),
        (p.shm_bytes, limits.shm_bytes, "in /dev/shm"),
    ):
        if need is not None and room is not None and need * ranks > room:
            return f"the current setting does not fit {place}"
    if p.setting.num_workers > limits.max_workers:
        return f"the current setting has more workers than the {limits.max_workers} allowed"
    return ""


def _decide(
    pick: Prediction, here: Prediction, gain: float, tolerance: float, limits: Limits, computes: bool
) -> tuple[Prediction, str, str]:
    was, now = here.setting, pick.setting
    # Errors at two settings mostly go one way, and half of one is for those that do not: of the gains predicted between
    # 5 and 10% 15 of 26 were there, between 10 and 20% 17 of 20 (benchmarks/model_intervals.py).
    noise = max(tolerance, here.samples_per_s.relative_halfwidth / 2)
    if computes and now.num_workers > max(was.num_workers, limits.cores or was.cores or 0.0):
        # Where more workers than cores compute, the gaps that they fill and what their switching costs are in no
        # measurement yet: all of the error.
        noise = max(tolerance, here.samples_per_s.relative_halfwidth, pick.samples_per_s.relative_halfwidth)
    if lacks := _lacks(here, limits):
        return pick, "change", lacks
    if gain > noise:
        binds = _BINDS.get(here.binding, f"{here.binding} binds")
        reason = f"{binds} at num_workers={was.num_workers}; predicted {100 * gain:.0f}% faster"
        return pick, "change", reason
    if now.num_workers < was.num_workers:
        reason = f"{now.num_workers} workers are predicted within {100 * tolerance:.0f}% of the best"
        return pick, "fewer-workers", reason
    return here, "no-change", f"no setting is predicted to gain more than {100 * noise:.0f}%, the model's own error"


def remedies(profile: Profile, at: Prediction, *, seed: int = 0) -> tuple[Remedy, ...]:
    """Return what would help where settings cannot, largest gain first; below 2% nothing is listed."""
    s = at.setting
    asks = {
        "decode": s.at(decode_x=s.decode_x / 2),
        "storage": s.at(storage_x=2 * s.storage_x),
        "collate": s.at(collate_x=s.collate_x / 2),
        "transport": s.at(transport_x=s.transport_x / 2),
        "cores": s.at(cores=2 * (s.cores or profile.cores)),
    }
    if profile.serial is not None:
        asks["lock"] = s.at(spread_lock=True)
    if profile.worker_batches is not None:
        asks["shards"] = s.at(even_shards=True)
    found = []
    for code, setting in asks.items():
        if not profile.adaptable:
            break
        gain = predict(profile, setting, seed=seed).samples_per_s.value / at.samples_per_s.value - 1
        if gain > 0.02:
            found.append(Remedy(code, REMEDIES[code], gain))
    return tuple(sorted(found, key=lambda r: -r.gain))
