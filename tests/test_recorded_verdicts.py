"""Verdicts from recordings: exact where the input fixes the answer."""

from __future__ import annotations

import pytest

from ioprobe.diagnosis.recordings import (
    diagnose_partition,
    diagnose_processes,
    diagnose_recording,
    diagnose_stacks,
    rank_summaries,
    report_recording,
    shares_of,
)
from ioprobe.diagnosis.types import Verdict
from ioprobe.run import (
    Host,
    HostLoad,
    HotFrame,
    Limit,
    LoaderRun,
    LoaderSettings,
    MainBatches,
    Partition,
    ProcessLoad,
    Run,
    StackShares,
    Stage,
    Workload,
    dumps,
    loads,
)


def empty(**fields: object) -> Run:
    return Run(kind="profile", created_at="", version="", host=Host(), workload=Workload(), **fields)  # type: ignore[arg-type]


def partition(
    compute: float = 0.0, communication: float = 0.0, transfer: float = 0.0, stall: float = 0.0, **fields: object
) -> Partition:
    """A window of 10 s in 20 equal steps; what is not named is other idle."""
    return Partition(
        compute_s=10 * compute,
        communication_s=10 * communication,
        transfer_s=10 * transfer,
        data_stall_s=10 * stall,
        other_idle_s=10 * (1 - compute - communication - transfer - stall),
        window_s=10.0,
        steps=20,
        steps_s=[0.5] * 20,
        stalls_s=[0.5 * stall] * 20,
        **{"device": "accelerator 0", **fields},  # type: ignore[arg-type]
    )


def stacks(role: str, hot: tuple[Stage, str] | None = None, **stages: int) -> StackShares:
    counts = {Stage(name): count for name, count in stages.items()}
    hottest = [HotFrame(stage=hot[0], function=hot[1], file="t.py", line=3, samples=1, rule="r")] if hot else []
    return StackShares(role=role, samples=sum(counts.values()), stages=counts, hottest=hottest)


def sampled(*shares: StackShares, num_workers: int = 4, **fields: object) -> Run:
    loader = LoaderRun(
        coupled=True,
        settings=LoaderSettings(num_workers=num_workers),
        main=MainBatches(),
        stacks=list(shares),
        **fields,  # type: ignore[arg-type]
    )
    return empty(loaders=[loader])


@pytest.mark.parametrize(
    ("part", "verdict", "limit"),
    [
        (partition(compute=0.6, stall=0.3), Verdict.DATA_BOUND, None),
        (partition(compute=0.9, stall=0.02), Verdict.COMPUTE_BOUND, Limit.STEP),
        (partition(compute=0.8, stall=0.07), Verdict.BALANCED, None),
        (partition(compute=0.5, communication=0.4, stall=0.02), Verdict.COMMUNICATION_BOUND, Limit.COMMUNICATION),
        (partition(compute=0.5, communication=0.25, stall=0.24), Verdict.COMMUNICATION_BOUND, Limit.COMMUNICATION),
        (partition(compute=0.4, communication=0.25, stall=0.3), Verdict.DATA_BOUND, None),
        (partition(compute=0.6, transfer=0.3, stall=0.05), Verdict.DATA_BOUND, Limit.HOST_TO_DEVICE),
    ],
)
def test_shares_of_a_trace_make_a_verdict(part: Partition, verdict: Verdict, limit: Limit | None) -> None:
    found = diagnose_partition(empty(partitions=[part]))
    assert (found.verdict, found.limiting_stage) == (verdict, limit)
    assert found.evidence


def test_the_stall_share_of_equal_steps_is_exact_and_gives_the_headroom() -> None:
    found = diagnose_partition(empty(partitions=[partition(compute=0.8, stall=0.2)]))
    stall = found.stall_share.measured
    assert stall is not None
    assert (stall.value, stall.low, stall.high, stall.n) == pytest.approx((0.2, 0.2, 0.2, 20))
    assert found.headroom is not None
    assert found.headroom.value == pytest.approx(0.25)


def test_a_trace_without_two_steps_is_undecided() -> None:
    part = Partition(
        compute_s=0.5, communication_s=0, transfer_s=0, data_stall_s=0.5, other_idle_s=0, window_s=1, steps=1
    )
    found = diagnose_partition(empty(partitions=[part]))
    assert (found.verdict, found.limiting_stage) == (Verdict.UNDECIDED, None)


def test_steps_that_disagree_leave_the_boundary_undecided() -> None:
    steps, stalls = [1.0] * 6, [0.0, 0.0, 0.0, 0.0, 0.0, 0.66]
    part = Partition(
        compute_s=5.34,
        communication_s=0,
        transfer_s=0,
        data_stall_s=0.66,
        other_idle_s=0,
        window_s=6,
        steps=6,
        steps_s=steps,
        stalls_s=stalls,
    )
    assert diagnose_partition(empty(partitions=[part])).verdict is Verdict.UNDECIDED


