"""Several ranks as real processes: under torchrun, under SLURM's variables, on two hosts, and when one is lost.

Starting them takes most of the time, so each job is measured once and looked at by several tests.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from live_processes import left_behind, measuring_child

from ioprobe.run import Run, load

PIPELINES = Path(__file__).parents[1] / "fixtures" / "pipelines" / "ranks.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
QUICK = ("--no-verify", "--format", "json")

Started = subprocess.Popen[str]
STARTED: list[Started] = []


@pytest.fixture(autouse=True)
def nothing_outlives_its_test() -> Iterator[None]:
    """A test that fails leaves no ranks to measure on beside the tests after it."""
    yield
    for process in STARTED:
        if process.poll() is None:
            process.terminate()
        with process:
            pass
    STARTED.clear()


class Ended(NamedTuple):
    """A process that is over."""

    code: int
    out: str
    err: str


class Job(NamedTuple):
    """All ranks of a job, over."""

    ranks: list[Ended]
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        """What rank 0 printed: one object and nothing else."""
        found: dict[str, Any] = json.loads(self.ranks[0].out)
        return found

    @property
    def saved(self) -> Run:
        return load(self.folder / "out")


def start(folder: Path, command: Sequence[str], environ: Mapping[str, str]) -> Started:
    keep = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    # As launchers do: thread pools that spin on each other's cores would hold up steps for tens of milliseconds.
    keep["OMP_NUM_THREADS"] = "1"
    process = subprocess.Popen(
        list(command),
        cwd=folder,
        env={**keep, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    return process


def ioprobe(*args: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "ioprobe_cli", *args, "--output", "out")


def ends(processes: list[Started], folder: Path, timeout_s: float = 120.0) -> Job:
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=timeout_s)
            found.append(Ended(process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    assert not left_behind(folder)
    return Job(found, folder)


def free_port(low: int = 30_000, high: int = 60_000) -> int:
    """Return a port that is free, as is the one after it."""
    while True:
        port = random.SystemRandom().randrange(low, high)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def by_hand(rank: int, size: int, port: int) -> dict[str, str]:
    """Return what a launcher would set."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def by_slurm(rank: int, size: int, port: int) -> dict[str, str]:
    """Return what ``srun`` would set; the ranks meet at the first node, at a port made of the job's number."""
    return {
        "SLURM_JOB_ID": f"77{port - 15_000:04}",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_TASKS_PER_NODE": str(size),
        "SLURM_NODELIST": "127.0.0.[1-2]",
    }


# One late rank of four, under torchrun


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Two tensor-parallel groups of two; the loader of rank 1 takes eight times as long."""
    folder = tmp_path_factory.mktemp("late")
    launcher = (*TORCHRUN, "--nproc-per-node", "4", "--master-port", str(free_port()), "-m", "ioprobe_cli")
    args = ("analyze", f"{PIPELINES}:late", "--step", f"{PIPELINES}:quick_link", "--seconds", "4", "--tp", "2", *QUICK)
    return ends([start(folder, (*launcher, *args, "--output", "out"), {})], folder)


def test_torchrun_gives_one_report_of_all_ranks(late: Job) -> None:
    assert late.ranks[0].code == 0, late.ranks[0].err
    assert [r["rank"] for r in late.report["ranks"]] == [0, 1, 2, 3]
    saved = late.saved
    assert saved.complete
    loops = [r.loop() for r in (saved, *saved.ranks)]
    assert len({len(loop.main.call_s) for loop in loops if loop}) == 1  # they ended after the same batch
    cores = len(os.sched_getaffinity(0))
    assert "shared by 4 ranks" in saved.host.usable_cores_because
    assert saved.host.usable_cores <= cores / 4
    assert (late.folder / "out" / "report.html").exists()


def test_the_slow_rank_is_named_and_its_loader_blamed_for_the_wait_in_the_all_reduce(late: Job) -> None:
    diagnosis = late.report["diagnosis"]
    assert [r["late"] for r in late.report["ranks"]] == [False, True, False, False]
    assert diagnosis["verdict"] == "data-bound"
    assert diagnosis["limiting_stage"] not in ("communication", "step")
    assert "rank 1 is late" in diagnosis["reasons"][0]


def test_communication_is_timed_by_difference_on_every_rank_and_is_a_rung(late: Job) -> None:
    saved = late.saved
    for run in (saved, *saved.ranks):
        assert run.step is not None
        sync = run.step.sync
        assert sync is not None
        assert (sync.switch, sync.failed, sync.sharded) == ("DistributedDataParallel.no_sync", "", False)
        assert len(sync.with_s) == len(sync.without_s) >= 3
        # The link alone makes each step wait 5 ms, and a step takes what the whole takes at most.
        assert sum(sync.with_s) / len(sync.with_s) - sum(sync.without_s) / len(sync.without_s) > 0.004
        assert run.step.updates_per_step == 1.0
        # Forward, and the weights' gradient: the input needs none.
        assert run.step.flops_per_step == 2 * (2 * 4 * 64 * 16_384)
    rung = next(r for r in late.report["diagnosis"]["ladder"] if r["stage"] == "communication")
    assert rung["samples_per_s"]["value"] > 0


def test_two_groups_count_twice_and_their_duplicate_reads_are_flagged(late: Job) -> None:
    assert late.report["metrics"]["data_parallel_ranks"] == 2
    assert "duplicate-reads" in [c["code"] for c in late.report["caveats"]]


# Ranks that wait for gradients, under SLURM's variables


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Gradients take 40 ms, batches a few."""
    folder, port = tmp_path_factory.mktemp("waiting"), free_port(15_000, 24_998)
    args = ("analyze", f"{PIPELINES}:even", "--step", f"{PIPELINES}:slow_link", "--seconds", "3", *QUICK)
    return ends([start(folder, ioprobe(*args), by_slurm(rank, 2, port)) for rank in range(2)], folder)


