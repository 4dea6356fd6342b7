"""Verdicts on runs whose truth is known by construction."""

from __future__ import annotations

import itertools

import pytest
from made_runs import main_batches, make_run, stacks, worker_batches

from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.diagnosis.types import Verdict
from ioprobe.run import Failure, Limit, LoaderRun, LoaderSettings, MainBatches, SampleRepeats, Stage


def test_a_step_slower_than_the_loader_is_compute_bound() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.02, cpu_s=0.02, idle_s=0.08)
    found = diagnose(make_run(loop_wait_s=0.0005, step_s=0.05, loader_cycle_s=0.01, worker=rows)).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.COMPUTE_BOUND, Limit.STEP)
    assert found.headroom is not None
    assert found.headroom.value == pytest.approx(0.01, abs=0.001)


def test_slow_decoding_is_data_bound_and_named() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.1, cpu_s=0.1)
    run = make_run(
        loop_wait_s=0.03,
        step_s=0.02,
        loader_cycle_s=0.05,
        worker=rows,
        stages=[stacks(decode=80, transform=10, read=10)],
    )
    found = diagnose(run).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.DECODE)
    assert found.stall_share.measured is not None
    assert found.stall_share.measured.value == pytest.approx(0.6)
    assert "320 samples/s" in found.evidence


def test_blocked_workers_with_small_reads_are_storage_latency() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.1, cpu_s=0.002, read_bytes=16 * 4096)
    run = make_run(loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.05, worker=rows, stages=[stacks(read=100)])
    assert diagnose(run).diagnosis.limiting_stage is Limit.STORAGE_LATENCY


def test_large_reads_that_more_workers_do_not_speed_up_are_storage_bandwidth() -> None:
    rows = worker_batches(200, workers=4, fetch_s=0.2, cpu_s=0.002, read_bytes=16 * 200_000)
    run = make_run(
        loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.05, workers=4, worker=rows, stages=[stacks(read=100)]
    )
    base = run.loaders[1]
    assert base.settings is not None
    fewer = type(base.settings)(num_workers=2, prefetch_factor=2, batch_size=16)
    run.loaders.append(
        LoaderRun(
            coupled=False,
            purpose="calibrate",
            settings=fewer,
            main=main_batches(100, wait_s=0.051, step_s=None),
            warmup_batches=4,
        )
    )
    found = diagnose(run).diagnosis
    assert found.limiting_stage is Limit.STORAGE_BANDWIDTH
    assert "next to nothing" in found.evidence


@pytest.mark.parametrize(
    ("reads", "limit"), [(1, Limit.STORAGE_BANDWIDTH), (16, Limit.STORAGE_LATENCY)], ids=["row group", "row by row"]
)
def test_small_samples_that_come_in_large_reads_can_fill_a_link(reads: int, limit: Limit) -> None:
    rows = worker_batches(200, workers=4, fetch_s=0.2, cpu_s=0.002, read_bytes=16 * 8192)
    rows.read_ops = [2 + 8 * 3 + reads] * len(rows.worker)  # the queue's own reads are for a task and three tensors
    run = make_run(
        loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.05, workers=4, worker=rows, stages=[stacks(read=100)]
    )
    run.loaders[1].batch_tensors = 3
    fewer = LoaderSettings(num_workers=2, prefetch_factor=2, batch_size=16)
    main = main_batches(100, wait_s=0.051, step_s=None)
    run.loaders.append(LoaderRun(coupled=False, purpose="calibrate", settings=fewer, main=main, warmup_batches=4))
    assert diagnose(run).diagnosis.limiting_stage is limit


def test_a_lock_that_all_workers_share_is_named() -> None:
    rows = worker_batches(200, workers=4, fetch_s=0.2, cpu_s=0.002)
    run = make_run(
        loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.05, workers=4, worker=rows, stages=[stacks(lock=70, read=30)]
    )
    assert diagnose(run).diagnosis.limiting_stage is Limit.LOCK_CONTENTION


def test_collating_that_dominates_is_named() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.01, cpu_s=0.01, collate_s=0.09)
    run = make_run(loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.05, worker=rows, stages=[stacks(transform=20)])
    assert diagnose(run).diagnosis.limiting_stage is Limit.COLLATE


