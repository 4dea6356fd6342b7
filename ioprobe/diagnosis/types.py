"""What was found: the types between a Run and the page that shows it."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from ioprobe.run import Caveat, Failure, Host, HotFrame, Limit, LoaderSettings, Partition, Stage, json_schema
from ioprobe.stats import Estimate

# 1 (2026-11-28): first version.
REPORT_SCHEMA = 1


class Verdict(str, Enum):
    """The answer in one word."""

    DATA_BOUND = "data-bound"
    COMPUTE_BOUND = "compute-bound"
    COMMUNICATION_BOUND = "communication-bound"
    BALANCED = "balanced"
    MISCONFIGURED = "misconfigured"
    UNDECIDED = "undecided"


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One rung of the ladder: what one stage could sustain alone."""

    stage: Stage
    samples_per_s: Estimate | None
    """None means not measured."""
    lowest: bool = False
    """True for the rung that bounds the job."""
    detail: str = ""
    """How it was measured, with the figures behind it."""


class StageCost(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one stage, per sample, in one worker (or the main process)."""

    stage: Stage
    wall_s: float
    cpu_s: float | None = None
    blocked_s: float | None = None
    """Waiting for storage, a lock or another process: wall − CPU − runnable without a core."""
    runq_s: float | None = None
    """Runnable, but no core was free."""
    share: float | None = None
    """Of the worker's time per sample [fraction]."""
    where: str = "worker"
    """``worker`` or ``main``."""
    hottest: HotFrame | None = None


class StallShare(msgspec.Struct, frozen=True, kw_only=True):
    """Share of the loop's wall time spent blocked for the next batch."""

    measured: Estimate | None = None
    """From the coupled loop."""
    predicted: Estimate | None = None
    """From the isolated measurements through the model."""


class WhatIfPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, predicted or measured."""

    settings: dict[str, Any]
    samples_per_s: Estimate
    stall_share: Estimate | None = None
    measured: bool = False


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change."""

    code: str
    """``IO1xx``, stable."""
    action: str
    """Imperative sentence."""
    because: str
    """Its evidence, with numbers."""
    settings: dict[str, Any] = {}
    """DataLoader settings to apply, empty where the change is not a setting."""
    gain: Estimate | None = None
    """Predicted loop throughput over the present one, minus 1 [fraction]."""
    verified: Estimate | None = None
    """The same, measured by a real run at those settings."""
    wrong_when: str = ""
    """When this advice would be wrong."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Ladder, verdict and their evidence."""

    verdict: Verdict
    limiting_stage: Limit | None
    evidence: str
    """One sentence with the numbers that carry the verdict."""
    reasons: list[str] = []
    """Further sentences: what was ruled out, what is unexplained, cold against steady state."""
    stall_share: StallShare
    headroom: Estimate | None = None
    """Step rate over loop rate, minus 1: the most that any input-side change can bring [fraction]."""
    loop_samples_per_s: Estimate | None = None
    ladder: list[Rung] = []
    stages: list[StageCost] = []
    unexplained: str = ""
    """Where the ladder does not explain the loop: likely causes; empty when it does."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One budget or rule, judged."""

    name: str
    status: str
    """``passed``, ``failed``, ``undecided`` or ``abstained``."""
    text: str
    pipeline: str = ""
    file: str = ""
    line: int | None = None
    column: int | None = None
    fix: str = ""
    missing: list[str] = []
    """Facts for want of which a rule abstained, in the words of ``ioprobe.toml``."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of the coupled loop over time, aggregated to at most 2,000 bins."""

    start_s: list[float] = []
    wait_s: list[float] = []
    step_s: list[float] = []
    warmup: list[int] = []
    """1 where the bin is warm-up."""


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a job with several."""

    rank: int
    host: str
    samples_per_s: Estimate | None
    stall_share: Estimate | None
    late: bool = False
    """True where the others waited for it."""
    because: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that a renderer gets."""

    schema: int = REPORT_SCHEMA
    kind: str
    created_at: str
    version: str
    complete: bool
    target: str
    command: str
    run: str | None
    """Path of the run file."""
    page: str | None = None
    """Path of the HTML page."""
    host: Host
    unit: str = "samples"
    settings: LoaderSettings | None = None
    diagnosis: Diagnosis
    advice: list[Advice] = []
    what_if: list[WhatIfPoint] = []
    """Throughput over num_workers (and prefetch_factor), predicted and measured points together."""
    timeline: Timeline | None = None
    partition: dict[str, float] | None = None
    """Shares of a trace, or of the loop: ``compute communication transfer data_stall other_idle``, summing to 1."""
    partitions: list[Partition] = []
    ranks: list[RankSummary] = []
    outcomes: list[Outcome] = []
    caveats: list[Caveat] = []
    failures: list[Failure] = []
    metrics: dict[str, float] = {}
    """Further figures by name with the unit at its end: ``time_to_first_batch_s``, ``wait_p95_s``, ``tokens_per_s``,
    ``steps_per_s``, ``epoch_edge_s``, ``interference`` (step time with loader over without), ``batch_bytes``, ..."""


class PlanPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What n accelerators reach, what they ask of the rest, and what bounds them."""

    n: int
    """Accelerators."""
    samples_per_s: float
    """What all of them reach together."""
    storage_bytes_per_s: float | None = None
    """Asked of the store."""
    iops: float | None = None
    """Requests asked of the store [1/s]."""
    cores: float | None = None
    """Cores that decoding takes."""
    hosts: int | None = None
    binding: str = ""
    """What bounds them at this n: ``step``, ``cpu``, ``storage-bandwidth``, ``network``, ..."""
    scaling_efficiency: float | None = None
    """Reached over n times one accelerator [fraction]."""
    cost: dict[str, float] = {}
    """Figures of money and energy by name with the unit at its end, such as ``usd_per_million_samples``."""
    metrics: dict[str, float] = {}
    """Further figures by name with the unit at its end: ``shm_bytes``, ``connections``, ``hours``, ..."""


class PlanInput(msgspec.Struct, frozen=True, kw_only=True):
    """One number that the plan rests on."""

    name: str
    value: str
    """With its unit."""
    source: str
    """Where it comes from: a run file, an option, a publication."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity and cost over the number of accelerators; what the renderers of ``ioprobe plan`` get."""

    title: str
    """Such as ``unet3d on h100``."""
    summary: str
    """One sentence: the largest n that is fed, and what binds beyond it."""
    created_at: str
    version: str
    unit: str = "samples"
    points: list[PlanPoint] = []
    """By n, ascending."""
    inputs: list[PlanInput] = []
    caveats: list[Caveat] = []


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema of the report object."""
    return json_schema(Report)
