"""Which setting to take, and how to write it down."""

from __future__ import annotations

from typing import Any

from ioprobe.diagnosis.tuning import NOISE, Knobs, gain_between, pooled
from ioprobe.model.profile import Prediction, Profile, Setting
from ioprobe.model.search import Limits, SearchResult, most_workers
from ioprobe.stats import Estimate

AGREED = 0.15
"""Predicted gain from which on a measured half of it confirms it, whatever the noise [fraction]."""
COLD = 0.8
"""Rate of the very first loop, over that of later ones at the same setting, below which it read what caches hold since
[fraction]."""


def grid_settings(current: Setting, limits: Limits, profile: Profile) -> list[Setting]:
    """Return the settings of a grid: the present one, doubling worker counts, two depths."""
    if not profile.adaptable:
        return [current]
    most = most_workers(profile, current, limits)
    counts = sorted({0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, current.num_workers, most})
    found = [current]
    for workers in [c for c in counts if c <= most]:
        for factor in (2, 4) if workers else (2,):
            setting = current.at(num_workers=workers, prefetch_factor=factor)
            if not workers:
                setting = setting.at(persistent_workers=False)
            if knobs_of(setting) not in {knobs_of(s) for s in found}:
                found.append(setting)
    return found


def decide(
    first: SearchResult,
    best: SearchResult,
    ran: list[tuple[Prediction, list[Estimate]]],
    old: list[Estimate],
    tolerance: float,
    first_loop: Estimate | None = None,
) -> tuple[Prediction, str, str]:
    """Choose by what was measured; where nothing was run, by the model.

    Args:
        first: What the model said at first.
        best: What it said last.
        ran: Settings that were run, each with its rates [samples/s].
        old: Rates of the present setting, measured in turn with those [samples/s].
        tolerance: How much less than the best is as good [fraction].
        first_loop: Rate of the very first loop, at the present setting [samples/s].
    """
    current = first.current
    if not ran or not old:
        return (best.predicted, best.action, best.reason)
    others = [(p, s) for p, s in ran if knobs_of(p.setting) != knobs_of(current.setting)]
    rates = [(p, s, rate.value) for p, s in [(current, old), *others] if (rate := pooled(s)) is not None]
    top = max(rate for _, _, rate in rates)
    good = [(p, s) for p, s, rate in rates if rate >= top * (1 - tolerance)]
    pick, runs = min(good, key=lambda x: (x[0].setting.num_workers, x[0].setting.prefetch_factor))
    gain = gain_between(runs, old)
    if gain is None or knobs_of(pick.setting) == knobs_of(current.setting):
        return current, "no-change", "no setting that was run is faster beyond the noise"
    fewer = pick.setting.num_workers < current.setting.num_workers
    cold = first_loop.value / rates[0][2] if first_loop is not None and rates[0][2] > 0 else 1.0
    if fewer and cold < COLD and gain.value < AGREED:
        reason = f"measured {100 * gain.value:+.1f}% with {pick.setting.num_workers} workers once caches are full, but "
        slower = f"the first pass over the data ran at {100 * cold:.0f}% of the later rate and needs the workers"
        return current, "no-change", reason + slower
    predicted = pick.samples_per_s.value / max(1e-9, current.samples_per_s.value) - 1
    # A wide interval on a busy host does not overrule a gain that model and measurement agree on.
    agreed = predicted > AGREED and gain.value > 0.5 * predicted
    if (gain.low > 0 or agreed) and gain.value > NOISE:
        return pick, "change", f"{first.reason}; measured {100 * gain.value:+.1f}%"
    if fewer and gain.value > -2 * NOISE:
        return pick, "fewer-workers", f"measured {100 * gain.value:+.1f}% with {pick.setting.num_workers} workers"
    return current, "no-change", f"the best setting that was run measured {100 * gain.value:+.1f}%, within the noise"


def knobs_of(s: Setting) -> Knobs:
    """Return what tells one setting of a loader from another."""
    if not s.num_workers:
        return 0, 2, False, s.in_order
    return s.num_workers, s.prefetch_factor, s.persistent_workers, s.in_order


def settings_of(s: Setting) -> dict[str, Any]:
    """Return DataLoader keywords, valid as they are."""
    if not s.num_workers:
        return {"num_workers": 0}
    return {
        "num_workers": s.num_workers,
        "prefetch_factor": s.prefetch_factor,
        "persistent_workers": s.persistent_workers,
    }


def changes(new: Setting, now: Setting) -> dict[str, Any]:
    """Return DataLoader keywords that make one setting of another."""
    wanted = settings_of(new)
    if new.in_order != now.in_order:
        wanted["in_order"] = new.in_order
    return wanted
