"""Attaching to a live job: who is who, what is allowed, and a small real training script."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ioprobe.errors import MeasureError, UsageError
from ioprobe.live.attach import attach, default_rate, where_stuck
from ioprobe.live.processes import ProcessMeter, Size, descendants, roles, size_of
from ioprobe.live.stacks import pyspy
from ioprobe.live.stacks.pyspy import Recording, check_access, confidence, find_py_spy
from ioprobe.run import Stage

SCRIPT = Path(__file__).parents[1] / "fixtures/profiles/train.py"


# Who is who, in a made-up /proc


def proc(
    root: Path, pid: int, parent: int, command: str, name: str = "python", exe: str = "/usr/bin/python3.11"
) -> None:
    place = root / f"proc/{pid}"
    place.mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 9, "150", "50", *["0"] * 4, "4", "0", "777", *["0"] * 10]
    (place / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (place / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    (place / "exe").symlink_to(exe)
    (place / "maps").write_text("")
    (place / "wchan").write_text("do_sys_poll")
    (place / "io").write_text("rchar: 1000\nwchar: 0\nsyscr: 10\nsyscw: 0\nread_bytes: 500\n")


def test_workers_are_known_by_the_name_that_torch_gives_them(tmp_path: Path) -> None:
    proc(tmp_path, 10, 1, "python train.py")
    proc(tmp_path, 11, 10, "python train.py", name="pt_data_worker")
    proc(tmp_path, 12, 10, "python train.py", name="pt_data_worker")
    proc(tmp_path, 13, 10, "python train.py")  # a pool of the user's
    proc(tmp_path, 14, 10, "python -c from_multiprocessing.resource_tracker_import_main")
    found = roles(10, tmp_path)
    assert ([p.pid for p in found.mains], found.workers, found.note) == ([10], {11: 10, 12: 10}, "")
    assert [p.pid for p in descendants(10, tmp_path)] == [10, 11, 12, 13, 14]
    assert size_of(found, tmp_path) == Size(processes=5, python_threads=4 + 4 * 2, threads=5 * 4)


def test_workers_of_an_older_torch_are_known_by_their_command_line(tmp_path: Path) -> None:
    proc(tmp_path, 10, 1, "python train.py")
    proc(tmp_path, 11, 10, "python train.py")
    proc(tmp_path, 12, 10, "python -c from multiprocessing.spawn import spawn_main")
    (tmp_path / "proc/12/cmdline").write_bytes(b"python\0-c\0from multiprocessing.spawn import spawn_main; x()\0")
    assert roles(10, tmp_path).workers == {11: 10, 12: 10}


def test_ranks_below_a_launcher_are_all_taken_and_are_no_workers(tmp_path: Path) -> None:
    proc(tmp_path, 9, 1, "/opt/bin/python /opt/bin/torchrun --nproc-per-node 2 train.py")
    for rank in (0, 1):
        proc(tmp_path, 20 + rank, 9, "/opt/bin/python -u train.py")
        proc(tmp_path, 30 + rank, 20 + rank, "/opt/bin/python -u train.py", name="pt_data_worker")
    found = roles(9, tmp_path)
    assert ([p.pid for p in found.mains], found.workers) == ([20, 21], {30: 20, 31: 21})


def test_ranks_without_workers_are_found_below_a_launcher(tmp_path: Path) -> None:
    proc(tmp_path, 9, 1, "/opt/bin/python -m torch.distributed.run train.py")
    proc(tmp_path, 20, 9, "/opt/bin/python -u train.py")
    proc(tmp_path, 21, 9, "/opt/bin/python -u train.py")
    assert [p.pid for p in roles(9, tmp_path).mains] == [20, 21]


def test_the_pid_of_a_worker_leads_to_its_training_process(tmp_path: Path) -> None:
    proc(tmp_path, 10, 1, "python train.py")
    proc(tmp_path, 11, 10, "python train.py", name="pt_data_worker")
    found = roles(11, tmp_path)
    assert (found.root, [p.pid for p in found.mains]) == (10, [10])
    assert found.note == "process 11 is a DataLoader worker of process 10: attached to that one"


def test_a_shell_script_above_the_job_will_do(tmp_path: Path) -> None:
    proc(tmp_path, 5, 1, "bash run.sh", name="bash", exe="/bin/bash")
    proc(tmp_path, 10, 5, "python train.py")
    assert [p.pid for p in roles(5, tmp_path).mains] == [10]


def test_what_is_no_python_or_not_there_is_named(tmp_path: Path) -> None:
    proc(tmp_path, 5, 1, "bash run.sh", name="bash", exe="/bin/bash")
    with pytest.raises(UsageError, match=r"process 5 \(bash\) runs no Python"):
        roles(5, tmp_path)
    with pytest.raises(UsageError, match="there is no process 99"):
        roles(99, tmp_path)
    proc(tmp_path, 10, 5, "python a.py")
    proc(tmp_path, 11, 5, "python b.py")
    with pytest.raises(UsageError, match=r"2 Python processes run below it \(10, 11"):
        roles(5, tmp_path)


def test_the_kernels_view_is_counted_for_each_process(tmp_path: Path) -> None:
    proc(tmp_path, 10, 1, "python train.py")
    proc(tmp_path, 11, 10, "python train.py", name="pt_data_worker")
    times = iter([0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0])  # two readings a look where new processes are looked for
    meter = ProcessMeter(10, tmp_path, every_s=1.0, clock=lambda: next(times))
    assert meter.look()
    assert meter.look()  # not yet
    (tmp_path / "proc/11/io").write_text("rchar: 5000\nwchar: 0\nsyscr: 14\nsyscw: 0\nread_bytes: 900\n")
    proc(tmp_path, 12, 10, "python train.py", name="pt_data_worker")  # comes later
    assert meter.look()
    assert meter.look()
    loads = {p.pid: p for p in meter.loads()}
    assert [(p.role, p.window_s) for p in loads.values()] == [("main", 2.0), ("worker", 2.0), ("worker", 1.0)]
    assert (loads[11].read_bytes, loads[11].read_ops, loads[11].device_read_bytes) == (4000, 4, 400)
    assert loads[11].states == {"do_sys_poll": 3}
    assert (meter.crew(10), meter.crew(11)) == (2, None)


def test_workers_that_start_again_are_counted_as_many_as_live_at_a_time(tmp_path: Path) -> None:
    proc(tmp_path, 10, 1, "python train.py")
    now_s = [0.0]
    meter = ProcessMeter(10, tmp_path, every_s=0.5, clock=lambda: now_s[0])
    for epoch in range(4):
        for worker in (0, 1):
            proc(tmp_path, 20 + 2 * epoch + worker, 10, "python train.py", name="pt_data_worker")
        for _ in range(2):
            assert meter.look()
            now_s[0] += 2.0
        for worker in (0, 1):
            shutil.rmtree(tmp_path / f"proc/{20 + 2 * epoch + worker}")
    assert len([p for p in meter.loads() if p.role == "worker"]) == 8
    assert meter.crew(10) == 2


# What is allowed, and how much to trust it


def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str | None, *, container: bool, owner: int) -> str:
    place = tmp_path / "proc/7"
    place.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/status").write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    if scope is not None:
        (tmp_path / "proc/sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text(scope + "\n")
    if container:
        (tmp_path / ".dockerenv").write_text("")

    def denied(path: object, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(place).st_uid if owner == 0 else 12345)  # noqa: PTH116
    with pytest.raises(MeasureError) as caught:
        check_access(7, tmp_path)
    monkeypatch.undo()
    assert "--no-stacks" in caught.value.hint
    return f"{caught.value.message} | {caught.value.hint}"


def test_a_refusal_names_ptrace_scope_and_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused(tmp_path, monkeypatch, "1", container=False, owner=0)
    assert "kernel.yama.ptrace_scope is 1" in text
    assert "sudo sysctl kernel.yama.ptrace_scope=0" in text


def test_a_refusal_in_a_container_names_the_capability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused(tmp_path, monkeypatch, "0", container=True, owner=0)
    assert "lacks SYS_PTRACE" in text
    assert "docker run --cap-add SYS_PTRACE" in text
    assert "securityContext.capabilities.add: [SYS_PTRACE]" in text


def test_a_refusal_for_anothers_process_names_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused(tmp_path, monkeypatch, None, container=False, owner=1)
    assert "it belongs to user" in text
    assert "sudo -E env PATH=$PATH ioprobe attach 7" in text


def test_a_scope_of_three_has_no_way_but_without_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused(tmp_path, monkeypatch, "3", container=False, owner=0)
    assert "forbids it to everyone until reboot | judge without stacks" in text


def test_py_spy_is_looked_for_beside_the_interpreter_then_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(MeasureError, match="cannot find py-spy"):
        find_py_spy()
    for place in (tmp_path / "bin/py-spy", tmp_path / "py-spy"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("")
        place.chmod(0o755)
        assert find_py_spy() == str(place)


def test_a_lagging_or_lossy_sampler_is_marked() -> None:
    good = Recording([], wall_s=10.2, rate_per_s=20, behind_s=0.0, errors=1, taken=1000)
    assert confidence(good, 10.0, main_samples=198) == []
    bad = good._replace(behind_s=2.5, errors=300)
    found = confidence(bad, 10.0, main_samples=90)
    assert [c.code for c in found] == ["sampler-lag", "sampler-loss", "sampler-errors"]
    assert found[0].text == "low confidence: py-spy was 2.5 s behind in sampling"
    assert found[1].text == "low confidence: 90 stacks of the main thread, where 200 were due"
    assert all(c.settle for c in found)


def test_the_rate_falls_as_the_job_grows_and_rises_with_the_cores() -> None:
    sizes = [Size(1, 1, 2), Size(3, 8, 20), Size(17, 50, 400)]
    assert [default_rate(size, 2) for size in sizes] == [38, 6, 5]
    assert [default_rate(size, 64) for size in sizes] == [50, 50, 31]


def test_what_py_spy_says_of_a_version_or_a_right_becomes_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\necho 'Error: Failed to find python version from target process' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(pyspy, "find_py_spy", lambda: str(fake))
    with pytest.raises(MeasureError) as caught:
        pyspy.record(1, 1, 10)
    assert "Failed to find python version" in caught.value.message
    assert "upgrade py-spy" in caught.value.hint


# A real job


@pytest.fixture(scope="module")
def job() -> Iterator[subprocess.Popen[str]]:
    """A decode-bound training script with two workers, past its start."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "120", "0", "2"]
    with tempfile.TemporaryDirectory(prefix="io") as short:  # a terminated job leaves its folder
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": short})
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 60
        while len(roles(child.pid).workers) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        yield child
        child.send_signal(signal.SIGTERM)
        child.wait(30)
        child.stdout.close()


