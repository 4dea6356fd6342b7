"""Reports with known content, one for each story a renderer must tell."""

from __future__ import annotations

from report_parts import HOSTILE, about, report, rungs, timeline, what_if
from report_verdicts import balanced, communication_bound, compute_bound, misconfigured, undecided

from ioprobe.diagnosis.types import (
    Advice,
    Diagnosis,
    Outcome,
    Plan,
    PlanInput,
    PlanPoint,
    RankSummary,
    Report,
    Rung,
    StageCost,
    StallShare,
    Verdict,
    WhatIfPoint,
)
from ioprobe.run import Caveat, Failure, Host, HotFrame, Limit, Stage
from ioprobe.stats import Estimate, exact


def data_bound() -> Report:
    """Decode limits; the advice was verified and held; a second piece of advice missed."""
    ladder = rungs(
        {
            Stage.STORAGE: about(31_900),
            Stage.READ: about(8_410, 0.03),
            Stage.DECODE: about(219),
            Stage.COLLATE: about(2_100, 0.01),
            Stage.TRANSPORT: None,
            Stage.LOADER: about(215, 0.016),
            Stage.STEP: exact(512.0),
            Stage.LOOP: about(214, 0.018),
        },
        Stage.DECODE,
        {
            Stage.STORAGE: "shards in sequence, cold, 2 readers: 3.51 GB/s",
            Stage.DECODE: "9.10 ms of CPU per sample in each of 2 workers",
            Stage.LOADER: "drained alone, 2 workers",
            Stage.STEP: "emulated: 62.5 ms for 32 samples",
        },
    )
    hot = HotFrame(stage=Stage.DECODE, function="load_image", file="/home/ada/project/train.py", line=88, samples=410)
    stages = [
        StageCost(stage=Stage.READ, wall_s=0.00012, cpu_s=0.00003, blocked_s=0.00009, runq_s=0.0, share=0.013),
        StageCost(
            stage=Stage.DECODE, wall_s=0.0093, cpu_s=0.0091, blocked_s=0.0001, runq_s=0.0001, share=0.9, hottest=hot
        ),
        StageCost(stage=Stage.COLLATE, wall_s=0.00048, cpu_s=0.00046, blocked_s=0.00002, runq_s=0.0, share=0.05),
        StageCost(stage=Stage.TRANSPORT, wall_s=0.00021, cpu_s=0.00009, where="main"),
    ]
    advice = [
        Advice(
            code="IO101",
            action="Set num_workers=6",
            because="each worker adds 109 samples/s and 6 of 8 usable cores are idle; the step takes 512 samples/s",
            settings={"num_workers": 6},
            gain=Estimate(1.39, 1.29, 1.39, 40),
            verified=Estimate(1.36, 1.33, 1.39, 30),
            wrong_when="another process needs the idle cores",
        ),
        Advice(
            code="IO110",
            action="Decode with a faster JPEG library",
            because="90% of a worker's time is decode, 88% of it CPU in load_image",
            gain=Estimate(0.8, 0.7, 0.9, 1),
            verified=Estimate(0.21, 0.15, 0.27, 12),
        ),
        Advice(
            code="IO120", action="Store the images at 256 pixels", because="they are decoded at 500 and resized to 224"
        ),
    ]
    return report(
        Diagnosis(
            verdict=Verdict.DATA_BOUND,
            limiting_stage=Limit.DECODE,
            evidence="decode takes 9.10 ms of CPU per sample; 2 workers give 219 samples/s; the step takes 512",
            reasons=["storage is not the limit: it gives 31,900 samples/s cold"],
            stall_share=StallShare(
                measured=Estimate(0.582, 0.571, 0.593, 118), predicted=Estimate(0.572, 0.542, 0.602, 1)
            ),
            headroom=Estimate(1.39, 1.35, 1.43, 118),
            loop_samples_per_s=about(214, 0.018),
            ladder=ladder,
            stages=stages,
        ),
        advice=advice,
        what_if=what_if(),
        timeline=timeline(),
        caveats=[
            Caveat("cache-warm", "41% of the shards were in the page cache before", "ioprobe storage URL --cold"),
            Caveat("few-batches", "the interval of the loop rests on 118 batches"),
        ],
        metrics={
            "time_to_first_batch_s": 1.25,
            "wait_p50_s": 0.081,
            "wait_p95_s": 0.24,
            "wait_p99_s": 0.31,
            "epoch_edge_s": 0.9,
            "interference": 1.07,
            "batch_bytes": 19_267_584,
        },
    )


def several_ranks(count: int = 4) -> Report:
    """One rank is late and said to be so."""
    ranks = [
        RankSummary(
            rank=i,
            host=f"node{i // 2:02d}",
            samples_per_s=about(128 - i),
            stall_share=about(0.61 if i == 3 else 0.05, 0.1),
            late=i == 3,
            because="its loader is 2.4 times slower: 11 of 16 shards on this host are cold" if i == 3 else "",
        )
        for i in range(count)
    ]
    base = balanced()
    return report(
        Diagnosis(
            verdict=Verdict.DATA_BOUND,
            limiting_stage=Limit.STORAGE_BANDWIDTH,
            evidence="rank 3 waits for data 61.0% of the time and the others wait for rank 3",
            stall_share=StallShare(measured=Estimate(0.19, 0.17, 0.21, 400)),
            headroom=Estimate(0.23, 0.2, 0.26, 400),
            ladder=base.diagnosis.ladder,
        ),
        ranks=ranks,
    )


