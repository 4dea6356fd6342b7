"""What ``ioprobe predict`` and ``ioprobe tune`` say: predictions beside what was measured."""

from __future__ import annotations

from typing import Any

import msgspec

from ioprobe.diagnosis.evidence import gather
from ioprobe.diagnosis.modelled import as_counted, counted, profile_of
from ioprobe.diagnosis.steady import steady
from ioprobe.model.predict import doubts, predict
from ioprobe.model.profile import Prediction, Profile, Setting
from ioprobe.model.search import Limits, most_workers
from ioprobe.model.whatif import as_settings, parse_changes, settings_for
from ioprobe.run import Caveat, Run
from ioprobe.stats import Estimate

FORECAST_SCHEMA = 1


class ForecastPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as the model sees it, and as it was measured where it was. Intervals are 90% ones."""

    settings: dict[str, Any]
    samples_per_s: Estimate
    """Loader and step coupled [samples/s]."""
    stall_share: Estimate
    """Time blocked for the next batch over wall [fraction]."""
    loader_samples_per_s: Estimate
    """The loader alone, drained [samples/s]."""
    epoch_samples_per_s: float | None = None
    """Over whole epochs, their edges included; None where the epoch's length is not known."""
    wait_p95_s: float
    time_to_first_batch_s: float
    drains_after_steps: int | None = None
    """Steps until a full prefetch buffer is used up; None where it lasts."""
    memory_bytes: float | None = None
    shm_bytes: float | None = None
    binding: str
    """``workers cores storage lock main step``."""
    measured: Estimate | None = None
    """Throughput measured at this very setting [samples/s]."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``ioprobe predict``."""

    schema: int = FORECAST_SCHEMA
    kind: str = "predict"
    run: str
    target: str
    unit: str = "samples"
    counted: str = "steady state"
    """Of ``samples_per_s`` and ``stall_share``: ``steady state``, or ``whole epochs`` where the loop saw some."""
    current: ForecastPoint
    points: list[ForecastPoint]
    """What was asked, in its order."""
    curve: list[ForecastPoint]
    """Over num_workers, everything else as in the first point; empty where workers cannot be varied."""
    calibrated_from: int
    """Batches."""
    caveats: list[Caveat] = []


def forecast(run: Run, pairs: list[str], *, name: str = "") -> Forecast:
    """Return predictions for what was asked of a saved run.

    Args:
        run: Holds at least one measurement of the loader.
        pairs: ``KEY=VALUE`` strings, see :func:`ioprobe.model.whatif.parse_changes`.
        name: Of the run, for the report.

    Raises:
        UsageError: a key or a value cannot be meant.
        MeasureError: the run cannot be calibrated from.
    """
    asked = parse_changes(pairs)
    evidence = gather(run)
    profile = profile_of(run, evidence)
    settings = settings_for(profile, asked) if asked else []

    def at(setting: Setting) -> ForecastPoint:
        return point(as_counted(predict(profile, setting), evidence), profile, run, asked)

    current, points = at(profile.current), [at(s) for s in settings]
    curve = [at(s) for s in _curve(profile, settings[0] if settings else profile.current)]
    known = any(p.epoch_samples_per_s is not None for p in (current, *points, *curve))
    return Forecast(
        run=name,
        target=run.workload.target,
        unit=run.workload.unit,
        counted=counted(evidence, known),
        current=current,
        points=points,
        curve=curve,
        calibrated_from=profile.n,
        caveats=_caveats([*run.caveats, *(c for s in settings for c in doubts(profile, s))]),
    )


def point(found: Prediction, profile: Profile, run: Run, asked: Any = ()) -> ForecastPoint:
    """Return a prediction in the report's words."""
    return ForecastPoint(
        settings=as_settings(found.setting, profile, asked),
        samples_per_s=found.samples_per_s,
        stall_share=found.stall_share,
        loader_samples_per_s=found.loader_samples_per_s,
        epoch_samples_per_s=found.epoch_samples_per_s,
        wait_p95_s=found.wait_p95_s,
        time_to_first_batch_s=found.time_to_first_batch_s,
        drains_after_steps=found.drains_after_steps,
        memory_bytes=found.memory_bytes,
        shm_bytes=found.shm_bytes,
        binding=found.binding,
        measured=_measured(found.setting, profile, run),
    )


def _measured(setting: Setting, profile: Profile, run: Run) -> Estimate | None:
    """Throughput measured at a setting that differs from the run's by the loader's knobs only."""
    plain = profile.current.at(
        num_workers=setting.num_workers,
        prefetch_factor=setting.prefetch_factor,
        persistent_workers=setting.persistent_workers,
        in_order=setting.in_order,
        step_s=setting.step_s,
    )
    if plain != setting or setting.step_s not in (None, profile.current.step_s):
        return None
    wants_step = setting.step_s is None and profile.step.durations_s.size > 0
    for m in run.loaders:
        s = m.settings
        if s is None or m.failure is not None or m.coupled != wants_step:
            continue
        same = s.num_workers == setting.num_workers and s.in_order == setting.in_order
        if same and (not s.num_workers or s.prefetch_factor == setting.prefetch_factor):
            seen = steady(m)
            if seen is not None:
                return seen.samples_per_s
    return None


def _curve(profile: Profile, base: Setting) -> list[Setting]:
    if not profile.adaptable:
        return []
    most = max(base.num_workers, profile.current.num_workers, most_workers(profile, base, Limits()))
    counts = [w for w in range(most + 1) if w <= 12 or w % 4 == 0 or w == base.num_workers]
    return [base.at(num_workers=w, persistent_workers=base.persistent_workers and w > 0) for w in counts]


def _caveats(found: list[Caveat]) -> list[Caveat]:
    return list({(c.code, c.text): c for c in found}.values())
