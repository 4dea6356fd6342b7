"""Processes that compute for the workers, pools that do a worker's work, and workers bound to few cores."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from made_runs import main_batches, make_run, stacks, worker_batches

from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.errors import RunFileError
from ioprobe.instrument.ring import FIELDS, Ring
from ioprobe.instrument.worker import BatchClock
from ioprobe.model.calibrate import calibrate
from ioprobe.model.helpers import helper_cpu_s
from ioprobe.model.predict import loader_rate
from ioprobe.probe.rows import worker_cores
from ioprobe.run import HostLoad, Limit, LoaderRun, LoaderSettings, Run, Stage
from ioprobe.run.file import dumps, loads

BURN = "import time\nwhile time.process_time() < 0.08: pass"


def decoded_by_children(workers: int, fetch_s: float, **rows: Any) -> Run:
    """Batches of 16 samples for which children compute 0.2 s, on 2 full cores."""
    made = worker_batches(60, workers=workers, fetch_s=fetch_s, cpu_s=0.01, child_cpu_s=0.19, **rows)
    shares = [stacks(decode=95, transform=5)]
    run = make_run(loop_wait_s=0.1, step_s=0.01, loader_cycle_s=0.1, n=60, workers=workers, worker=made, stages=shares)
    for loader in run.loaders:
        loader.load = HostLoad(window_s=6.0, own_cores=1.97, other_cores=0.0, cores=2.0)
    return run


def test_waiting_for_a_process_that_decodes_is_decoding_and_more_workers_find_no_core() -> None:
    run = decoded_by_children(2, 0.2)
    found = diagnose(run)
    assert found.diagnosis.limiting_stage is Limit.DECODE
    assert found.diagnosis.evidence.startswith(
        "decode takes 11.9 ms a sample, with 11.9 ms of CPU in processes that the workers wait for, and 2 workers "
        "share 2 cores with them"
    )
    assert not [a for a in found.advice if a.settings.get("num_workers", 0) > 2]
    profile = calibrate(run)
    ceiling = 16 * 2 / 0.2
    assert loader_rate(profile, profile.current.at(num_workers=16, step_s=0.0)) <= 1.02 * ceiling
    assert loader_rate(profile, profile.current.at(num_workers=1, step_s=0.0)) == pytest.approx(ceiling / 2, rel=0.1)


def test_processes_in_line_for_a_core_are_no_waiting_for_storage() -> None:
    # Sixteen workers whose children share two cores: 1.6 s from begin to end, 0.2 s of it computing.
    run = decoded_by_children(16, 1.6)
    assert diagnose(run).diagnosis.limiting_stage is Limit.DECODE
    profile = calibrate(run)
    assert profile.service_blocked_s < 0.05 * profile.service_cpu_s + 0.1
    assert loader_rate(profile, profile.current.at(num_workers=2, step_s=0.0)) == pytest.approx(160, rel=0.1)


def test_a_child_that_computes_little_leaves_storage_what_it_is() -> None:
    rows = worker_batches(60, workers=2, fetch_s=0.2, cpu_s=0.01, child_cpu_s=0.01)
    run = make_run(loop_wait_s=0.1, step_s=0.01, loader_cycle_s=0.1, n=60, worker=rows, stages=[stacks(read=100)])
    assert diagnose(run).diagnosis.limiting_stage is Limit.STORAGE_LATENCY


def drained(workers: int, cycle_s: float, own_cores: float, *, wait_s: float = 0.2) -> LoaderRun:
    window = 60 * cycle_s
    return LoaderRun(
        coupled=False,
        purpose="baseline" if workers == 2 else "calibrate",
        settings=LoaderSettings(num_workers=workers, prefetch_factor=2, batch_size=16),
        main=main_batches(60, wait_s=cycle_s, step_s=None),
        workers=worker_batches(60, workers=workers, fetch_s=wait_s, cpu_s=0.002),
        load=HostLoad(window_s=window, own_cores=own_cores, other_cores=0.0, cores=2.0),
        wall_s=window,
    )


def test_helpers_that_live_on_are_known_by_the_cores_that_nobody_else_accounts_for() -> None:
    two, one = drained(2, 0.1, 1.92), drained(1, 0.2, 1.01)
    own = 0.002 + 0.1 * 0.1  # of worker and main process, per batch
    assert helper_cpu_s(two, [two, one], 2.0) == pytest.approx(0.192 - own)


def test_a_job_beside_the_loader_is_no_helper_of_its_workers() -> None:
    two, one = drained(2, 0.1, 1.92), drained(1, 0.2, 1.92)
    assert helper_cpu_s(two, [two, one], 2.0) == 0.0
    assert helper_cpu_s(drained(2, 0.1, 0.3), [], 2.0) == 0.0


def test_workers_that_wait_for_a_helper_of_theirs_wait_for_no_storage() -> None:
    two = drained(2, 0.1, 1.92)
    run = make_run(loop_wait_s=0.09, step_s=0.01, loader_cycle_s=0.1, n=60, worker=two.workers)
    run.loaders[1] = two
    found = diagnose(run)
    assert found.diagnosis.limiting_stage is Limit.DECODE
    assert not [a for a in found.advice if a.settings.get("num_workers", 0) > 2]


def test_a_run_file_from_before_children_were_counted_still_loads() -> None:
    run = decoded_by_children(2, 0.2)
    old = msgspec.json.decode(dumps(run))
    for loader in old["loaders"]:
        del loader["workers"]["child_cpu_s"]
    again = loads(msgspec.json.encode(old))
    assert again.loaders[0].workers is not None
    assert again.loaders[0].workers.child_cpu_s == []
    assert diagnose(again).diagnosis.limiting_stage is not None
    old["loaders"][0]["workers"]["child_cpu_s"] = [0.1] * 61
    with pytest.raises(RunFileError, match="columns differ in length"):
        loads(msgspec.json.encode(old))


def test_the_clock_sees_what_a_child_computed_and_only_the_batch_s_own() -> None:
    ring = Ring(1)
    clock = BatchClock(ring, 0)
    for index, runs in enumerate((True, False)):
        clock.asked()
        clock.got()
        if runs:
            subprocess.run([sys.executable, "-S", "-c", BURN], check=True)
        clock.put(index, clock.collate(list, [1]))
    first, second = (dict(zip(FIELDS, row, strict=True)) for row in ring.drain(0))
    ring.close()
    assert 0.07 < first["child_cpu_s"] < 2
    assert first["fetch_cpu_s"] < first["child_cpu_s"]
    assert second["child_cpu_s"] == 0.0


@pytest.mark.parametrize(("runq_s", "crowds"), [(0.008, False), (0.06, True)])
def test_a_pool_of_python_threads_that_does_the_work_is_no_misconfiguration(runq_s: float, crowds: bool) -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.05, cpu_s=0.001, runq_s=runq_s, other_cpu_s=0.048)
    shares = [stacks(transform=100), stacks("worker-thread", transform=700, decode=100, wait=200)]
    run = make_run(loop_wait_s=0.02, step_s=0.005, loader_cycle_s=0.025, worker=rows, stages=shares)
    found = diagnose(run)
    assert ("IO107" in [a.code for a in found.advice]) is crowds
    assert found.diagnosis.limiting_stage is (Limit.OVERSUBSCRIPTION if crowds else Limit.TRANSFORM)


def bound_to(cores: int, usable: float, workers: int = 2) -> Run:
    rows = worker_batches(200, workers=workers, fetch_s=0.016, cpu_s=0.016, runq_s=0.016)
    run = make_run(
        loop_wait_s=0.008,
        step_s=0.008,
        loader_cycle_s=0.016,
        workers=workers,
        worker=rows,
        stages=[stacks(transform=100)],
        cores=usable,
        alone={"transport_s": 0.0155},
    )
    for loader in run.loaders:
        loader.worker_cores = cores
    return run


def test_workers_bound_to_one_core_are_named_and_more_of_them_find_none() -> None:
    run = bound_to(1, 4.0)
    found = diagnose(run)
    assert found.diagnosis.limiting_stage is Limit.OVERSUBSCRIPTION
    assert found.diagnosis.evidence == (
        "2 workers are bound to 1 of 4 usable cores by their CPU mask, and wait 50.0% of the time for a core"
    )
    assert found.advice[0].code == "IO609"
    assert not [a for a in found.advice if a.settings.get("num_workers", 0) > 2]
    # Who receives waits for a busy worker; the workers are what is slow.
    assert [rung.stage for rung in found.diagnosis.ladder if rung.lowest] == [Stage.TRANSFORM]


@pytest.mark.parametrize(("cores", "usable"), [(2, 4.0), (4, 4.0), (2, 2.0)])
def test_workers_with_a_core_each_are_not_bound(cores: int, usable: float) -> None:
    assert "IO609" not in [a.code for a in diagnose(bound_to(cores, usable)).advice]


def test_the_cores_of_workers_are_those_of_their_masks_together() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        os.sched_setaffinity(child.pid, {min(os.sched_getaffinity(0))})
        assert worker_cores([child.pid]) == 1
        assert worker_cores([child.pid, os.getpid()]) == len(os.sched_getaffinity(0))
        child.kill()
    assert worker_cores([]) is None