def py_spies(above: int) -> list[int]:
    return [p.pid for p in descendants(above) if "py-spy" in " ".join(p.command)]


def test_a_live_job_gets_its_verdict_and_goes_on(job: subprocess.Popen[str]) -> None:
    found = attach(job.pid, 4.0, 25)
    (loader,) = found.run.loaders
    assert loader.settings is not None
    assert loader.settings.num_workers == 2
    roles_seen = {s.role: s for s in loader.stacks}
    worker = roles_seen["worker"]
    assert max(worker.stages, key=lambda s: worker.stages[s]) is Stage.DECODE
    assert next(h for h in worker.hottest if h.stage is Stage.DECODE).function == "Photos.decode"
    assert roles_seen["main"].stages.get(Stage.STEP, 0) < 0.3 * roles_seen["main"].samples
    assert {p.role for p in loader.processes} == {"main", "worker"}
    assert sum(p.cpu_s for p in loader.processes) > 0
    assert loader.load is not None
    assert job.poll() is None
    assert py_spies(os.getpid()) == []


def test_without_stacks_the_kernel_shows_all_processes_of_the_job(job: subprocess.Popen[str]) -> None:
    found = attach(next(iter(roles(job.pid).workers)), 1.0, stacks=False)
    assert [c.code for c in found.run.caveats] == ["attached-to-parent"]
    assert found.run.loaders[0].stacks == []
    assert sorted(p.role for p in found.run.loaders[0].processes) == ["main", "worker", "worker"]


