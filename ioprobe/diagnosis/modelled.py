"""The loader model of a run, as the diagnosis and the what-if both take it: one run, one prediction."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ioprobe.diagnosis.evidence import Evidence
from ioprobe.diagnosis.steady import steady
from ioprobe.model.calibrate import calibrate
from ioprobe.model.company import setting_of
from ioprobe.model.predict import predict
from ioprobe.model.profile import Prediction, Profile
from ioprobe.model.search import Seen
from ioprobe.run import Run
from ioprobe.stats import Estimate

REFUTED = 0.15
"""Error of a prediction at a setting that was then run, from which on those at other settings are scaled [fraction]."""
LEAST_HALFWIDTH = 0.02
"""Of a stall share over whole epochs [fraction]: what epochs begin with is known from few edges."""


def profile_of(run: Run, evidence: Evidence) -> Profile:
    """Return the calibrated loader; one that can only be replayed, with what the loop's own thread does beside it.

    Runs that verify a pick are left out: they are there to judge what was predicted without them.

    Raises:
        MeasureError: the run holds no loader measurement, or one too short to calibrate from.
    """
    calibration = msgspec.structs.replace(run, loaders=[m for m in run.loaders if m.purpose != "verify"])
    profile = calibrate(calibration, use_loop=evidence.alone is None)
    if profile.adaptable or evidence.alone is None:
        return profile
    return replace(
        profile, inline_s=evidence.inline_share() * evidence.alone.cycle_s, beside_step_s=_beside_step_s(evidence)
    )


def refuted(profile: Profile, run: Run, evidence: Evidence) -> tuple[Seen, ...]:
    """Return the settings that were run to verify them and that gave something else than was predicted."""
    found = []
    for measured in run.loaders:
        seen = steady(measured)
        if measured.purpose != "verify" or not measured.coupled or seen is None or measured.settings is None:
            continue
        setting = setting_of(measured.settings, profile.step, measured).at(step_s=profile.current.step_s)
        said = as_counted(predict(profile, setting), evidence).samples_per_s.value
        ratio = seen.samples_per_s.value / said if said > 0 else 1.0
        if abs(ratio - 1) > max(REFUTED, seen.samples_per_s.relative_halfwidth):
            found.append(Seen(setting.num_workers, setting.prefetch_factor, ratio))
    return tuple(found)


def as_counted(found: Prediction, evidence: Evidence) -> Prediction:
    """Return a prediction with its rate and its stall share over what the loop was seen over: whole epochs or not.

    Where whole epochs were measured, their edges are in the measured figures and so belong into the predicted ones.
    A prediction without figures of epochs keeps its steady ones: edges cost it nothing, or the epoch is so long that
    they hardly count, or its length is not known.
    """
    rate, stall = found.epoch_samples_per_s, found.epoch_stall_share
    if evidence.loop is None or not evidence.loop.whole_epochs or rate is None or stall is None:
        return found
    steady = found.samples_per_s
    half = max(LEAST_HALFWIDTH, (found.stall_share.high - found.stall_share.low) / 2)
    return replace(
        found,
        samples_per_s=steady.scaled(rate / steady.value) if steady.value > 0 else steady,
        stall_share=Estimate(stall, max(0.0, stall - half), min(1.0, stall + half), found.stall_share.n),
    )


def counted(evidence: Evidence, known: bool) -> str:
    """Return what :func:`as_counted` counts over, in words; ``known``: whether any prediction has figures of epochs."""
    whole = evidence.loop is not None and evidence.loop.whole_epochs > 0
    return "whole epochs" if whole and known else "steady state"


def _beside_step_s(e: Evidence) -> float:
    """Return the time per batch [s] in which the loop neither waits nor is at its step, as that was timed alone.

    That is freeing the batch before. Threads that prepare batches in this process share the interpreter's lock with
    the step. How often the step gives that lock away and waits for it again shows only with both at work, so the
    step's time is then taken from the loop.
    """
    if e.step is None or e.alone is None:
        return 0.0
    slowed_s = 0.0
    if e.threads_compute and e.loop is not None and e.loop.step_s is not None:
        slowed_s = max(0.0, e.loop.step_s - e.step.seconds)
    return slowed_s + e.alone.release_share * e.alone.cycle_s