def test_stacks_beside_a_trace_name_the_stage() -> None:
    run = sampled(stacks("worker", (Stage.DECODE, "f"), decode=90, read=10))
    run.partitions = [partition(compute=0.6, stall=0.3)]
    found = diagnose_partition(run)
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.DECODE)
    assert "f at t.py:3" in found.evidence


def test_pageable_copies_are_a_finding() -> None:
    part = partition(compute=0.9, hidden_s={"pageable": 0.4})
    assert any("pin_memory=True" in r for r in diagnose_partition(empty(partitions=[part])).reasons)


def test_a_late_rank_that_waits_for_data_makes_the_job_data_bound() -> None:
    early = [
        partition(
            compute=0.3, communication=0.68, stall=0.0, rank=r, hidden_s={"kept_waiting": 0.1, "waiting_for_ranks": 6.0}
        )
        for r in (0, 2)
    ]
    late = partition(
        compute=0.3, communication=0.05, stall=0.6, rank=1, hidden_s={"kept_waiting": 6.0, "waiting_for_ranks": 0.1}
    )
    run = empty(partitions=[early[0], late, early[1]])
    found = diagnose_partition(run)
    assert found.verdict is Verdict.DATA_BOUND
    assert found.evidence.startswith("the ranks wait for rank 1, which waits for data 60.0% of the time")
    assert [(s.rank, s.late) for s in rank_summaries(run)] == [(0, False), (1, True), (2, False)]


@pytest.mark.parametrize(
    ("main", "worker", "verdict", "limit"),
    [
        ({"wait": 60, "step": 40}, {"decode": 90, "wait": 10}, Verdict.DATA_BOUND, Limit.DECODE),
        ({"wait": 60, "step": 40}, {"read": 90, "wait": 10}, Verdict.DATA_BOUND, Limit.STORAGE_LATENCY),
        ({"wait": 60, "step": 40}, {"transform": 90, "wait": 10}, Verdict.DATA_BOUND, Limit.TRANSFORM),
        ({"wait": 60, "step": 40}, {"collate": 90, "wait": 10}, Verdict.DATA_BOUND, Limit.COLLATE),
        ({"wait": 60, "step": 40}, {"lock": 70, "read": 25, "wait": 5}, Verdict.DATA_BOUND, Limit.LOCK_CONTENTION),
        ({"wait": 60, "step": 40}, {"startup": 90, "wait": 10}, Verdict.DATA_BOUND, Limit.WORKER_STARTUP),
        ({"sampler": 60, "step": 40}, {"wait": 95, "read": 5}, Verdict.DATA_BOUND, Limit.SAMPLER),
        ({"transport": 60, "wait": 10, "step": 30}, {"wait": 70, "read": 30}, Verdict.DATA_BOUND, Limit.IPC),
        ({"wait": 2, "step": 98}, {"wait": 80, "decode": 20}, Verdict.COMPUTE_BOUND, Limit.STEP),
        ({"wait": 2, "step": 98}, {"wait": 5, "decode": 95}, Verdict.BALANCED, None),
        ({"wait": 7, "step": 93}, {"wait": 40, "decode": 60}, Verdict.BALANCED, None),
        ({"transport": 7, "step": 93}, {"wait": 95, "decode": 5}, Verdict.COMPUTE_BOUND, Limit.STEP),
        ({"communication": 50, "step": 50}, {"wait": 90, "read": 10}, Verdict.COMMUNICATION_BOUND, Limit.COMMUNICATION),
        ({"transfer": 30, "step": 70}, {"wait": 90, "read": 10}, Verdict.DATA_BOUND, Limit.HOST_TO_DEVICE),
        ({"other": 90, "step": 10}, {"wait": 90, "read": 10}, Verdict.UNDECIDED, None),
        ({"wait": 12, "step": 88}, {"wait": 90, "read": 10}, Verdict.UNDECIDED, None),
    ],
)
def test_both_sides_of_the_queue_make_the_verdict(
    main: dict[str, int], worker: dict[str, int], verdict: Verdict, limit: Limit | None
) -> None:
    many = {stage: 10 * count for stage, count in main.items()} if verdict is not Verdict.UNDECIDED else main
    found = diagnose_stacks(sampled(stacks("main", **many), stacks("worker", **worker)))
    assert (found.verdict, found.limiting_stage) == (verdict, limit), found.evidence


def test_a_busy_pinning_thread_is_host_to_device() -> None:
    run = sampled(
        stacks("main", wait=300, step=200), stacks("worker", wait=70, read=30), stacks("thread", transfer=400, wait=20)
    )
    assert diagnose_stacks(run).limiting_stage is Limit.HOST_TO_DEVICE


