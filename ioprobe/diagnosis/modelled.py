"""The loader model of a run, as the diagnosis and the what-if both take it: one run, one prediction."""

from __future__ import annotations

from dataclasses import replace

from ioprobe.diagnosis.evidence import Evidence
from ioprobe.model.calibrate import calibrate
from ioprobe.model.profile import Prediction, Profile
from ioprobe.run import Run
from ioprobe.stats import Estimate

LEAST_HALFWIDTH = 0.02
"""Of a stall share over whole epochs [fraction]: what epochs begin with is known from few edges."""


def profile_of(run: Run, evidence: Evidence) -> Profile:
    """Return the calibrated loader; one that can only be replayed, with what the loop's own thread does beside it.

    Raises:
        MeasureError: the run holds no loader measurement, or one too short to calibrate from.
    """
    profile = calibrate(run, use_loop=evidence.alone is None)
    if profile.adaptable or evidence.alone is None:
        return profile
    return replace(
        profile, inline_s=evidence.inline_share() * evidence.alone.cycle_s, beside_step_s=_beside_step_s(evidence)
    )


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