def test_a_sampler_that_takes_the_main_process_is_named_while_workers_idle() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.002, cpu_s=0.002, idle_s=0.08)
    run = make_run(loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.04, worker=rows, alone={"sampler_s": 0.036})
    found = diagnose(run).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.SAMPLER)


def test_deserialising_in_the_main_process_is_ipc() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.002, cpu_s=0.002, idle_s=0.08)
    run = make_run(loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.04, worker=rows, alone={"transport_s": 0.03})
    assert diagnose(run).diagnosis.limiting_stage is Limit.IPC


def test_freeing_batches_counts_as_input_side_time() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.01, cpu_s=0.01, idle_s=0.02)
    run = make_run(loop_wait_s=0.001, step_s=0.006, loader_cycle_s=0.012, worker=rows, loop={"release_s": 0.008})
    found = diagnose(run).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.IPC)


def test_no_workers_is_misconfigured() -> None:
    rows = worker_batches(200, workers=1, fetch_s=0.024, cpu_s=0.001)
    run = make_run(loop_wait_s=0.025, step_s=0.045, loader_cycle_s=0.025, workers=0, worker=rows)
    finished = diagnose(run)
    assert finished.diagnosis.verdict is Verdict.MISCONFIGURED
    assert finished.advice[0].code == "IO102"


def test_workers_that_start_again_every_epoch_are_misconfigured() -> None:
    rows = worker_batches(240, workers=2, fetch_s=0.01, cpu_s=0.001, idle_s=0.03)
    run = make_run(
        loop_wait_s=0.0005,
        step_s=0.02,
        loader_cycle_s=0.006,
        n=240,
        worker=rows,
        settings={"persistent_workers": False},
        loop={"epoch_batches": 24, "edge_s": 0.5},
    )
    finished = diagnose(run)
    assert (finished.diagnosis.verdict, finished.diagnosis.limiting_stage) == (
        Verdict.MISCONFIGURED,
        Limit.WORKER_STARTUP,
    )
    assert finished.advice[0].settings == {"persistent_workers": True}


def test_a_stream_that_every_worker_delivers_whole_is_misconfigured() -> None:
    rows = worker_batches(200, workers=4, fetch_s=0.01, cpu_s=0.001, idle_s=0.1)
    run = make_run(
        loop_wait_s=0.0005, step_s=0.05, loader_cycle_s=0.01, workers=4, worker=rows, facts={"kind": "iterable"}
    )
    run.loaders[1].repeats = SampleRepeats(batches=48, distinct=12, workers_delivering=4, rounds=12, equal_rounds=12)
    found = diagnose(run).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.MISCONFIGURED, None)


def test_constant_batches_are_no_evidence_of_repetition() -> None:
    rows = worker_batches(200, workers=4, fetch_s=0.01, cpu_s=0.001, idle_s=0.1)
    run = make_run(
        loop_wait_s=0.0005, step_s=0.05, loader_cycle_s=0.01, workers=4, worker=rows, facts={"kind": "iterable"}
    )
    run.loaders[1].repeats = SampleRepeats(batches=48, distinct=1, workers_delivering=4, rounds=12, equal_rounds=12)
    assert diagnose(run).diagnosis.verdict is Verdict.COMPUTE_BOUND


def test_an_epoch_seen_twice_is_no_repetition_among_workers() -> None:
    rows = worker_batches(200, workers=4, fetch_s=0.01, cpu_s=0.001, idle_s=0.1)
    run = make_run(
        loop_wait_s=0.0005, step_s=0.05, loader_cycle_s=0.01, workers=4, worker=rows, facts={"kind": "iterable"}
    )
    run.loaders[1].repeats = SampleRepeats(batches=48, distinct=16, workers_delivering=4, rounds=12, equal_rounds=0)
    assert diagnose(run).diagnosis.verdict is Verdict.COMPUTE_BOUND


def test_one_worker_with_all_the_shards_is_misconfigured() -> None:
    rows = worker_batches(200, workers=4, delivering=1, fetch_s=0.06, cpu_s=0.001)
    run = make_run(
        loop_wait_s=0.03,
        step_s=0.03,
        loader_cycle_s=0.06,
        workers=4,
        worker=rows,
        stages=[stacks(read=50)],
        facts={"kind": "iterable", "num_shards": 1},
    )
    finished = diagnose(run)
    assert finished.diagnosis.verdict is Verdict.MISCONFIGURED
    assert "1 of 4 workers" in finished.diagnosis.evidence
    assert finished.advice[0].code == "IO301"


