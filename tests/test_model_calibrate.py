"""Calibration against runs whose truth is known by construction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from ioprobe.errors import MeasureError
from ioprobe.model.calibrate import calibrate, slow_step_s
from ioprobe.model.handling import main_costs, shared_cpu_s
from ioprobe.model.predict import loader_rate, predict
from ioprobe.model.profile import MainCosts, Setting
from ioprobe.model.rows import rows_of
from ioprobe.model.simulate import System, simulate
from ioprobe.run import LoaderFacts, LoaderRun, LoaderSettings, MainBatches, WorkerBatches
from tests.model_truth import SAMPLES, at_lock, emulated_step, loader_run, noisy, run_of


def latency(workers: int = 2, **more: object) -> System:
    rows = tuple((0.002, float(b), 0.0) for b in noisy(0.030, 0.3, 97))
    return System(workers, (rows,), feed_cpu_s=0.0003, receive_cpu_s=0.0004, dispatch_cpu_s=0.0001, **more)  # type: ignore[arg-type]


def computing(workers: int = 2, **more: object) -> System:
    rows = tuple((float(c), 0.0, 0.0) for c in noisy(0.020, 0.3, 97))
    return System(workers, (rows,), cores=2.0, receive_cpu_s=0.0004, dispatch_cpu_s=0.0001, **more)  # type: ignore[arg-type]


def true_rate(system: System, batches: int = 800) -> float:
    trace = simulate(system, batches)
    skip = 4 * system.num_workers * system.prefetch_factor + 6
    return SAMPLES * (batches - 1 - skip) / float(trace.return_s[-1] - trace.return_s[skip])


@pytest.mark.parametrize("workers", [1, 3, 4, 8])
def test_latency_measured_at_two_workers_predicts_other_counts(workers: int) -> None:
    profile = calibrate(run_of(loader_run(latency(), 240)))
    assert profile.serial is None
    found = predict(profile, Setting(workers, step_s=0.0)).samples_per_s
    assert found.value == pytest.approx(true_rate(latency(workers)), rel=0.03)
    assert found.low < true_rate(latency(workers)) < found.high


@pytest.mark.parametrize("workers", [1, 4])
def test_computing_measured_at_two_workers_predicts_other_counts(workers: int) -> None:
    profile = calibrate(run_of(loader_run(computing(), 240)))
    found = loader_rate(profile, Setting(workers, step_s=0.0))
    assert found == pytest.approx(true_rate(computing(workers)), rel=0.03)


def test_a_step_measured_apart_predicts_the_loop() -> None:
    profile = calibrate(run_of(loader_run(latency(), 240), step=emulated_step(0.012)))
    found = predict(profile, Setting(4))
    trace = simulate(replace(latency(4), step_s=(0.012,)), 800)
    span = trace.return_s[-1] - trace.return_s[60]
    assert found.samples_per_s.value == pytest.approx(SAMPLES * 739 / span, rel=0.02)
    assert found.stall_share.value == pytest.approx(trace.wait_s[61:].sum() / span, abs=0.02)


def test_a_shared_server_shows_when_workers_are_seen_alone() -> None:
    rows = tuple((0.001, 0.004, float(s)) for s in noisy(0.010, 0.25, 97))
    truth = System(2, (rows,), segments=4, receive_cpu_s=0.0002)
    drained = loader_run(truth, 240)
    first = calibrate(run_of(drained))
    slow = slow_step_s(first)
    assert slow is not None
    beside = loader_run(replace(truth, step_s=(slow,)), 60, purpose="calibrate")
    profile = calibrate(run_of(drained, beside))
    assert profile.serial is not None
    assert profile.serial.kind == "storage"
    assert slow_step_s(profile) is None
    for workers in (1, 4, 8):
        expected = true_rate(replace(truth, num_workers=workers))
        assert loader_rate(profile, Setting(workers, step_s=0.0)) == pytest.approx(expected, rel=0.06)


def test_independent_waits_are_no_shared_server() -> None:
    drained = loader_run(latency(), 240)
    beside = loader_run(replace(latency(), step_s=(0.045,)), 60, purpose="calibrate")
    profile = calibrate(run_of(drained, beside))
    assert profile.seen_alone
    assert profile.serial is None


def test_what_the_count_of_waiting_for_a_core_misses_is_no_shared_server() -> None:
    drained = loader_run(computing(24), 480)
    assert drained.workers is not None
    drained.workers.fetch_runq_s = [0.985 * s for s in drained.workers.fetch_runq_s]
    beside = loader_run(computing(2, step_s=(0.05,)), 60, purpose="calibrate")
    profile = calibrate(run_of(drained, beside))
    assert profile.seen_alone
    assert profile.serial is None
    assert loader_rate(profile, Setting(2, step_s=0.0)) == pytest.approx(true_rate(computing(2)), rel=0.06)


def test_stacks_at_a_lock_name_a_lock() -> None:
    rows = tuple((0.006, 0.0, float(s)) for s in noisy(0.010, 0.2, 97))
    truth = System(4, (rows,), segments=4)
    profile = calibrate(run_of(loader_run(truth, 240, stacks=at_lock(0.5)), cores=8.0))
    assert profile.serial is not None
    assert profile.serial.kind == "lock"
    # Four workers already keep the lock busy: eight bring nothing.
    four, eight = (loader_rate(profile, Setting(w, step_s=0.0)) for w in (4, 8))
    assert eight == pytest.approx(four, rel=0.03)
    free = loader_rate(profile, Setting(8, step_s=0.0, spread_lock=True))
    assert free > 1.3 * eight


def test_slower_computing_in_company_is_taken_out_and_put_back() -> None:
    truth = computing(contention=0.25, reference_cores=2.0)
    drained = loader_run(truth, 240)
    assert drained.workers is not None
    # The instruments see the slowdown as CPU time.
    drained.workers.fetch_cpu_s = [1.25 * c for c in drained.workers.fetch_cpu_s]
    beside = loader_run(replace(truth, step_s=(0.030,)), 60, purpose="calibrate")
    profile = calibrate(run_of(drained, beside))
    assert profile.contention == pytest.approx(0.25, abs=0.03)
    for workers in (1, 2, 4):
        expected = true_rate(replace(truth, num_workers=workers))
        assert loader_rate(profile, Setting(workers, step_s=0.0)) == pytest.approx(expected, rel=0.04)


def test_a_slow_worker_keeps_its_own_series() -> None:
    slow = tuple((0.001, float(b), 0.0) for b in noisy(0.060, 0.1, 41))
    fast = tuple((0.001, float(b), 0.0) for b in noisy(0.020, 0.1, 41, seed=1))
    profile = calibrate(run_of(loader_run(System(2, (slow, fast)), 160)))
    assert profile.by_worker
    in_order = predict(profile, Setting(2, step_s=0.0)).samples_per_s.value
    free = predict(profile, Setting(2, step_s=0.0, in_order=False)).samples_per_s.value
    assert in_order == pytest.approx(SAMPLES * 2 / 0.062, rel=0.05)
    assert free == pytest.approx(SAMPLES * (1 / 0.062 + 1 / 0.022), rel=0.06)
    # Without workers, nobody is the slow one.
    assert predict(profile, Setting(0, step_s=0.0)).samples_per_s.value == pytest.approx(SAMPLES / 0.021, rel=0.06)


def test_an_iterable_whose_workers_idle_is_served_by_those_with_data() -> None:
    rows = tuple((0.001, float(b), 0.0) for b in noisy(0.010, 0.1, 41))
    truth = System(4, (rows,), worker_batches=(1 << 40, 0, 0, 0))
    profile = calibrate(run_of(loader_run(truth, 160), kind="iterable"))
    two, eight = (loader_rate(profile, Setting(w, step_s=0.0)) for w in (2, 8))
    assert two == pytest.approx(SAMPLES / 0.011, rel=0.05)
    assert eight == pytest.approx(two, rel=0.03)
    assert loader_rate(profile, Setting(4, step_s=0.0, even_shards=True)) > 3 * two


def test_a_loader_without_workers_predicts_with_workers_and_says_what_it_does_not_know() -> None:
    waits = noisy(0.020, 0.2, 60)
    calls = np.concatenate([[0.0], np.cumsum(waits)[:-1]])
    main = MainBatches(
        call_s=calls.tolist(),
        wait_s=waits.tolist(),
        wait_cpu_s=(0.25 * waits).tolist(),
        samples=[SAMPLES] * 60,
        epoch=[0] * 60,
    )
    measured = LoaderRun(coupled=False, settings=LoaderSettings(num_workers=0), main=main)
    profile = calibrate(run_of(measured))
    assert [c.code for c in profile.caveats] == ["calibrated-without-workers"]
    assert loader_rate(profile, Setting(0, step_s=0.0)) == pytest.approx(SAMPLES / 0.020, rel=0.05)
    assert loader_rate(profile, Setting(4, step_s=0.0)) == pytest.approx(4 * SAMPLES / 0.020, rel=0.08)


def test_an_opaque_iterable_is_replayed_against_other_steps_only() -> None:
    measured = loader_run(latency(), 120)
    opaque = run_of(LoaderRun(coupled=False, settings=None, main=measured.main, warmup_batches=4))
    opaque.facts = LoaderFacts(kind="opaque", adaptable=False)
    profile = calibrate(opaque)
    assert not profile.adaptable
    rate = SAMPLES / 0.016
    assert predict(profile, Setting(0, step_s=0.0)).samples_per_s.value == pytest.approx(rate, rel=0.06)
    slow = predict(profile, Setting(8, step_s=0.1))
    assert slow.samples_per_s.value == pytest.approx(SAMPLES / 0.1, rel=0.01)
    assert slow.stall_share.value == pytest.approx(0.0, abs=0.01)


def test_a_run_without_a_loader_cannot_be_calibrated() -> None:
    empty = run_of(loader_run(latency(), 40))
    empty.loaders = []
    with pytest.raises(MeasureError, match="no measurement of the loader") as caught:
        calibrate(empty)
    assert "ioprobe loader" in caught.value.hint


def test_too_few_batches_cannot_be_calibrated() -> None:
    with pytest.raises(MeasureError, match="has 5 batches; expected 8 or more"):
        calibrate(run_of(loader_run(latency(), 5)))


def test_use_loop_calibrates_from_the_coupled_loop() -> None:
    alone = loader_run(latency(), 240)
    loop = loader_run(replace(latency(), step_s=(0.025,)), 240)
    run = run_of(alone, loop, step=emulated_step(0.025))
    assert calibrate(run).n == calibrate(run, use_loop=True).n
    assert calibrate(run, use_loop=True).measured != calibrate(run).measured
    assert loader_rate(calibrate(run, use_loop=True), Setting(4, step_s=0.0)) == pytest.approx(
        true_rate(latency(4)), rel=0.05
    )


@pytest.mark.parametrize(("measured", "second"), [(4, 2), (2, 1), (1, 2)])
def test_two_worker_counts_tell_a_shared_server_from_latency(measured: int, second: int) -> None:
    rows = tuple((0.001, 0.004, float(s)) for s in noisy(0.020, 0.02, 97))
    truth = System(measured, (rows,), segments=4)
    other = loader_run(replace(truth, num_workers=second), 120, purpose="calibrate")
    profile = calibrate(run_of(loader_run(truth, 160), other))
    assert profile.serial is not None
    assert profile.serial.service_s == pytest.approx(0.020, rel=0.12)
    for workers in (1, 2, 4, 8):
        expected = true_rate(replace(truth, num_workers=workers))
        # Two counts that both keep the server busy say little of one that does not.
        close = 0.25 if workers == 1 and min(measured, second) > 1 else 0.08
        assert loader_rate(profile, Setting(workers, step_s=0.0)) == pytest.approx(expected, rel=close)


def test_two_worker_counts_that_scale_are_no_shared_server() -> None:
    other = loader_run(latency(2), 120, purpose="calibrate")
    assert calibrate(run_of(loader_run(latency(4), 160), other)).serial is None


def handed_over() -> LoaderRun:
    """Thirty batches of two workers in turn, received at 10, 20, ... ms; the first two are warm-up.

    Of every three one is received while its own worker computes (6 ms), one while only the other does (3 ms), and
    one while both idle (1 ms).
    """
    count = 30
    took = [(6e-3, 3e-3, 1e-3)[i % 3] for i in range(count)]
    rows = WorkerBatches()
    for i in range(count):
        at, maker = 0.010 * (i + 1), i % 2
        made = [(maker, i, at - 8e-3, at - 7e-3)]
        if i % 3 < 2:  # a later batch, in the making when this one is received
            made.append((maker if i % 3 == 0 else 1 - maker, count + i, at - 1e-3, at + 1e-3))
        for worker, index, start, put in made:
            rows.worker.append(worker)
            rows.index.append(index)
            rows.start_s.append(start)
            rows.put_s.append(put)
            rows.fetch_wall_s.append(put - start)
    main = MainBatches(
        call_s=[0.010 * (i + 1) for i in range(count)],
        wait_s=took,
        wait_cpu_s=[0.5e-3] * count,
        sampler_s=[0.0] * count,
        transport_s=took,
        release_s=[0.0] * count,
        epoch=[0] * count,
    )
    return LoaderRun(coupled=False, settings=LoaderSettings(num_workers=2), main=main, workers=rows, warmup_batches=2)


def test_handing_over_costs_what_it_took_while_the_workers_did_the_same() -> None:
    measured = handed_over()
    rows = rows_of(measured)
    assert rows is not None
    found = main_costs(measured, rows, [measured], cores=2.0)
    assert found.receive_cpu_s + found.receive_busy_s == pytest.approx(6e-3)
    assert found.receive_cpu_s + found.receive_crowded_s == pytest.approx(3e-3)
    # With a third core one is free while a single worker computes: never seen crowded, so half way.
    roomy = main_costs(measured, rows, [measured], cores=3.0)
    assert roomy.receive_crowded_s == pytest.approx((roomy.receive_idle_s + roomy.receive_busy_s) / 2)


def test_where_every_hand_over_waited_for_the_gil_the_fastest_tells_what_it_costs_without() -> None:
    measured = handed_over()
    took = [0.048 if i % 7 else 0.9e-3 for i in range(30)]
    measured.main.transport_s, measured.main.wait_s = took, list(took)
    rows = rows_of(measured)
    assert rows is not None
    found = main_costs(measured, rows, [measured], cores=2.0)
    assert found.receive_busy_s > 0.03
    assert found.receive_cpu_s + found.receive_idle_s == pytest.approx(0.9e-3)


def test_a_batch_received_before_its_turn_is_half_of_what_that_call_took() -> None:
    measured = handed_over()
    for i in range(1, 29, 3):
        measured.main.transport_s[i] += measured.main.transport_s[i + 1]
        measured.main.transport_s[i + 1] = 0.0
    rows = rows_of(measured)
    assert rows is not None
    # 3 ms and 1 ms in one call, while only the other worker computed.
    found = main_costs(measured, rows, [measured], cores=2.0)
    assert found.receive_cpu_s + found.receive_crowded_s == pytest.approx(2e-3)


def test_only_tensors_are_shared_while_the_main_process_receives() -> None:
    costs = MainCosts(receive_cpu_s=0.4e-3)
    assert shared_cpu_s(1e-3, costs, structs.replace(handed_over(), batch_tensors=2)) == 0.4e-3
    assert shared_cpu_s(0.3e-3, costs, structs.replace(handed_over(), batch_tensors=2)) == 0.3e-3
    assert shared_cpu_s(1e-3, costs, structs.replace(handed_over(), batch_tensors=0)) == 0.0
