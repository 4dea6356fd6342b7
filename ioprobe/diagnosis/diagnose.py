"""The whole way from a run to what a report says of it. Pure: the same run gives the same answer."""

from __future__ import annotations

from dataclasses import dataclass

from ioprobe.diagnosis.advice import advise, find_setting, headroom
from ioprobe.diagnosis.costs import stage_table
from ioprobe.diagnosis.evidence import Evidence, gather
from ioprobe.diagnosis.ladder import build_ladder
from ioprobe.diagnosis.modelled import as_counted, profile_of
from ioprobe.diagnosis.recordings import diagnose_recording
from ioprobe.diagnosis.types import Advice, Diagnosis, StageCost, StallShare, Verdict
from ioprobe.diagnosis.utilization import step_utilization, utilization_sentence
from ioprobe.diagnosis.verdict import decide
from ioprobe.errors import IoprobeError
from ioprobe.model.predict import predict
from ioprobe.model.profile import Prediction, Profile
from ioprobe.model.search import SearchResult
from ioprobe.run import Run, Stage
from ioprobe.stats import Estimate
from ioprobe.units import format_rate, format_seconds, format_share


@dataclass(frozen=True)
class Finished:
    """A diagnosis with all that it was made from."""

    diagnosis: Diagnosis
    advice: list[Advice]
    evidence: Evidence
    profile: Profile | None
    best: SearchResult | None


def diagnose(run: Run) -> Finished:
    """Return verdict, ladder and advice for a run."""
    evidence = gather(run)
    unseen = run.kind == "run" and evidence.loop is None and evidence.alone is None
    recorded = diagnose_recording(run) if unseen or run.kind in ("profile", "attach") else None
    if recorded is not None:
        return Finished(recorded, [], evidence, None, None)
    profile = _profile(run, evidence)
    best = find_setting(profile, run) if evidence.step is not None else None
    verdict, limit, text, findings = decide(evidence)
    searched = best.current if best is not None else None
    doubt = _doubt(evidence, searched)
    if doubt:
        profile = best = None
    advice = advise(evidence, verdict, limit, findings, profile, best)
    here = best.current if best is not None else searched
    if here is None and profile is not None and evidence.step is not None and not doubt:
        here = predict(profile, profile.current)
    predicted = as_counted(here, evidence).stall_share if here is not None else None
    diagnosis = Diagnosis(
        verdict=verdict,
        limiting_stage=limit,
        evidence=text,
        reasons=[
            *([doubt] if doubt else []),
            *_reasons(evidence, [f.text for f in findings if f.text not in text]),
            *_of_the_step(evidence, verdict),
        ],
        stall_share=StallShare(measured=evidence.loop.stall_share if evidence.loop else None, predicted=predicted),
        headroom=headroom(evidence),
        loop_samples_per_s=evidence.loop.samples_per_s if evidence.loop else None,
        ladder=build_ladder(evidence),
        stages=_stages(evidence),
        unexplained=_unexplained(evidence, predicted),
    )
    return Finished(diagnosis, advice, evidence, profile, best)


def _profile(run: Run, evidence: Evidence) -> Profile | None:
    if evidence.alone is None and evidence.loop is None:
        return None
    try:
        return profile_of(run, evidence)
    except IoprobeError:
        return None  # too little data to model; the report then goes without predictions


def _doubt(e: Evidence, here: Prediction | None) -> str:
    """Say so where the model, calibrated from the loader alone, is far from the measured loop; '' where it is near."""
    if e.loop is None or here is None:
        return ""
    if any(caveat.code == "lockstep-loaders" for caveat in e.run.caveats):
        return "the loop reads several loaders in step: what other settings of one of them bring is not predicted"
    seen = e.loop.samples_per_s
    said = as_counted(here, e).samples_per_s.value
    if 0.7 * seen.value <= said <= 1.4 * seen.value or seen.low <= said <= seen.high:
        return ""
    return (
        f"the loader model, calibrated from the loader alone, gives {format_rate(said)} where the loop gave "
        f"{format_rate(seen.value)}: its predictions for other settings are left out"
    )