def test_a_dump_tells_where_every_thread_stands(job: subprocess.Popen[str]) -> None:
    standing = where_stuck(job.pid)
    assert [s.role for s in standing][:3] == ["main", "worker", "worker"]
    assert all(s.rule for s in standing)


def test_a_killed_ioprobe_leaves_the_job_running_and_no_py_spy(job: subprocess.Popen[str], tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    code = "from ioprobe_cli.main import main; main()"
    command = [sys.executable, "-c", code, "attach", str(job.pid), "--duration", "60", "--rate", "5"]
    for how, expected in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 130)):
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not (spies := py_spies(child.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(how)
        assert child.wait(30) == expected
        while any(Path(f"/proc/{pid}").exists() for pid in spies) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [pid for pid in spies if Path(f"/proc/{pid}").exists()] == []
    assert job.poll() is None
    assert list(tmp_path.iterdir()) == []


def test_a_job_ends_as_it_would_after_ioprobe_was_killed_beside_it() -> None:
    script = subprocess.Popen([sys.executable, str(SCRIPT), "4", "0", "1"], stdout=subprocess.PIPE, text=True)
    assert script.stdout is not None
    assert script.stdout.readline() == "ready\n"
    command = [sys.executable, "-m", "ioprobe_cli", "attach", str(script.pid), "--duration", "60", "-q"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not py_spies(child.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    child.kill()
    child.wait(10)
    assert script.stdout.read().startswith("stall ")
    script.stdout.close()
    assert script.wait(30) == 0


def test_the_command_prints_the_report_of_a_live_job(
    job: subprocess.Popen[str], capfd: pytest.CaptureFixture[str]
) -> None:
    from ioprobe_cli.main import run

    arguments = ["attach", str(job.pid), "--duration", "2", "--rate", "25", "--format", "json", "--explain", "-q"]
    assert run(arguments) == 0
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert (report["kind"], report["diagnosis"]["verdict"]) == ("attach", "data-bound")
    assert report["settings"]["num_workers"] == 2
    assert "pillow" in err or "decode call" in err
    assert run(["attach", str(job.pid), "--dump", "--format", "json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert {"main", "worker"} <= {row["role"] for row in rows}


def test_the_command_says_in_one_line_what_is_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    from ioprobe_cli.main import run

    assert run(["attach", "4194303"]) == 2
    assert run(["attach", str(os.getpid()), "--duration", "10ms"]) == 2
    assert run(["attach", str(os.getpid()), "--dump", "--no-stacks"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert [line for line in err.splitlines() if line.startswith("Error")] == [
        "Error: there is no process 4194303",
        "Error: --duration 10ms is too short",
        "Error: --dump prints stacks, --no-stacks forbids them",
    ]
