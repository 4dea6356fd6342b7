"""Who works while a batch is made: a worker's own threads, or the loop's own thread in a wrapper of the loader."""

from __future__ import annotations

import pytest
from made_runs import make_run, stacks, worker_batches

from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.run import Limit, Run


def pooled(other_cpu_s: float, **threads: int) -> Run:
    rows = worker_batches(200, workers=2, fetch_s=0.05, cpu_s=0.001, other_cpu_s=other_cpu_s)
    shares = [stacks(read=98, transform=2), stacks("worker-thread", **threads)]
    return make_run(loop_wait_s=0.02, step_s=0.005, loader_cycle_s=0.025, worker=rows, stages=shares)


def test_waiting_for_threads_of_its_own_that_compute_is_no_waiting_for_storage() -> None:
    found = diagnose(pooled(0.048, transform=150, decode=30, wait=20)).diagnosis
    assert found.limiting_stage is Limit.TRANSFORM
    stage = {row.stage.value: row for row in found.stages}
    assert stage["transform"].blocked_s == pytest.approx(0.0, abs=1e-5)
    assert stage["transform"].wall_s + stage["decode"].wall_s == pytest.approx(0.049 / 16, rel=0.05)


def test_waiting_for_threads_that_wait_themselves_is_storage() -> None:
    assert diagnose(pooled(0.002, transform=150, wait=20)).diagnosis.limiting_stage is Limit.STORAGE_LATENCY
    assert diagnose(pooled(0.048, wait=200)).diagnosis.limiting_stage is Limit.STORAGE_LATENCY


def wrapped(idle_s: float, **main: int) -> Run:
    rows = worker_batches(200, workers=2, fetch_s=0.002, cpu_s=0.002, idle_s=idle_s)
    facts = {"kind": "map", "adaptable": False, "inner_loaders": 1}
    run = make_run(loop_wait_s=0.024, step_s=0.012, loader_cycle_s=0.024, worker=rows, facts=facts)
    run.loader_alone().stacks = [stacks(wait=90, decode=10), stacks("main", **main)]  # type: ignore[union-attr]
    return run


def test_copies_in_the_loops_own_thread_are_named_and_nothing_hides_them() -> None:
    found = diagnose(wrapped(0.046, transfer=95, wait=5)).diagnosis
    assert found.limiting_stage is Limit.HOST_TO_DEVICE
    assert "the loop's own thread copies each batch" in found.evidence
    assert found.stall_share.predicted is not None
    assert found.stall_share.predicted.value == pytest.approx(1 - 12 / (12 + 0.95 * 24), abs=0.01)


def test_a_wrapper_that_only_waits_for_the_workers_hides_the_step_behind_them() -> None:
    found = diagnose(wrapped(0.0, transfer=5, wait=95)).diagnosis
    assert found.limiting_stage is not Limit.HOST_TO_DEVICE
    assert found.stall_share.predicted is not None
    assert found.stall_share.predicted.value == pytest.approx(1 - 12 / 24, abs=0.04)


def test_waiting_for_a_future_of_a_prefetching_thread_hides_the_step() -> None:
    run = wrapped(0.0, read=95, wait=5)
    run.loader_alone().stacks.append(stacks("thread", transform=90, wait=10))  # type: ignore[union-attr]
    run.loop().stacks = run.loader_alone().stacks  # type: ignore[union-attr]
    predicted = diagnose(run).diagnosis.stall_share.predicted
    assert predicted is not None
    assert predicted.value == pytest.approx(1 - 12 / 24, abs=0.02)


@pytest.mark.parametrize(("other_cpu_s", "crowds"), [(0.0006, False), (0.04, True)])
def test_threads_that_compute_for_microseconds_crowd_nobody_out(other_cpu_s: float, crowds: bool) -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.03, cpu_s=0.0005, runq_s=0.02, other_cpu_s=other_cpu_s)
    run = make_run(loop_wait_s=0.02, step_s=0.005, loader_cycle_s=0.025, worker=rows, stages=[stacks(read=100)])
    assert ("IO107" in [a.code for a in diagnose(run).advice]) is crowds
