"""``ioprobe analyze`` and ``ioprobe loader`` from the outside: exit codes, one clear line, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from live_processes import left_behind, measuring_child

from ioprobe.diagnosis.types import Verdict
from ioprobe.run import load

FAULTS = Path(__file__).parents[1] / "fixtures" / "pipelines" / "faults.py"
Result = subprocess.CompletedProcess[str]


def run(folder: Path, *args: str, timeout_s: float = 90.0) -> Result:
    """Run the command line in its own process, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "ioprobe_cli", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def analyze(folder: Path, name: str, *args: str) -> Result:
    return run(
        folder,
        "analyze",
        f"{FAULTS}:{name}",
        "--step",
        f"{FAULTS}:step",
        "--seconds",
        "3",
        "--no-verify",
        "--output",
        "out",
        *args,
    )


def test_json_goes_to_stdout_alone_and_holds_the_contract(tmp_path: Path) -> None:
    result = analyze(tmp_path, "prints_a_lot", "--format", "json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["diagnosis"]["verdict"] in {verdict.value for verdict in Verdict}
    assert {"value", "low", "high"} <= set(report["diagnosis"]["stall_share"]["measured"])
    assert {"stage", "samples_per_s"} <= set(report["diagnosis"]["ladder"][0])
    assert report["run"] == "out/run.json"
    assert load(tmp_path / "out").complete
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert "hello from the user's code" in (tmp_path / "out" / "target.log").read_text()
    assert "hello" not in result.stdout
    assert not left_behind(tmp_path)


def test_any_iterable_of_batches_is_measured(tmp_path: Path) -> None:
    result = analyze(tmp_path, "plain_list", "--format", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["diagnosis"]["verdict"] == "compute-bound"


def test_a_webloader_is_measured_alone_too(tmp_path: Path) -> None:
    result = analyze(tmp_path, "webloader", "--format", "json")
    report = json.loads(result.stdout)
    assert result.returncode == 0, result.stderr
    assert not report["failures"]
    assert report["metrics"]["loader_samples_per_s"] > 0


def test_a_factory_without_keywords_is_rebuilt_at_the_asked_settings(tmp_path: Path) -> None:
    result = run(
        tmp_path, "loader", f"{FAULTS}:without_keywords", "--num-workers", "1", "--seconds", "3", "--format", "json"
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["settings"]["num_workers"] == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "raised: KeyError"),
        ("returns_nothing", "returned nothing; expected a DataLoader"),
        ("no_such_function", "has no function 'no_such_function'"),
        ("empty", "delivered no batch at all"),
        ("sample_raises", "faults.py:"),
        ("worker_exits", "exited unexpectedly"),
    ],
)
def test_a_broken_loader_is_one_clear_line_and_exit_2(tmp_path: Path, name: str, says: str) -> None:
    result = analyze(tmp_path, name)
    assert result.returncode == 2, result.stdout + result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error:")]
    assert len(errors) == 1
    assert says in errors[0]
    assert "Traceback" not in result.stderr
    assert not left_behind(tmp_path)


def test_a_hanging_factory_is_ended_and_its_line_named(tmp_path: Path) -> None:
    result = analyze(tmp_path, "hangs", "--timeout", "5")
    assert result.returncode == 2
    assert "did not return within 5 s; it stands at" in result.stderr
    assert "faults.py:" in result.stderr
    assert not left_behind(tmp_path)


def test_a_worker_that_hangs_is_ended_and_reported(tmp_path: Path) -> None:
    result = analyze(tmp_path, "worker_hangs", "--timeout", "5")
    assert result.returncode == 2
    assert "no progress for 5 s; a worker stands still (" in result.stderr
    assert result.stderr.count("faults.py:") == 1
    assert not left_behind(tmp_path)


def test_a_step_that_was_given_is_named_where_the_loader_failed_before_it(tmp_path: Path) -> None:
    command = ["analyze", f"{FAULTS}:sample_raises", "--step-ms", "5", "--seconds", "3", "-o", "out"]
    assert run(tmp_path, *command).returncode == 2
    said = next(c.text for c in load(tmp_path / "out").caveats if c.code == "step-given")
    assert said.endswith("emulated, --step-ms 5")


@pytest.mark.parametrize(
    ("target", "error", "hint"),
    [
        ("gone.py:make", "(HERE/gone.py:1)", "python gone.py"),
        ("gone:make", "(HERE/gone.py:1)", "python -c 'import gone'"),
        ("gone.py", "no function of it is named", "gone.py:FUNCTION"),
    ],
)
def test_code_that_cannot_be_imported_is_told_with_its_place_and_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, error: str, hint: str
) -> None:
    monkeypatch.setenv("PWD", str(tmp_path))  # as a shell does; it is no password
    (tmp_path / "gone.py").write_text("import no_such_module_at_all\n")
    told = run(tmp_path, "analyze", target, "--seconds", "3", "-o", "out").stderr.splitlines()
    assert error.replace("HERE", str(tmp_path)) in told[0]
    assert told[1].startswith("Hint: ")
    assert told[1].endswith(hint)


def test_a_worker_that_is_killed_each_time_is_a_verdict_but_none_about_memory_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A short path: sockets live below it, and their names may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="io") as short:
        monkeypatch.setenv("TMPDIR", short)
        result = analyze(tmp_path, "worker_killed", "--format", "json")
        report = json.loads(result.stdout)
        found = report["diagnosis"]
        assert found["verdict"] == "misconfigured"
        assert found["evidence"].startswith("a process of the loader was killed in both of two runs: ")
        assert "the kernel ended none for want of memory" in found["evidence"]
        assert [a["code"] for a in report["advice"]] == ["IO201"]
        assert list(Path(short).iterdir()) == []