def test_a_busy_thread_between_workers_and_loop_is_the_limit() -> None:
    thread = stacks("thread", (Stage.READ, "work"), read=450, wait=2000)
    found = diagnose_stacks(sampled(stacks("main", wait=300, step=200), stacks("worker", wait=80, collate=20), thread))
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.IPC)
    assert "a thread between workers and loop is busy, in work at t.py:3" in found.evidence


def test_receiving_from_busy_workers_is_their_stage_not_transport() -> None:
    found = diagnose_stacks(
        sampled(stacks("main", transport=300, wait=100, step=100), stacks("worker", collate=95, wait=5))
    )
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.COLLATE)


def test_workers_started_again_and_again_are_worker_startup() -> None:
    main = StackShares(
        role="main",
        samples=500,
        stages={Stage.STARTUP: 400, Stage.STEP: 90, Stage.TRANSPORT: 10},
        hottest=[HotFrame(stage=Stage.STARTUP, function="f", file="t.py", line=1, samples=390, rule="worker start")],
    )
    found = diagnose_stacks(sampled(main, stacks("worker", wait=99, read=1)))
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.WORKER_STARTUP)
    assert found.stall_share.measured is not None
    assert found.stall_share.measured.value == pytest.approx(400 / 490)


def test_workers_that_never_have_anything_to_do_are_a_wrong_setting() -> None:
    processes = [load("worker", 2, 9.0, running=50, hrtimer_nanosleep=50)]
    processes += [load("worker", pid, 0.0, do_sys_poll=100) for pid in (3, 4, 5)]
    run = sampled(stacks("main", wait=300, step=200), stacks("worker", wait=75, decode=25), processes=processes)
    found = diagnose_stacks(run)
    assert (found.verdict, found.limiting_stage) == (Verdict.MISCONFIGURED, Limit.DECODE)
    assert found.evidence.endswith("only 1 of 4 workers work at all: fewer shards than workers, it seems")
    assert [a.code for a in report_recording(run).advice] == ["IO301", "IO611"]


def test_work_in_the_main_process_is_its_own_stage() -> None:
    found = diagnose_stacks(sampled(stacks("main", decode=300, read=50, step=200), num_workers=0))
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.DECODE)
    assert "in the main process itself" in found.evidence


def test_imports_before_the_loop_are_no_stall() -> None:
    run = sampled(stacks("main", startup=500, step=490, wait=10), stacks("worker", wait=90, read=10))
    found = diagnose_stacks(run)
    assert found.stall_share.measured is not None
    assert found.stall_share.measured.value == pytest.approx(0.02)


def test_large_reads_are_bandwidth() -> None:
    worker = ProcessLoad(role="worker", pid=2, window_s=10, cpu_s=1, read_bytes=10 << 20, read_ops=10)
    run = sampled(stacks("main", wait=300, step=200), stacks("worker", read=90, wait=10), processes=[worker])
    assert diagnose_stacks(run).limiting_stage is Limit.STORAGE_BANDWIDTH


def test_far_more_workers_than_cores_are_misconfigured() -> None:
    load = HostLoad(window_s=10, own_cores=1.9, other_cores=0.05, cores=2)
    main, worker = stacks("main", wait=300, step=200), stacks("worker", decode=95, wait=5)
    found = diagnose_stacks(sampled(main, worker, num_workers=24, load=load))
    assert (found.verdict, found.limiting_stage) == (Verdict.MISCONFIGURED, Limit.OVERSUBSCRIPTION)
    assert "24 workers share 2 cores, none of which is free" in found.evidence
    few = diagnose_stacks(sampled(main, worker, num_workers=3, load=load))
    assert (few.verdict, few.limiting_stage) == (Verdict.DATA_BOUND, Limit.DECODE)


def test_cores_taken_by_others_are_named() -> None:
    load = HostLoad(window_s=10, own_cores=1.0, other_cores=0.9, cores=2)
    found = diagnose_stacks(sampled(stacks("main", wait=300, step=200), stacks("worker", decode=95, wait=5), load=load))
    assert any("processes outside the job take 0.9 of 2 cores" in r for r in found.reasons)


def test_a_rank_that_communicates_least_is_the_late_one() -> None:
    first = sampled(stacks("main", communication=60, step=40))
    second = sampled(stacks("main", communication=2, wait=58, step=40))
    second.rank = 1
    first.ranks = [second]
    assert [(s.rank, s.late) for s in rank_summaries(first)] == [(0, False), (1, True)]


