"""Loaders that run more than one DataLoader, processes of their own, or a thread in place of worker processes."""

from __future__ import annotations

import pytest
from made_runs import make_run, stacks, worker_batches

from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.diagnosis.types import Verdict
from ioprobe.run import HostLoad, Limit, Run


def load(own: float, other: float = 0.0) -> HostLoad:
    return HostLoad(window_s=8.0, own_cores=own, other_cores=other, cores=2)


def pooled(own: float, other: float = 0.0, **threads: int) -> Run:
    """A pool's processes make batches of 80 ms, the loop's own thread waits; the step takes 15 ms."""
    run = make_run(
        loop_wait_s=0.065,
        step_s=0.015,
        loader_cycle_s=0.08,
        workers=0,
        stages=[stacks("main", wait=95, collate=5), stacks("thread", **(threads or {"wait": 100}))],
        facts={"kind": "opaque", "adaptable": False, "settings": None},
    )
    for measured in run.loaders:
        measured.settings, measured.load = None, load(own, other)
    return run


@pytest.mark.parametrize(
    ("own", "other", "limit", "text"),
    [
        (1.97, 0.0, Limit.OVERSUBSCRIPTION, "compute less"),
        (1.10, 0.8, Limit.OVERSUBSCRIPTION, "compute less"),  # what others use is not free either
        (1.05, 0.0, Limit.TRANSFORM, "start more of the loader's own processes"),
    ],
)
def test_processes_that_a_loader_started_limit_it_by_what_they_compute(
    own: float, other: float, limit: Limit, text: str
) -> None:
    finished = diagnose(pooled(own, other))
    assert (finished.diagnosis.verdict, finished.diagnosis.limiting_stage) == (Verdict.DATA_BOUND, limit)
    assert f"use {own - 0.1:.1f} of 2 cores" in finished.diagnosis.evidence
    assert [a.code for a in finished.advice] == ["IO616"]
    assert text in finished.advice[0].action


def test_a_thread_that_waits_for_a_core_of_its_own_processes_does_not_make_the_batches() -> None:
    run = pooled(1.97)
    for measured in run.loaders:
        measured.stacks = [stacks("main", transform=78, wait=22), stacks("thread", wait=100)]
    assert [a.code for a in diagnose(run).advice] == ["IO616"]


def test_processes_beside_threads_that_compute_are_not_to_blame_alone() -> None:
    finished = diagnose(pooled(1.97, transport=80, wait=20))
    assert finished.diagnosis.limiting_stage is Limit.IPC
    assert [a.code for a in finished.advice] == ["IO617"]


def crowded(idle_s: float, inner: int = 0) -> Run:
    rows = worker_batches(200, workers=1, fetch_s=0.01, cpu_s=0.01, runq_s=0.005, idle_s=idle_s)
    facts = {"kind": "map", "adaptable": False, "inner_loaders": inner}
    run = make_run(loop_wait_s=0.1, step_s=0.02, loader_cycle_s=0.12, workers=1, worker=rows, facts=facts)
    for measured in run.loaders:
        measured.load = load(1.9)
    return run


@pytest.mark.parametrize(("idle_s", "inner", "named"), [(0.0, 0, True), (0.1, 0, False), (0.0, 2, False)])
def test_neighbours_are_told_to_shrink_only_where_the_measured_workers_lack_cores_to_strangers(
    idle_s: float, inner: int, named: bool
) -> None:
    assert ("IO607" in [a.code for a in diagnose(crowded(idle_s, inner)).advice]) is named


@pytest.mark.parametrize(("own", "other", "told"), [(1.05, 0.0, True), (1.05, 0.8, False), (1.9, 0.0, False)])
def test_workers_of_a_dataloader_inside_may_be_more_where_cores_lie_idle(own: float, other: float, told: bool) -> None:
    rows = worker_batches(200, workers=1, fetch_s=0.1, cpu_s=0.1)
    facts = {"kind": "map", "adaptable": False, "inner_loaders": 2}
    run = make_run(
        loop_wait_s=0.08,
        step_s=0.02,
        loader_cycle_s=0.1,
        workers=1,
        worker=rows,
        facts=facts,
        stages=[stacks(transform=9)],
    )
    for measured in run.loaders:
        measured.load = load(own, other)
    actions = [a.action for a in diagnose(run).advice]
    more = "give one of 2 DataLoaders (num_workers=1, batch_size=16) more workers: num_workers=2"
    assert (actions[0] == more) is told
    assert any(action.startswith("make the transform cheaper") for action in actions)