def test_a_worker_that_somebody_kills_once_costs_a_note_and_not_the_measurement(tmp_path: Path) -> None:
    result = analyze(tmp_path, "worker_killed_once", "--format", "json")
    report = json.loads(result.stdout)
    assert result.returncode == 0, result.stderr
    # On a busy host the figures may carry no verdict; the kill is no reason either way.
    assert report["diagnosis"]["verdict"] != "misconfigured"
    assert "kill" not in report["diagnosis"]["evidence"]
    (note,) = [c for c in report["caveats"] if c["code"] == "process-killed"]
    assert "measured again" in note["text"]
    assert {m.failure for m in load(tmp_path / "out").loaders} == {None}


def test_a_page_that_cannot_be_written_does_not_cost_the_report(tmp_path: Path) -> None:
    (tmp_path / "out" / "report.html").mkdir(parents=True)  # the rename onto a folder fails, as on a full disk
    result = run(tmp_path, "loader", f"{FAULTS}:healthy", "--seconds", "3", "-o", "out")
    assert result.returncode == 2
    assert "Ladder" in result.stdout
    assert "cannot write" in result.stderr
    assert load(tmp_path / "out").complete


def test_a_step_that_raises_is_named_as_the_step(tmp_path: Path) -> None:
    result = run(
        tmp_path, "analyze", f"{FAULTS}:healthy", "--step", f"{FAULTS}:step_raises", "--seconds", "3", "-o", "out"
    )
    assert result.returncode == 2
    assert "the step failed: RuntimeError: shapes do not match" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["analyze", "nowhere.py:make_loader"],
        ["analyze", "no_such_folder/*.tar"],
        ["analyze", f"{FAULTS}:healthy", "--seconds", "-3"],
        ["analyze", f"{FAULTS}:healthy", "--seconds", "nan"],
        ["analyze", f"{FAULTS}:healthy", "--step-ms", "-1"],
        ["analyze", f"{FAULTS}:healthy", "--step", "x.py:f", "--step-ms", "5"],
        ["analyze", f"{FAULTS}:healthy", "--workload", "resnet50"],
        ["analyze", f"{FAULTS}:healthy", "--batch-samples", "0"],
        ["analyze", f"{FAULTS}:healthy", "--set", "novalue"],
        ["loader", f"{FAULTS}:healthy", "--output", "/proc/nowhere"],
    ],
)
def test_bad_options_are_usage_errors_and_write_nothing(tmp_path: Path, args: list[str]) -> None:
    result = run(tmp_path, *args)
    assert result.returncode == 2, result.stdout
    assert "Error:" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.rglob("run.json"))


def test_ctrl_c_ends_within_two_seconds_and_keeps_a_partial_run(tmp_path: Path) -> None:
    process, child = _measuring(tmp_path)
    time.sleep(2.5)  # let the loop collect some batches
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    # Two seconds for ioprobe; what remains is slack for a machine that is busy with other tests.
    assert time.monotonic() - asked < 8
    saved = load(tmp_path / "out")
    assert not saved.complete
    assert saved.loaders
    assert len(saved.loaders[0].main.call_s) > 5
    assert not psutil.pid_exists(child)
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("pause_s", [0.0, 0.1, 0.4])
def test_ctrl_c_pressed_again_and_again_ends_as_cleanly(tmp_path: Path, pause_s: float) -> None:
    process, child = _measuring(tmp_path)
    for _ in range(4):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        time.sleep(pause_s)
    _, errors = process.communicate(timeout=20)
    # One that comes while the interpreter itself ends finds nobody who could answer it by 130.
    assert process.returncode in (130, -signal.SIGINT), errors
    assert "Traceback" not in errors
    assert not psutil.pid_exists(child)
    assert not left_behind(tmp_path)


def test_kill_9_of_ioprobe_takes_the_child_along_and_the_next_start_what_it_left(tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        [sys.executable, "-m", "ioprobe_cli", "analyze", f"{FAULTS}:healthy", "--step", f"{FAULTS}:step",
         "--seconds", "60", "--output", "out"],
        cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    child = _wait_for_measuring(process.pid)
    # What a run keeps there meanwhile (sockets of its workers) may be gone again by the time it is killed,
    # since a worker that notices cleans up; this file is there for certain.
    kept = [folder / "kept" for folder in temporary.glob("ioprobe-*")]
    assert kept
    for file in kept:
        file.touch()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    deadline = time.monotonic() + 15
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(child)
    assert all(file.exists() for file in kept)
    command = [sys.executable, "-m", "ioprobe_cli", "loader", f"{FAULTS}:healthy", "--seconds", "1", "-o", "again"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert [p for p in temporary.iterdir() if not p.name.startswith("torchinductor_")] == []


def test_a_long_temporary_folder_leaves_room_for_sockets(tmp_path: Path) -> None:
    temporary = tmp_path / ("t" * 100)
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "ioprobe_cli", "loader", f"{FAULTS}:healthy", "--seconds", "1", "--output", "out"],
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(temporary)}, capture_output=True, text=True, check=False,
        timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def _measuring(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Return an analysis of a minute that has its workers, and the pid of its measuring child."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ioprobe_cli", "analyze", f"{FAULTS}:healthy", "--step", f"{FAULTS}:step",
         "--seconds", "60", "--output", "out"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, _wait_for_measuring(process.pid)


def _wait_for_measuring(pid: int) -> int:
    """Wait until the measuring child has its workers; returns the child's pid."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        if child := measuring_child(pid, workers=2):
            return child
        time.sleep(0.1)
    raise AssertionError("the measurement did not begin")
