"""Budgets: passed, failed or undecided by the interval."""

from __future__ import annotations

import numpy as np
import pytest
from run_makers import loader_run, run_of

from ioprobe.config import BudgetsConfig
from ioprobe.diagnosis.budgets import judge_budgets
from ioprobe.diagnosis.metrics import metrics_of
from ioprobe.run import Failure, Run


def coupled(wait_s: float = 0.01, step_s: float = 0.03, batches: int = 100, **more: object) -> Run:
    return run_of(loader_run([wait_s] * batches, [step_s] * batches, **more))  # type: ignore[arg-type]


def status(run: Run, **budgets: float) -> dict[str, str]:
    return {o.name: o.status for o in judge_budgets(BudgetsConfig(**budgets), run)}  # type: ignore[arg-type]


def test_figures_are_work_over_wall_time() -> None:
    metrics = metrics_of(coupled(first_batch_s=2.0, pss_bytes=[100, 200]))
    assert metrics["samples_per_s"].estimate.value == pytest.approx(400.0)
    assert metrics["stall_share"].estimate.value == pytest.approx(0.25)
    assert metrics["au"].estimate.value == pytest.approx(0.75)
    assert metrics["p99_wait_ms"].estimate.value == pytest.approx(10.0)
    assert metrics["time_to_first_batch_s"].estimate.value == 2.0
    assert metrics["memory"].estimate.value == 300


def test_warm_up_is_left_out() -> None:
    run = run_of(loader_run([5.0] * 4 + [0.01] * 60, [0.03] * 64, warmup=4))
    assert metrics_of(run)["stall_share"].estimate.value == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("budget", "kept", "broken"),
    [
        ("stall_share", 0.3, 0.2),
        ("samples_per_s", 390.0, 410.0),
        ("time_to_first_batch_s", 3.0, 1.0),
        ("memory", 400, 100),
        ("au", 0.7, 0.8),
    ],
)
def test_a_budget_passes_on_one_side_and_fails_on_the_other(budget: str, kept: float, broken: float) -> None:
    run = coupled(first_batch_s=2.0, pss_bytes=[100, 200])
    assert status(run, **{budget: kept}) == {budget: "passed"}
    assert status(run, **{budget: broken}) == {budget: "failed"}


def test_an_interval_over_the_limit_is_undecided() -> None:
    rng = np.random.default_rng(0)
    waits = rng.exponential(0.01, 40)
    run = run_of(loader_run(list(waits), [0.03] * 40))
    share = metrics_of(run)["stall_share"].estimate
    assert share.low < share.value < share.high
    assert status(run, stall_share=share.value) == {"stall_share": "undecided"}


def test_the_99th_percentile_of_few_waits_has_no_upper_bound_but_can_fail() -> None:
    run = coupled(batches=50)
    assert status(run, p99_wait_ms=1000.0) == {"p99_wait_ms": "undecided"}
    assert status(run, p99_wait_ms=1.0) == {"p99_wait_ms": "failed"}
    assert status(coupled(batches=2000), p99_wait_ms=1000.0) == {"p99_wait_ms": "passed"}


def test_what_was_seen_once_needs_room() -> None:
    run = coupled(first_batch_s=2.0)
    assert status(run, time_to_first_batch_s=2.1) == {"time_to_first_batch_s": "undecided"}


def test_what_was_not_measured_is_undecided_and_says_why() -> None:
    run = run_of(loader_run([0.01] * 32))
    (outcome,) = judge_budgets(BudgetsConfig(stall_share=0.1), run, pipeline="train")
    assert (outcome.status, outcome.text) == ("undecided", "stall_share was not measured in this run")
    run.failures.append(Failure(phase="loop", kind="exception", message="boom"))
    (outcome,) = judge_budgets(BudgetsConfig(stall_share=0.1), run)
    assert outcome.text == "stall_share was not measured: the measurement broke (boom)"


def test_tokens_follow_from_samples() -> None:
    run = coupled()
    run.workload = type(run.workload)(target="t", tokens_per_sample=1000)
    assert metrics_of(run)["tokens_per_s"].estimate.value == pytest.approx(400_000.0)
    assert status(run, tokens_per_s=390_000.0) == {"tokens_per_s": "passed"}