def beside_the_step(**threads: int) -> Run:
    """A DataLoader without workers; its batches take 17 ms, the step 20 ms alone and 35 ms beside the loader."""
    rows = worker_batches(200, workers=1, fetch_s=0.017, cpu_s=0.017)
    facts = {"kind": "map", "adaptable": False, "inner_loaders": 1}
    shares = [stacks("main", step=90, wait=10), stacks("thread", **threads)]
    run = make_run(
        loop_wait_s=0.002,
        step_s=0.02,
        loader_cycle_s=0.017,
        workers=0,
        worker=rows,
        stages=shares,
        facts=facts,
        step_cpu_s=0.02,
    )
    loop = run.loop()
    assert loop is not None
    loop.main.step_s = [0.035] * 200
    loop.main.call_s = [0.037 * k for k in range(200)]
    return run


def test_a_thread_that_loads_beside_the_step_calls_for_worker_processes() -> None:
    finished = diagnose(beside_the_step(transform=60, wait=40))
    assert finished.diagnosis.limiting_stage is Limit.OVERSUBSCRIPTION
    assert [a.code for a in finished.advice] == ["IO102"]
    assert "worker processes" in finished.advice[0].action


def test_fewer_workers_are_never_advised_where_there_are_none() -> None:
    finished = diagnose(beside_the_step(wait=100))
    assert [a.code for a in finished.advice] == ["IO608"]
    assert "fewer workers" not in finished.advice[0].action


@pytest.mark.parametrize(
    ("main", "limit", "told"),
    [
        ({"transfer": 60, "wait": 40}, Limit.HOST_TO_DEVICE, "pinned memory"),
        ({"transform": 60, "wait": 40}, Limit.TRANSFORM, "in its collate function"),
        ({"transform": 20, "collate": 30, "wait": 50}, Limit.COLLATE, "in its collate function"),
    ],
)
def test_inline_work_gets_the_advice_that_fits_it(main: dict[str, int], limit: Limit, told: str) -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.002, cpu_s=0.002, idle_s=0.046)
    facts = {"kind": "map", "adaptable": False, "inner_loaders": 1}
    run = make_run(loop_wait_s=0.024, step_s=0.012, loader_cycle_s=0.024, worker=rows, facts=facts)
    drained = run.loader_alone()
    assert drained is not None
    drained.stacks = [stacks(wait=100), stacks("main", **main)]
    finished = diagnose(run)
    assert finished.diagnosis.limiting_stage is limit
    assert [a.code for a in finished.advice] == ["IO605"]
    assert told in finished.advice[0].action
    assert ("pinned" in finished.advice[0].action) is (limit is Limit.HOST_TO_DEVICE)


def test_a_thread_that_makes_batches_without_a_dataloader_calls_for_processes() -> None:
    run = make_run(
        loop_wait_s=0.017,
        step_s=0.008,
        loader_cycle_s=0.03,
        workers=0,
        stages=[stacks("main", step=40, wait=60), stacks("thread", transform=95, wait=5)],
        facts={"kind": "opaque", "adaptable": False, "settings": None},
    )
    loop = run.loop()
    assert loop is not None
    loop.main.step_s = [0.013] * 200
    loop.main.call_s = [0.030 * k for k in range(200)]
    for measured in run.loaders:
        measured.settings = None
    finished = diagnose(run)
    assert (finished.diagnosis.verdict, finished.diagnosis.limiting_stage) == (Verdict.DATA_BOUND, Limit.TRANSFORM)
    assert "1.62 times as long beside them" in finished.diagnosis.evidence
    assert [a.code for a in finished.advice] == ["IO102", "IO612"]


@pytest.mark.parametrize(("idle_s", "named"), [(0.0, True), (0.2, False)])
def test_thread_pools_of_workers_that_idle_are_not_to_blame(idle_s: float, named: bool) -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.03, cpu_s=0.0005, runq_s=0.02, other_cpu_s=0.04, idle_s=idle_s)
    run = make_run(loop_wait_s=0.02, step_s=0.005, loader_cycle_s=0.025, worker=rows, stages=[stacks(read=100)])
    assert ("IO107" in [a.code for a in diagnose(run).advice]) is named


def test_processes_that_do_not_compute_wait_for_storage_themselves() -> None:
    run = pooled(0.15)
    for measured in run.loaders:
        measured.stacks = [stacks("main", wait=90, transform=10), stacks("thread", wait=280, transport=20)]
    finished = diagnose(run)
    assert finished.diagnosis.limiting_stage is Limit.STORAGE_LATENCY
    assert "they wait themselves" in finished.diagnosis.evidence
    assert [a.code for a in finished.advice] == ["IO616"]