def test_exposed_communication_is_communication_bound() -> None:
    run = make_run(
        loop_wait_s=0.0005,
        step_s=0.05,
        loader_cycle_s=0.005,
        step_parts={"compute": 0.0125, "communication": 0.0375, "transfer": 0.0},
    )
    found = diagnose(run).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.COMMUNICATION_BOUND, Limit.COMMUNICATION)


def test_rates_within_a_third_are_balanced() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.07, cpu_s=0.001)
    run = make_run(loop_wait_s=0.001, step_s=0.04, loader_cycle_s=0.036, worker=rows, stages=[stacks(read=50)])
    assert diagnose(run).diagnosis.verdict is Verdict.BALANCED


@pytest.mark.parametrize(
    ("kind", "limit"), [("descriptors", Limit.IPC), ("shared-memory", Limit.IPC), ("killed", None)]
)
def test_what_broke_is_a_verdict(kind: str, limit: Limit | None) -> None:
    run = make_run(loop_wait_s=0.001, step_s=0.04, loader_cycle_s=0.03)
    run.loaders = [
        LoaderRun(
            coupled=True,
            settings=None,
            main=MainBatches(),
            stopped_because="failed",
            failure=Failure(phase="loop", kind=kind, message="it broke"),
        )
    ]
    found = diagnose(run).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.MISCONFIGURED, limit)


def test_an_exception_of_the_users_code_is_undecided_and_names_the_place() -> None:
    run = make_run(loop_wait_s=0.001, step_s=0.04, loader_cycle_s=0.03)
    run.loaders = [
        LoaderRun(
            coupled=True,
            settings=None,
            main=MainBatches(),
            stopped_because="failed",
            failure=Failure(phase="loop", kind="exception", message="KeyError: 'x'", where="train.py:7"),
        )
    ]
    found = diagnose(run).diagnosis
    assert found.verdict is Verdict.UNDECIDED
    assert "train.py:7" in found.evidence


def test_without_a_step_the_break_even_is_told_instead_of_a_verdict() -> None:
    run = make_run(loop_wait_s=0.001, step_s=0.04, loader_cycle_s=0.03)
    run.step, run.loaders = None, run.loaders[1:]
    found = diagnose(run).diagnosis
    assert found.verdict is Verdict.UNDECIDED
    assert "30.0 ms" in found.evidence


def test_the_lowest_rung_is_the_part_of_the_loader_that_explains_it() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.1, cpu_s=0.1)
    run = make_run(loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.05, worker=rows, stages=[stacks(decode=100)])
    lowest = [rung.stage for rung in diagnose(run).diagnosis.ladder if rung.lowest]
    assert lowest == [Stage.DECODE]


def test_a_step_that_loses_a_third_to_the_workers_is_balanced_and_oversubscribed() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.03, cpu_s=0.029)
    run = make_run(loop_wait_s=0.001, step_s=0.036, loader_cycle_s=0.012, worker=rows)
    assert run.step is not None
    run.step.durations_s, run.step.cpu_s = [0.020] * 50, [0.038] * 50
    found = diagnose(run).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.BALANCED, Limit.OVERSUBSCRIPTION)
    assert found.unexplained or "1.80 times as long" in found.evidence


def test_waiting_that_a_fast_loader_does_not_explain_is_undecided() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.002, cpu_s=0.002, idle_s=0.08)
    run = make_run(loop_wait_s=0.022, step_s=0.05, loader_cycle_s=0.001, worker=rows)
    assert diagnose(run).diagnosis.verdict is Verdict.UNDECIDED


def test_a_short_step_that_feels_the_price_of_a_hand_over_is_compute_bound() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.0005, cpu_s=0.0005, idle_s=0.02)
    run = make_run(loop_wait_s=0.0016, step_s=0.012, loader_cycle_s=0.0008, worker=rows)
    assert diagnose(run).diagnosis.verdict is Verdict.COMPUTE_BOUND


