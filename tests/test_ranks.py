"""Several ranks measured at once: where they stand, how they meet, who is late, and what happens when one is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from made_runs import make_run, worker_batches

from ioprobe.analysis import team as teams
from ioprobe.analysis.place import Place, place_of
from ioprobe.analysis.ranks import culprits, data_rank, layout_of
from ioprobe.analysis.reporting import report_from_run
from ioprobe.analysis.team import Departure, Hello, PeerGone, Team
from ioprobe.diagnosis.ranks import counted, duplicate_reads, latest, storage_sentence, totals, why_late
from ioprobe.diagnosis.types import Verdict
from ioprobe.errors import MeasureError, UsageError
from ioprobe.probe.together import Pacer
from ioprobe.run import Limit, Run, StorageJob, load

PIPELINES = Path(__file__).parents[1] / "fixtures" / "pipelines" / "ranks.py"


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


@pytest.mark.parametrize(
    "environ",
    [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "8"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}],
)
def test_one_process_is_no_job_of_ranks(environ: dict[str, str]) -> None:
    assert place_of(environ) is None


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "RANK is 2 with WORLD_SIZE 2"),
        ({"RANK": "one", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "RANK is 'one'"),
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
    assert [r.rank for r in report.ranks if r.late] == [2]
    assert "rank 2 is late: each other rank waits 39.5 ms a step" in report.diagnosis.reasons[0]
    assert "takes it" in report.diagnosis.reasons[0]


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


# Real processes

Started = subprocess.Popen[str]


def start(
    folder: Path, rank: int, size: int, port: int, *args: str, prefix: tuple[str, ...] = (), **env: str
) -> Started:
    environ = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **env,
    }
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "ioprobe_cli", *args, "--output", str(folder / "out")],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(processes: list[Started], timeout_s: float = 120.0) -> list[tuple[int, str, str]]:
    """Return exit code, stdout and stderr of each rank."""
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=timeout_s)
            found.append((process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return found


def left_behind(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def test_torchrun_gives_one_report_that_names_the_slow_rank(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
         "-m", "ioprobe_cli", "analyze", f"{PIPELINES}:late", "--step", f"{PIPELINES}:together",
         "--seconds", "4", "--no-verify", "--format", "json", "--output", "out"],
        cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)  # one report and nothing else
    assert [r["rank"] for r in report["ranks"]] == [0, 1]
    assert [r["late"] for r in report["ranks"]] == [False, True]
    assert report["diagnosis"]["verdict"] == "data-bound"
    assert report["diagnosis"]["limiting_stage"] not in ("communication", "step")
    assert "rank 1 is late" in report["diagnosis"]["reasons"][0]
    assert report["metrics"]["data_parallel_ranks"] == 2
    saved = load(tmp_path / "out")
    assert saved.complete
    loops = [r.loop() for r in (saved, *saved.ranks)]
    assert len({len(loop.main.call_s) for loop in loops if loop}) == 1  # they ended after the same batch
    cores = saved.host.usable_cores
    assert "shared by 2 ranks" in saved.host.usable_cores_because
    assert cores == pytest.approx(len(os.sched_getaffinity(0)) / 2) or cores < len(os.sched_getaffinity(0)) / 2
    assert (tmp_path / "out" / "report.html").exists()
    assert not left_behind(tmp_path)


def test_a_killed_rank_is_named_and_the_others_end_with_a_partial_run(tmp_path: Path) -> None:
    port = free_port()
    args = ("analyze", f"{PIPELINES}:even", "--step", f"{PIPELINES}:together", "--seconds", "120", "--format", "json")
    ranks = [start(tmp_path, rank, 2, port, *args) for rank in range(2)]
    wait_for_workers(ranks)
    ranks[1].send_signal(signal.SIGKILL)
    (code, out, err), (killed, _, _) = ends(ranks)
    assert (code, killed) == (2, -signal.SIGKILL)
    assert err.count("Error:") == 1
    assert "rank 1: died" in err
    assert not json.loads(out)["complete"]
    saved = load(tmp_path / "out")
    assert not saved.complete
    assert saved.failures[0].kind == "rank-lost"
    assert not left_behind(tmp_path)


def test_a_factory_that_fails_on_one_rank_is_one_line(tmp_path: Path) -> None:
    port = free_port()
    args = ("loader", f"{PIPELINES}:refused", "--seconds", "3")
    (code, out, err), (other, _, quiet) = ends([start(tmp_path, rank, 2, port, *args) for rank in range(2)])
    assert (code, other, out, quiet) == (2, 2, "", "")
    assert [line[:6] for line in err.splitlines()].count("Error:") == 1
    assert "rank 1: the factory" in err
    assert "no data on this host" in err


@pytest.mark.slow
def test_four_ranks_of_two_groups_count_twice_and_read_twice(tmp_path: Path) -> None:
    port = free_port()
    args = ("loader", f"{PIPELINES}:even", "--seconds", "3", "--tp", "2", "--format", "json")
    found = ends([start(tmp_path, rank, 4, port, *args) for rank in range(4)])
    assert [code for code, _, _ in found] == [0] * 4, found[0][2]
    assert [bool(out) for _, out, _ in found] == [True, False, False, False]
    report = json.loads(found[0][1])
    assert len(report["ranks"]) == 4
    assert report["metrics"]["data_parallel_ranks"] == 2
    assert "duplicate-reads" in [c["code"] for c in report["caveats"]]
    saved = load(tmp_path / "out")
    rates = [len(r.loaders[0].main.call_s) for r in (saved, *saved.ranks)]
    assert min(rates) > 10


def wait_for_workers(ranks: list[Started]) -> None:
    """Wait until every rank's loader has its worker, and the loop has made some batches."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        busy = 0
        for rank in ranks:
            assert rank.poll() is None, rank.communicate()
            for child in psutil.Process(rank.pid).children():
                if "ioprobe.probe.child" in " ".join(child.cmdline()) and child.children():
                    busy += 1
        if busy == len(ranks):
            time.sleep(1.5)
            return
        time.sleep(0.1)
    raise AssertionError("the measurement did not begin")