def _stages(e: Evidence) -> list[StageCost]:
    seen = e.alone or e.loop
    if seen is None:
        return []
    main = {}
    for stage, share in ((Stage.SAMPLER, seen.sampler_share), (Stage.TRANSPORT, seen.transport_share)):
        if share and share > 0.002:
            main[stage] = share * seen.cycle_s
    if e.step is not None:
        main[Stage.STEP] = e.step.seconds
    return stage_table(e.costs, seen.samples_per_batch, main)


def _reasons(e: Evidence, further: list[str]) -> list[str]:
    found = []
    loop = e.loop
    if loop is not None and loop.first_epoch_stall is not None:
        later = loop.stall_share.value
        if loop.first_epoch_stall > later + 0.15:
            found.append(
                f"the first epoch waited {format_share(loop.first_epoch_stall)} of the time (data-bound: cold reads), "
                f"later ones {format_share(later)}: from the second epoch on the data comes from a cache"
            )
    if loop is not None and loop.release_share > 0.05:
        found.append(
            f"freeing the previous batch (unmapping its shared memory) takes {format_share(loop.release_share)} of the "
            "loop; no timer around next() sees it"
        )
    run = e.run.loop()
    if run is not None and run.time_to_first_batch_s is not None and run.time_to_first_batch_s > 2:
        found.append(f"the first batch took {format_seconds(run.time_to_first_batch_s)}")
    slower = e.interference
    if slower is not None and slower > 1.1 and e.threads_compute and not e.workers:
        found.append(
            f"the step takes {slower:.2f} times as long beside the loader's threads, which share the interpreter's "
            "lock with it: worker processes would not"
        )
    return found + further[:3]


def _of_the_step(e: Evidence, verdict: Verdict) -> list[str]:
    """Say what communication costs where it is not the verdict, and what part of the peak is reached."""
    found = []
    seen, step = e.step.communication if e.step else None, e.run.step
    if seen is not None and seen.share.value > 0.02 and verdict is not Verdict.COMMUNICATION_BOUND:
        found.append(f"{seen.amount} of the step alone is {seen.text}")
    if step is not None and step.sync is not None and step.sync.failed:
        found.append(f"the step was not timed without gradient synchronisation: {step.sync.failed}")
    use = None if step is None else step_utilization(step, e.run.host)
    if step is not None and use is not None:
        declared = f"; FLOPs are declared: {step.flops_source}" if step.flops_source else ""
        found.append(utilization_sentence(use) + declared)
    return found


def _unexplained(e: Evidence, predicted: Estimate | None) -> str:
    """Say so where loader and step, each alone, do not explain the loop."""
    if e.loop is None or e.step is None or e.alone is None:
        return ""
    best = min(e.alone.samples_per_s.value, e.step.samples_per_s.value)
    lost = 1 - e.loop.samples_per_s.value / best if best > 0 else 0.0
    if lost < 0.12 or not e.workers:
        return ""
    if predicted is not None and abs(predicted.value - e.loop.stall_share.value) < 0.05:
        return ""
    causes = []
    if e.interference is not None and e.interference > 1.1:
        causes.append(f"the step takes {e.interference:.2f} times as long with the loader running (shared cores)")
    if e.loop.release_share > 0.05:
        causes.append("freeing batches")
    if e.loop.edge_share > 0.02:
        causes.append("epoch edges")
    if e.loop.wait_in_bursts > 0.5:
        causes.append("bursts that the prefetched batches do not cover")
    if e.foreign_cores > 0.2 * e.cores:
        causes.append("other load on this host")
    return (
        f"the loop reaches {format_rate(e.loop.samples_per_s.value)}, {format_share(lost)} less than the slower of "
        f"loader and step alone; likely: {'; '.join(causes) or 'memory bandwidth or a lock that both use'}"
    )