def test_one_whole_epoch_tells_of_workers_that_start_anew() -> None:
    rows = worker_batches(90, workers=2, fetch_s=0.01, cpu_s=0.001, idle_s=0.03)
    run = make_run(
        loop_wait_s=0.0005,
        step_s=0.02,
        loader_cycle_s=0.006,
        n=90,
        worker=rows,
        settings={"persistent_workers": False},
        loop={"epoch_batches": 60, "edge_s": 3.0},
    )
    found = diagnose(run).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.MISCONFIGURED, Limit.WORKER_STARTUP)


def test_what_a_deep_queue_hid_is_left_out_until_it_has_drained() -> None:
    run = make_run(loop_wait_s=0.05, step_s=0.05, loader_cycle_s=0.1, settings={"prefetch_factor": 32})
    main = run.loaders[0].main
    hidden = 150  # of 200: past the half that a rule for warm-ups may cut
    for k in range(hidden):
        main.ready[k] = 60 - 60 * k // hidden
        main.wait_s[k] = 0.0
    main.call_s = list(itertools.accumulate((w + 0.05 for w in main.wait_s), initial=0.0))[:-1]
    share = diagnose(run).diagnosis.stall_share.measured
    assert share is not None
    assert share.value == pytest.approx(0.5, abs=0.02)


def test_reading_that_is_all_cpu_is_decoding_inside_the_reader() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.1, cpu_s=0.099, nbytes=2_000_000, read_bytes=2_000_000)
    run = make_run(
        loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.05, worker=rows, stages=[stacks(read=95, transform=5)]
    )
    found = diagnose(run).diagnosis
    assert found.limiting_stage is Limit.DECODE
    assert "inside the reader takes 5.94 ms a sample" in found.evidence


def test_a_stream_is_advised_no_more_workers_than_a_real_run_found_data_for() -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.19, cpu_s=0.001)
    run = make_run(
        loop_wait_s=0.065,
        step_s=0.03,
        loader_cycle_s=0.095,
        worker=rows,
        stages=[stacks(read=50)],
        facts={"kind": "iterable"},
    )
    before = next(a for a in diagnose(run).advice if a.code == "IO601")
    assert before.settings["num_workers"] > 4
    assert "fewer parts" in before.wrong_when

    tried = make_run(
        loop_wait_s=0.018,
        step_s=0.03,
        loader_cycle_s=0.048,
        workers=before.settings["num_workers"],
        worker=worker_batches(200, workers=before.settings["num_workers"], delivering=4, fetch_s=0.19, cpu_s=0.001),
    )
    tried.loaders[0].purpose = "verify"
    run.loaders.append(tried.loaders[0])
    after = next(a for a in diagnose(run).advice if a.code == "IO601")
    assert after.settings["num_workers"] == 4
    assert "4 had data" in after.because


def test_threads_that_share_the_interpreter_with_the_step_are_part_of_the_prediction() -> None:
    run = make_run(
        loop_wait_s=0.017,
        step_s=0.008,
        loader_cycle_s=0.03,
        workers=0,
        stages=[stacks("main", wait=57, step=43), stacks("thread", transform=98, wait=2)],
        facts={"kind": "opaque", "adaptable": False, "settings": None},
    )
    run.loaders[0].main = main_batches(200, wait_s=0.017, step_s=0.013)
    for measured in run.loaders:
        measured.settings = None
    found = diagnose(run).diagnosis
    assert found.stall_share.predicted is not None
    assert found.stall_share.predicted.value == pytest.approx(17 / 30, abs=0.01)
    assert any("interpreter's lock" in reason for reason in found.reasons)

    for measured in run.loaders:
        measured.stacks = [stacks("main", wait=57, step=43), stacks("thread", wait=100)]
    assert diagnose(run).diagnosis.stall_share.predicted.value == pytest.approx(22 / 30, abs=0.01)  # type: ignore[union-attr]


def test_freeing_batches_is_no_waiting_where_a_loader_can_only_be_replayed() -> None:
    run = make_run(
        loop_wait_s=0.018,
        step_s=0.01,
        loader_cycle_s=0.028,
        workers=0,
        stages=[stacks("main", wait=60, step=40)],
        facts={"kind": "opaque", "adaptable": False, "settings": None},
        loop={"release_s": 0.002},
        alone={"release_s": 0.002},
    )
    for measured in run.loaders:
        measured.settings = None
    predicted = diagnose(run).diagnosis.stall_share.predicted
    assert predicted is not None
    assert predicted.value == pytest.approx(18 / 30, abs=0.01)