# Two hosts

KEY, SECRET = "AKIATESTTESTTESTTEST", "secret-of-a-test-network"
ADDRESSES = ("198.18.0.1", "198.18.0.2")


@pytest.fixture
def two_hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them; what runs there sees no other network."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("network namespaces need root, iproute2 and unshare")
    names = (f"iop{os.getpid()}a", f"iop{os.getpid()}b")
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
                pytest.skip("this system lets nobody make network namespaces")
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


def on(namespace: str, hostname: str) -> tuple[str, ...]:
    """Return the command that runs another one on a host of the test network."""
    shell = f'hostname {hostname}; exec "$@"'
    return ("ip", "netns", "exec", namespace, "unshare", "--uts", "sh", "-c", shell, "sh")


@pytest.mark.root
@pytest.mark.slow
def test_two_hosts_read_one_object_store(tmp_path: Path, two_hosts: tuple[str, str]) -> None:
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    pytest.importorskip("nanio", reason="the S3 server for tests is not installed")
    from ioprobe.data.synth import Spec, synthesize

    spec = Spec(format="webdataset", kind="image", samples=64, shard_samples=16, seed=0)
    synthesize(spec, str(tmp_path / "store" / "bucket" / "ds"))
    place = ["--data-dir", str(tmp_path / "store"), "--host", ADDRESSES[0], "--port", "9000", "--no-access-log"]
    server = subprocess.Popen(
        [*on(two_hosts[0], "store"), sys.executable, "-c",
         "import sys; from nanio.__main__ import main; sys.exit(main())", "serve", *place],
        env={**os.environ, "NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": SECRET},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    env = {
        "MASTER_ADDR": ADDRESSES[0],
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "AWS_ENDPOINT_URL": f"http://{ADDRESSES[0]}:9000",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    args = ("analyze", "s3://bucket/ds/*.tar", "--step-ms", "5", "--num-workers", "1", "--batch-size", "4",
            "--set", "repeat=true", "--seconds", "4", "--no-verify", "--format", "json")  # fmt: skip
    try:
        ranks = [
            start(tmp_path, rank, 2, 29500, *args, prefix=on(two_hosts[rank], f"host{rank}"), **env)
            for rank in range(2)
        ]
        (code, out, err), (other, quiet, _) = ends(ranks)
    finally:
        server.terminate()
        server.wait(10)
    assert (code, other, quiet) == (0, 0, ""), err
    report = json.loads(out)
    assert [(r["rank"], r["host"]) for r in report["ranks"]] == [(0, "host0"), (1, "host1")]
    assert all(r["samples_per_s"] for r in report["ranks"])
    saved = load(tmp_path / "out")
    assert saved.local_ranks == 1  # each host's cores are its own
    jobs = [(r.rank, j.pattern) for r in (saved, *saved.ranks) for j in r.storage if j.pattern.startswith("ranks-")]
    assert jobs == [(0, "ranks-1"), (0, "ranks-2"), (1, "ranks-2")]
    assert "ranks that read at once" in " ".join(report["diagnosis"]["reasons"])