def test_slurms_tasks_find_each_other_and_only_the_first_reports(waiting: Job) -> None:
    assert [rank.code for rank in waiting.ranks] == [0, 0], waiting.ranks[0].err
    assert [bool(rank.out) for rank in waiting.ranks] == [True, False]
    assert [r["rank"] for r in waiting.report["ranks"]] == [0, 1]
    assert waiting.saved.local_ranks == 2


def test_ranks_that_wait_for_gradients_are_communication_bound_with_the_evidence(waiting: Job) -> None:
    diagnosis = waiting.report["diagnosis"]
    assert (diagnosis["verdict"], diagnosis["limiting_stage"]) == ("communication-bound", "communication")
    assert "a changed global batch changes training" in waiting.report["advice"][0]["action"]
    saved = waiting.saved
    for run in (saved, *saved.ranks):
        assert run.step is not None
        assert run.step.sync is not None
        assert sum(run.step.sync.with_s) > 2 * sum(run.step.sync.without_s)


# A rank is lost


def two_by_hand(folder: Path, *args: str) -> list[Started]:
    port = free_port()
    return [start(folder, ioprobe(*args), by_hand(rank, 2, port)) for rank in range(2)]


def test_a_killed_rank_is_named_and_the_others_end_with_a_partial_run(tmp_path: Path) -> None:
    target = ("analyze", f"{PIPELINES}:even", "--step", f"{PIPELINES}:together")
    ranks = two_by_hand(tmp_path, *target, "--seconds", "120", "--format", "json")
    wait_for_workers(ranks)
    ranks[1].send_signal(signal.SIGKILL)
    job = ends(ranks, tmp_path)
    first, killed = job.ranks
    assert (first.code, killed.code) == (2, -signal.SIGKILL)
    assert first.err.count("Error:") == 1
    assert "rank 1: died" in first.err
    assert not job.report["complete"]
    assert not job.saved.complete
    assert job.saved.failures[0].kind == "rank-lost"


def test_a_rank_whose_loader_hangs_is_named_and_the_others_do_not_wait_for_it(tmp_path: Path) -> None:
    args = ("loader", f"{PIPELINES}:hangs", "--seconds", "2", "--timeout", "5", "--format", "json")
    job = ends(two_by_hand(tmp_path, *args), tmp_path)
    first, hung = job.ranks
    assert (first.code, hung.code, hung.out) == (2, 2, "")
    assert "rank 1:" in first.err
    assert "no progress for 5 s" in first.err
    assert not job.saved.complete
    assert job.saved.loader_alone() is not None  # what rank 0 measured is kept


def test_a_factory_that_fails_on_one_rank_is_one_line(tmp_path: Path) -> None:
    first, other = ends(two_by_hand(tmp_path, "loader", f"{PIPELINES}:refused", "--seconds", "3"), tmp_path).ranks
    assert (first.code, other.code, first.out, other.err) == (2, 2, "", "")
    assert [line[:6] for line in first.err.splitlines()].count("Error:") == 1
    assert "rank 1: the factory" in first.err
    assert "no data on this host" in first.err


def wait_for_workers(ranks: list[Started]) -> None:
    """Wait until every rank's loader has its worker, and the loop has made some batches."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert [rank.poll() for rank in ranks] == [None] * len(ranks), [rank.communicate() for rank in ranks]
        if all(measuring_child(rank.pid) for rank in ranks):
            time.sleep(0.7)
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
def test_torchrun_on_two_hosts_that_read_one_object_store(tmp_path: Path, two_hosts: tuple[str, str]) -> None:
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    pytest.importorskip("nanio", reason="the S3 server for tests is not installed")
    from ioprobe.data.spec import Spec
    from ioprobe.data.synth import synthesize

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
        "GLOO_SOCKET_IFNAME": "cable",
        "AWS_ENDPOINT_URL": f"http://{ADDRESSES[0]}:9000",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    args = ("analyze", "s3://bucket/ds/*.tar", "--step", f"{PIPELINES}:quick_link", "--num-workers", "1",
            "--batch-size", "4", "--set", "repeat=true", "--seconds", "4", *QUICK)  # fmt: skip
    launcher = (*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", ADDRESSES[0])
    try:
        nodes = [
            start(
                tmp_path,
                (*on(two_hosts[k], f"host{k}"), *launcher, "--node-rank", str(k), "-m", *ioprobe(*args)[2:]),
                env,
            )
            for k in range(2)
        ]
        job = ends(nodes, tmp_path)
    finally:
        server.terminate()
        server.wait(10)
    first, other = job.ranks
    assert (first.code, other.code, other.out) == (0, 0, ""), first.err
    report = json.loads(first.out)
    assert [(r["rank"], r["host"]) for r in report["ranks"]] == [(0, "host0"), (1, "host1")]
    assert all(r["samples_per_s"] for r in report["ranks"])
    saved = load(tmp_path / "out")
    assert saved.local_ranks == 1  # each host's cores are its own
    jobs = [(r.rank, j.pattern) for r in (saved, *saved.ranks) for j in r.storage if j.pattern.startswith("ranks-")]
    assert jobs == [(0, "ranks-1"), (0, "ranks-2"), (1, "ranks-2")]
    assert "ranks that read at once" in " ".join(report["diagnosis"]["reasons"])
    assert all(r.step and r.step.sync and r.step.sync.with_s for r in (saved, *saved.ranks))