def test_a_rank_that_alone_waits_for_data_is_late_and_is_judged() -> None:
    # The other rank waits inside backward(), where no Python frame says so.
    first = sampled(stacks("main", wait=1, step=99), stacks("worker", wait=95, read=5))
    second = sampled(stacks("main", wait=90, step=10), stacks("worker", (Stage.READ, "read"), read=98, wait=2))
    second.rank = 1
    first.ranks = [second]
    found = diagnose_stacks(first)
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.STORAGE_LATENCY)
    assert found.evidence.startswith("rank 1 is late: ")
    assert found.evidence.endswith("the other ranks wait for data 1.0% at most, and for it about 89.0%")
    assert [(s.rank, s.late) for s in rank_summaries(first)] == [(0, False), (1, True)]


def load(role: str, pid: int, cpu_s: float, **states: int) -> ProcessLoad:
    return ProcessLoad(role=role, pid=pid, window_s=10.0, cpu_s=cpu_s, states=states)


@pytest.mark.parametrize(
    ("main", "worker", "verdict", "limit"),
    [
        (
            load("main", 1, 1.0, poll_schedule_timeout=80, running=20),
            load("worker", 2, 9.0, running=95, poll_schedule_timeout=5),
            Verdict.DATA_BOUND,
            Limit.TRANSFORM,
        ),
        (
            load("main", 1, 1.0, poll_schedule_timeout=80, running=20),
            load("worker", 2, 0.5, disk=90, poll_schedule_timeout=10),
            Verdict.DATA_BOUND,
            Limit.STORAGE_LATENCY,
        ),
        (
            load("main", 1, 9.0, running=99, poll_schedule_timeout=1),
            load("worker", 2, 1.0, poll_schedule_timeout=90, running=10),
            Verdict.COMPUTE_BOUND,
            Limit.STEP,
        ),
        (
            load("main", 1, 5.0, sleeping=50, running=50),
            load("worker", 2, 5.0, sleeping=50, running=50),
            Verdict.UNDECIDED,
            None,
        ),
    ],
)
def test_the_kernels_view_alone_makes_a_verdict_where_it_can(
    main: ProcessLoad, worker: ProcessLoad, verdict: Verdict, limit: Limit | None
) -> None:
    found = diagnose_processes(sampled(processes=[main, worker]))
    assert (found.verdict, found.limiting_stage) == (verdict, limit), found.evidence
    assert found.stall_share.measured is None


def test_without_workers_the_kernel_cannot_tell() -> None:
    found = diagnose_processes(sampled(processes=[load("main", 1, 9.0, running=99)]))
    assert (found.verdict, found.limiting_stage) == (Verdict.UNDECIDED, None)


def test_nothing_recorded_is_no_verdict() -> None:
    assert diagnose_recording(empty()) is None
    assert report_recording(empty()).diagnosis.verdict is Verdict.UNDECIDED
    for judge in (diagnose_partition, diagnose_stacks, diagnose_processes):
        with pytest.raises(ValueError, match="has no"):
            judge(empty())
    with pytest.raises(ValueError, match="no time"):
        shares_of([])


def test_a_report_of_a_trace_has_shares_that_sum_to_one_and_survives_the_file() -> None:
    run = empty(partitions=[partition(compute=0.6, stall=0.3), partition(compute=0.2, transfer=0.1, stall=0.5)])
    report = report_recording(loads(dumps(run)), "run.json")
    assert report.partition is not None
    assert list(report.partition) == ["compute", "communication", "transfer", "data_stall", "other_idle"]
    assert sum(report.partition.values()) == pytest.approx(1.0)
    assert report.partition["data_stall"] == pytest.approx(0.4)
    assert (report.run, report.metrics["step_s"]) == ("run.json", 0.5)


@pytest.mark.parametrize(
    ("run", "codes"),
    [
        (sampled(stacks("main", wait=300, step=200), stacks("worker", decode=95, wait=5)), ["IO611"]),
        (sampled(stacks("main", wait=300, step=200), stacks("worker", lock=95, wait=5)), ["IO606"]),
        (sampled(stacks("main", decode=300, step=200), num_workers=0), ["IO102", "IO611"]),
        (sampled(stacks("main", step=500), stacks("worker", wait=95, decode=5)), ["IO600"]),
        (empty(partitions=[partition(compute=0.5, communication=0.4)]), ["IO620"]),
        (empty(partitions=[partition(compute=0.6, transfer=0.3)]), ["IO616"]),
        (empty(partitions=[partition(compute=0.95, hidden_s={"pageable": 0.4})]), ["IO600", "IO616"]),
        (empty(), []),
    ],
)
def test_advice_follows_the_limiting_stage(run: Run, codes: list[str]) -> None:
    report = report_recording(run)
    assert [a.code for a in report.advice] == codes
    assert all(a.action and a.because and a.gain is None for a in report.advice)
