"""Reports with known content for each verdict but the data-bound one."""

from __future__ import annotations

from report_parts import about, report, rungs

from ioprobe.diagnosis.types import (
    Advice,
    Diagnosis,
    Report,
    StallShare,
    Verdict,
)
from ioprobe.run import Caveat, Failure, Limit, Partition, Stage
from ioprobe.stats import Estimate, exact


def compute_bound() -> Report:
    """The step limits by far; no advice; linear rates lie close together."""
    ladder = rungs(
        {Stage.LOADER: about(215), Stage.STEP: about(64.1, 0.004), Stage.LOOP: about(63.8, 0.005)},
        Stage.STEP,
        {Stage.STEP: "train.py:make_step on cuda, 499 ms for 32 samples"},
    )
    return report(
        Diagnosis(
            verdict=Verdict.COMPUTE_BOUND,
            limiting_stage=Limit.STEP,
            evidence="the step takes 64.1 samples/s and the loader alone gives 215",
            stall_share=StallShare(measured=Estimate(0.002, 0.0, 0.004, 80), predicted=exact(0.0)),
            headroom=Estimate(0.005, 0.0, 0.012, 80),
            ladder=ladder,
        ),
        advice=[
            Advice(
                code="IO190",
                action="Use fewer workers: num_workers=1",
                because="one worker gives 109 samples/s, 1.7 times what the step takes",
                settings={"num_workers": 1},
                gain=exact(0.0),
            )
        ],
    )


def communication_bound() -> Report:
    """A trace with its partition."""
    parts = {"compute": 0.52, "communication": 0.38, "transfer": 0.02, "data_stall": 0.03, "other_idle": 0.05}
    partition = Partition(
        compute_s=5.2,
        communication_s=3.8,
        transfer_s=0.2,
        data_stall_s=0.3,
        other_idle_s=0.5,
        window_s=10.0,
        steps=100,
        device="cuda:0",
        hidden_s={"communication": 6.1, "transfer": 0.9},
    )
    return report(
        Diagnosis(
            verdict=Verdict.COMMUNICATION_BOUND,
            limiting_stage=Limit.COMMUNICATION,
            evidence="38.0% of the step is exposed all-reduce; data stalls are 3.0%",
            stall_share=StallShare(measured=Estimate(0.03, 0.02, 0.04, 100)),
        ),
        kind="profile",
        target="trace.json.gz",
        settings=None,
        partition=parts,
        partitions=[partition],
    )


def balanced() -> Report:
    ladder = rungs(
        {Stage.LOADER: about(530, 0.03), Stage.STEP: about(512, 0.004), Stage.LOOP: about(498, 0.012)}, Stage.STEP, {}
    )
    return report(
        Diagnosis(
            verdict=Verdict.BALANCED,
            limiting_stage=Limit.DECODE,
            evidence="the loader alone gives 530 samples/s and the step takes 512",
            stall_share=StallShare(measured=Estimate(0.027, 0.015, 0.039, 200), predicted=Estimate(0.02, 0.0, 0.06, 1)),
            headroom=Estimate(0.028, 0.016, 0.04, 200),
            ladder=ladder,
        )
    )


def misconfigured() -> Report:
    """It fails before anything was measured: no ladder, no figure."""
    return report(
        Diagnosis(
            verdict=Verdict.MISCONFIGURED,
            limiting_stage=None,
            evidence="the third batch cannot be collated: images of 480x640 and 500x375 in one batch",
            stall_share=StallShare(),
        ),
        complete=False,
        page=None,
        failures=[
            Failure(
                phase="loop",
                kind="exception",
                message="RuntimeError: stack expects each tensor to be equal size, but got [3, 480, 640] at entry 0",
                where="train.py:41",
                hint="resize in the transform, or pass a collate_fn that pads",
            )
        ],
        advice=[
            Advice(
                code="IO160",
                action="Give the samples one size before they are collated",
                because="default_collate stacks tensors and needs equal shapes",
            )
        ],
    )


def undecided() -> Report:
    """The interval covers the boundary."""
    ladder = rungs(
        {Stage.LOADER: about(300, 0.4, 6), Stage.STEP: about(310, 0.02), Stage.LOOP: about(260, 0.3, 6)}, None, {}
    )
    return report(
        Diagnosis(
            verdict=Verdict.UNDECIDED,
            limiting_stage=None,
            evidence="the stall share lies between 1% and 31%: six batches are too few",
            stall_share=StallShare(measured=Estimate(0.16, 0.01, 0.31, 6)),
            headroom=Estimate(0.19, -0.05, 0.7, 6),
            ladder=ladder,
            unexplained="the loop is 13% slower than loader and step explain; likely: step and workers share cores",
        ),
        caveats=[Caveat("few-batches", "6 batches after warm-up", "ioprobe analyze ... --seconds 120")],
    )