def partial() -> Report:
    """Interrupted: something was measured, the rest is missing."""
    return report(
        Diagnosis(
            verdict=Verdict.UNDECIDED,
            limiting_stage=None,
            evidence="interrupted before the loop was measured",
            stall_share=StallShare(predicted=Estimate(0.3, 0.2, 0.45, 1)),
            ladder=rungs({Stage.STORAGE: about(900), Stage.LOADER: None, Stage.STEP: None}, None, {}),
        ),
        complete=False,
        failures=[Failure(phase="loader", kind="interrupted", message="interrupted by Ctrl-C")],
    )


def plain() -> Report:
    """As little as a report can hold."""
    return Report(
        kind="loader",
        created_at="2026-11-28T01:02:03Z",
        version="0.1.0",
        complete=True,
        target="",
        command="",
        run=None,
        host=Host(),
        diagnosis=Diagnosis(verdict=Verdict.UNDECIDED, limiting_stage=None, evidence="", stall_share=StallShare()),
    )


def hostile() -> Report:
    """Every free text carries control characters, markup, template code and a script's end."""
    base = data_bound()
    evil = HotFrame(stage=Stage.DECODE, function=HOSTILE, file=HOSTILE, line=1, samples=9)
    diagnosis = Diagnosis(
        verdict=Verdict.DATA_BOUND,
        limiting_stage=Limit.DECODE,
        evidence=HOSTILE,
        reasons=[HOSTILE],
        stall_share=base.diagnosis.stall_share,
        ladder=[Rung(stage=Stage.DECODE, samples_per_s=about(9), detail=HOSTILE, lowest=True)],
        stages=[StageCost(stage=Stage.DECODE, wall_s=0.1, hottest=evil)],
        unexplained=HOSTILE,
    )
    return report(
        diagnosis,
        target=HOSTILE,
        command=HOSTILE,
        run=HOSTILE,
        page=HOSTILE,
        host=Host(hostname=HOSTILE, cpu_model=HOSTILE, accelerators=[HOSTILE], versions={HOSTILE: HOSTILE}),
        advice=[Advice(code="IO1", action=HOSTILE, because=HOSTILE, settings={HOSTILE: HOSTILE}, wrong_when=HOSTILE)],
        what_if=[
            WhatIfPoint(settings={"num_workers": n, HOSTILE: f"{HOSTILE}{n % 2}"}, samples_per_s=about(n + 1))
            for n in range(4)
        ],
        ranks=[RankSummary(rank=0, host=HOSTILE, samples_per_s=None, stall_share=None, late=True, because=HOSTILE)],
        outcomes=[Outcome(name=HOSTILE, status="failed", text=HOSTILE, file=HOSTILE, line=3, fix=HOSTILE)],
        caveats=[Caveat(HOSTILE, HOSTILE, HOSTILE)],
        failures=[Failure(phase="loop", kind="exception", message=HOSTILE, where=HOSTILE, hint=HOSTILE)],
        metrics={HOSTILE: 1.0},
    )


ALL = {
    "data_bound": data_bound,
    "compute_bound": compute_bound,
    "communication_bound": communication_bound,
    "balanced": balanced,
    "misconfigured": misconfigured,
    "undecided": undecided,
    "several_ranks": several_ranks,
    "partial": partial,
    "plain": plain,
    "hostile": hostile,
}


def plan() -> Plan:
    """Fed up to 64 accelerators; beyond, storage binds."""
    one, store = 2_400.0, 190_000.0
    points = []
    for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        reached = min(n * one, store)
        points.append(
            PlanPoint(
                n=n,
                samples_per_s=reached,
                storage_bytes_per_s=reached * 115_000,
                iops=reached / 10,
                cores=reached / 110,
                hosts=-(-n // 8),
                binding="step" if n * one <= store else "storage-bandwidth",
                scaling_efficiency=reached / (n * one),
                cost={"usd_per_million_samples": 2.5 * n * 1e6 / 3600 / reached},
                metrics={"connections": reached / 400},
            )
        )
    return Plan(
        title="resnet50 on h100",
        summary="the store feeds 64 accelerators at full rate; from 128 on its bandwidth binds",
        created_at="2026-11-28T01:02:03Z",
        version="0.1.0",
        points=points,
        inputs=[
            PlanInput(name="step", value="2,400 samples/s", source="run.json, rung step"),
            PlanInput(name="price of an accelerator", value="2.50 USD/h", source="--price"),
        ],
        caveats=[Caveat("scaling", "one accelerator was measured; communication at larger n was not")],
    )
