"""Several ranks measured at once: where they stand, how they meet, who is late."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from made_runs import make_run, worker_batches

from ioprobe.analysis import team as teams
from ioprobe.analysis.place import Place, first_node, place_of
from ioprobe.analysis.ranks import culprits, data_rank, layout_of
from ioprobe.analysis.reporting import report_from_run
from ioprobe.analysis.team import Departure, Hello, PeerGone, Team
from ioprobe.diagnosis.ranks import counted, duplicate_reads, latest, storage_sentence, totals, why_late
from ioprobe.diagnosis.types import Verdict
from ioprobe.errors import MeasureError, UsageError
from ioprobe.probe.together import Pacer
from ioprobe.run import Limit, Run, Stage, StorageJob, SyncDifference

# Where a process stands


def test_torchrun_says_where_a_rank_stands() -> None:
    place = place_of(
        {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "29400",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "2",
        }
    )
    assert place == Place(
        rank=3,
        world_size=4,
        local_rank=1,
        local_ranks=2,
        address="10.0.0.1",
        port=29400,
        agent_store=True,
        attempt="2",
    )


def test_slurm_says_where_a_rank_stands() -> None:
    place = place_of(
        {
            "SLURM_PROCID": "5",
            "SLURM_NTASKS": "16",
            "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_LOCALID": "1",
            "SLURM_NTASKS_PER_NODE": "4(x2)",
            "MASTER_ADDR": "node0",
        }
    )
    assert place is not None
    assert (place.rank, place.world_size, place.local_rank, place.local_ranks) == (5, 8, 1, 4)
    assert (place.address, place.port, place.agent_store) == ("node0", 29500, False)
    assert place.environment()["RANK"] == "5"


STEP_OF_SRUN = {
    "SLURM_JOB_ID": "4815162",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}


def test_under_srun_the_ranks_meet_at_the_steps_first_node_at_a_port_of_the_job() -> None:
    place = place_of(STEP_OF_SRUN)
    assert place == Place(rank=5, world_size=7, local_rank=1, local_ranks=3, address="gpu07", port=20162)
    elsewhere = place_of({**STEP_OF_SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"})
    assert elsewhere is not None
    assert (elsewhere.address, elsewhere.port) == ("10.0.0.1", 29400)


def test_the_jobs_own_variables_do_where_a_step_has_none() -> None:
    job = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODELIST": "n[3,9]"}
    place = place_of(job)
    assert place is not None
    assert (place.rank, place.world_size, place.address, place.port) == (1, 2, "n3", 29500)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1,n2", "n1"), ("a[1-2,5]b[07,9],c", "a1b07"), ("x-[10-12]", "x-10"), ("127.0.0.[1-4]", "127.0.0.1")],
)
def test_the_first_node_is_read_from_slurms_compressed_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "8"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
        # A batch script is one process of a job whose steps have ranks.
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NODELIST": "n[1-2]", "ENVIRONMENT": "BATCH"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODELIST": "n1"},
    ],
)
def test_one_process_is_no_job_of_ranks(environ: dict[str, str]) -> None:
    assert place_of(environ) is None


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "RANK is 2 with WORLD_SIZE 2"),
        ({"RANK": "one", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "RANK is 'one'"),
        ({**STEP_OF_SRUN, "SLURM_STEP_TASKS_PER_NODE": "four"}, "SLURM_STEP_TASKS_PER_NODE is 'four'"),
    ],
)
def test_variables_that_contradict_each_other_are_named(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        place_of(environ)


def test_sizes_of_parallel_groups_multiply_to_the_ranks() -> None:
    assert layout_of(8, dp=8, tp=1, pp=1, cp=1) == {}
    assert layout_of(8, dp=None, tp=2, pp=2, cp=1) == {"dp": 2, "tp": 2, "pp": 2, "cp": 1}
    with pytest.raises(UsageError, match="dp 3 x tp 2 x pp 1 x cp 1 is 6, but there are 8 ranks"):
        layout_of(8, dp=3, tp=2, pp=1, cp=1)
    with pytest.raises(UsageError, match="8 ranks cannot be divided"):
        layout_of(8, dp=None, tp=3, pp=1, cp=1)


# How ranks meet


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def together(count: int, act: Callable[[Team], Any], patience_s: float = 30.0) -> list[Any]:
    """Let each rank act in a thread of its own; returns results, or the exceptions that ended them."""
    port = free_port()
    results: list[Any] = [None] * count

    def run(rank: int) -> None:
        team = None
        try:
            place = Place(rank=rank, world_size=count, local_ranks=count, address="127.0.0.1", port=port)
            team = Team(place, patience_s=patience_s)
            results[rank] = act(team)
        except Exception as error:
            results[rank] = error
        finally:
            if team is not None and rank:
                team.end()
            ended[rank].set()
            if team is not None and not rank:
                # The others' last questions go to the store that rank 0 hosts.
                all(event.wait(60) for event in ended)
                team.end()

    ended = [threading.Event() for _ in range(count)]
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    return results


def greet(team: Team, host: str = "a", cores: tuple[int, ...] = ()) -> None:
    team.greet(Hello(hostname=host, node="", cores=cores))


def test_each_rank_gets_what_all_brought() -> None:
    def act(team: Team) -> Any:
        greet(team)
        return team.meet("x", f"from {team.rank}".encode()), team.most("y", team.rank * 10)

    assert together(3, act) == [([b"from 0", b"from 1", b"from 2"], 20)] * 3


def test_large_runs_reach_rank_0_whole() -> None:
    def act(team: Team) -> Any:
        greet(team)
        team.hand_over(bytes([team.rank]) * 3_000_000)
        return team.collect() if team.rank == 0 else None

    found = together(2, act)[0]
    assert found == {1: b"\x01" * 3_000_000}


def test_ranks_share_cores_only_on_one_host_and_one_mask() -> None:
    def act(team: Team) -> Any:
        greet(team, *(("a", (0, 1)), ("a", (1, 2)), ("a", (7,)), ("b", (0, 1)))[team.rank])
        return team.local_ranks

    assert together(4, act) == [[0, 1], [0, 1], [2], [3]]


def test_a_rank_that_leaves_is_named_to_those_who_wait() -> None:
    def act(team: Team) -> Any:
        greet(team)
        if team.rank == 1:
            team.leave(Departure(rank=1, kind="broken", message="no space left", phase="loader"))
            return None
        return team.meet("loop")

    first, _, third = together(3, act)
    for gone in (first, third):
        assert isinstance(gone, PeerGone)
        assert [(d.rank, d.message) for d in gone.departures] == [(1, "no space left")]


def test_a_rank_without_a_sign_of_life_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "SILENCE_S", 3.0)

    def act(team: Team) -> Any:
        greet(team)
        if team.rank == 1:
            team.end()
            return None
        return team.meet("loop")

    gone = together(2, act)[0]
    assert isinstance(gone, PeerGone)
    assert gone.departures[0].rank == 1
    assert "no sign of life" in gone.departures[0].message


def test_a_rank_that_never_comes_is_named_and_not_waited_for_longer() -> None:
    def act(team: Team) -> Any:
        if team.rank == 0:
            greet(team)

    missing = together(2, act, patience_s=1.0)[0]
    assert isinstance(missing, MeasureError)
    assert missing.message == "rank 1 of 2 did not come within 1 s"


def test_ranks_end_after_the_same_batch() -> None:
    class Store(dict[str, str]):
        def set(self, key: str, value: str) -> None:
            self[key] = value

        def get(self, key: str) -> bytes:
            return self[key].encode()

    store = Store()
    pacers = [Pacer(store, rank, "loop-1", seconds=2.0) for rank in range(3)]
    ended: dict[int, int] = {}
    for batch in range(1, 10_000):
        # Rank 0 sees other times than the rest, as in life; it alone decides.
        for rank, pacer in enumerate(pacers):
            if pacer.is_over(batch, 0.01 * batch * (1 + rank)):
                ended[rank] = batch
        if ended:
            break
    assert ended == dict.fromkeys(range(3), batch)
    assert 200 <= batch <= 290  # two seconds of 10 ms, and at most two points of 0.4 s more


def test_the_loader_that_hangs_is_named_and_not_the_step_that_waits_for_it() -> None:
    def act(team: Team) -> Any:
        greet(team)
        in_step = team.rank == 0
        what = "the step" if in_step else "waiting for a batch"
        team.leave(
            Departure(
                rank=team.rank,
                kind="broken",
                phase="step" if in_step else "loop",
                message=f"{what} showed no progress for 60 s",
            )
        )
        team.hand_over(b"")
        return [(d.rank, d.message) for d in culprits(team, team.collect())] if team.rank == 0 else None

    assert together(2, act)[0] == [(1, "waiting for a batch showed no progress for 60 s")]


# Who is late


def rank_run(rank: int, *, wait_s: float, step_s: float = 0.020, meeting_s: float | None = None, fetch_s: float) -> Run:
    worker = worker_batches(200, workers=2, fetch_s=fetch_s, cpu_s=0.9 * fetch_s)
    run = make_run(loop_wait_s=wait_s, step_s=step_s, loader_cycle_s=wait_s + 0.02, worker=worker)
    run.rank, run.world_size = rank, 4
    if meeting_s is not None:
        run.loaders[0].main.meeting_s = [meeting_s] * 200
        assert run.step is not None
        run.step.durations_s = [0.020] * 50
        run.step.sync = SyncDifference(switch="DDP.no_sync", with_s=[0.020] * 4, without_s=[0.015] * 4, steps=9)
    return run


def job(*runs: Run) -> Run:
    first, *others = runs
    return msgspec.structs.replace(first, ranks=others, world_size=len(runs))


def late_loader() -> Run:
    """Rank 2 waits 40 ms for its batches; the others wait for it in the all-reduce of each step."""
    even = [rank_run(r, wait_s=0.0005, step_s=0.0595, meeting_s=0.045, fetch_s=0.010) for r in (0, 1, 3)]
    slow = rank_run(2, wait_s=0.040, step_s=0.020, meeting_s=0.0055, fetch_s=0.120)
    return job(even[0], even[1], slow, even[2])


def test_a_late_loader_is_blamed_and_not_the_communication_of_the_others() -> None:
    run = late_loader()
    late = latest(run)
    assert late is not None
    assert (late.rank, late.meets) == (2, True)
    assert late.wait_s == pytest.approx(0.0395)
    report = report_from_run(run)
    assert report.diagnosis.verdict is Verdict.DATA_BOUND
    assert report.diagnosis.limiting_stage not in (Limit.COMMUNICATION, Limit.STEP, None)
    rung = next(r for r in report.diagnosis.ladder if r.stage is Stage.COMMUNICATION)
    assert rung.samples_per_s is not None
    assert rung.samples_per_s.value == pytest.approx(16 / 0.005)  # as on a resident batch, where nobody waits
    assert [r.rank for r in report.ranks if r.late] == [2]
    assert "rank 2 is late: each other rank waits 39.5 ms a step" in report.diagnosis.reasons[0]
    assert "takes it" in report.diagnosis.reasons[0]


def test_ranks_that_only_wait_for_gradients_are_communication_bound() -> None:
    runs = [rank_run(r, wait_s=0.0002, step_s=0.0202, meeting_s=0.015, fetch_s=0.002) for r in range(3)]
    for run in runs:
        assert run.step is not None
        run.loaders[1].main.wait_s = [0.002] * 200
        run.loaders[1].main.call_s = [0.002 * i for i in range(200)]
        run.step.sync = SyncDifference(switch="DDP.no_sync", with_s=[0.020] * 4, without_s=[0.008] * 4, steps=9)
    report = report_from_run(job(*runs))
    assert report.diagnosis.verdict is Verdict.COMMUNICATION_BOUND
    assert "60.0% of the step's 20.0 ms is gradient synchronisation" in report.diagnosis.evidence
    assert not any(r.late for r in report.ranks)


def test_the_stage_that_makes_a_rank_late_is_named_with_both_costs() -> None:
    assert why_late(late_loader(), 2) == "transform takes it 6.75 ms a sample, the others 562 us"


def test_ranks_at_one_pace_have_no_late_one() -> None:
    run = job(*(rank_run(r, wait_s=0.001, meeting_s=0.005, fetch_s=0.010) for r in range(3)))
    assert latest(run) is None
    assert not any(r.late for r in report_from_run(run).ranks)


def test_of_ranks_that_ran_apart_the_slowest_would_keep_the_others_waiting() -> None:
    run = job(rank_run(0, wait_s=0.0, fetch_s=0.01), rank_run(1, wait_s=0.020, fetch_s=0.08))
    late = latest(run)
    assert late is not None
    assert (late.rank, late.meets) == (1, False)
    assert late.wait_s == pytest.approx(0.020)
    assert totals(run)["all_ranks_in_step_samples_per_s"] == pytest.approx(2 * 16 / 0.040)


def test_throughput_sums_over_data_parallel_ranks_only() -> None:
    sizes = {"dp": 2, "tp": 2, "pp": 1, "cp": 1}
    run = job(*(rank_run(r, wait_s=0.0, fetch_s=0.01) for r in range(4)))
    assert totals(run)["all_ranks_samples_per_s"] == pytest.approx(4 * 16 / 0.020)
    run.workload = msgspec.structs.replace(run.workload, parallel=sizes, tokens_per_sample=100)
    assert [r.rank for r in counted(run)] == [0, 2]
    assert [data_rank(r, sizes) for r in range(4)] == [0, 0, 1, 1]
    assert totals(run)["all_ranks_samples_per_s"] == pytest.approx(2 * 16 / 0.020)
    assert totals(run)["all_ranks_tokens_per_s"] == pytest.approx(2 * 16 / 0.020 * 100)
    caveat = duplicate_reads(run)
    assert caveat is not None
    assert "with tp 2 each sample is read and decoded 2 times" in caveat.text


def test_a_sum_over_some_of_the_ranks_is_not_given() -> None:
    run = job(*(rank_run(r, wait_s=0.0, fetch_s=0.01) for r in range(3)))
    run.world_size = 4
    assert "all_ranks_samples_per_s" not in totals(run)


def test_the_knee_of_storage_over_ranks_is_named() -> None:
    run = job(*(rank_run(r, wait_s=0.0, fetch_s=0.01) for r in range(4)))
    rates = {1: 100e6, 2: 95e6, 4: 50e6}  # of each rank
    for one in (run, *run.ranks):
        one.storage = [
            StorageJob(name="", url="u", pattern=f"ranks-{n}", bytes_read=int(rate), window_s=1.0)
            for n, rate in rates.items()
            if one.rank < n
        ]
    text = storage_sentence(run)
    assert "100 MB/s to 1, 190 MB/s to 2, 200 MB/s to 4 ranks" in text
    assert "more than 2 at once bring next to nothing" in text
