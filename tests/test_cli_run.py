"""``ioprobe run``: the job's own output first, then the report; the job's own exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ioprobe.run import load
from ioprobe_cli.main import run

JOB = """
import torch
from torch.utils.data import DataLoader
print("the job's own line", flush=True)
weight = torch.zeros(1, requires_grad=True)
for batch in DataLoader([float(k) for k in range(200)], batch_size=4):
    (weight * batch.float().mean()).sum().backward()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_report_follows_the_jobs_own_output(here: Path) -> None:
    (here / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "ioprobe_cli", "run", "--format", "json", "-o", "out", "--", sys.executable]
    ended = subprocess.run([*command, "job.py"], capture_output=True, text=True, check=True)
    first, _, rest = ended.stdout.partition("\n")
    assert first == "the job's own line"
    report = json.loads(rest)
    assert report["kind"] == "run"
    assert report["target"].endswith("job.py")
    assert report["run"] == str(Path("out") / "run.json")
    assert len(load("out").loaders[-1].main.call_s) >= 49
    assert (here / "out/report.html").exists()


def test_quiet_puts_the_report_into_the_folder_only(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "-q", "--format", "json", "-o", "out", "--", "echo", "hello"]) == 0
    streams = capfd.readouterr()
    assert streams.out == "hello\n"
    assert streams.err == ""
    assert json.loads((here / "out/report.json").read_text())["kind"] == "run"


def test_a_job_that_prints_nothing_leaves_stdout_to_the_report(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--format", "json", "-o", "out", "--", "true"]) == 0
    assert json.loads(capfd.readouterr().out)["kind"] == "run"


def test_the_figures_go_to_a_file_while_the_job_runs_and_its_totals_stay(here: Path) -> None:
    (here / "job.py").write_text(JOB)
    assert run(["run", "-q", "-o", "out", "--metrics-file", "job.prom", "--", sys.executable, "job.py"]) == 0
    assert 'ioprobe_steps_total{loader="train",rank="0"} 50\n' in (here / "job.prom").read_text()
    assert load("out").caveats == []


def test_the_exit_code_is_the_jobs_own_and_128_more_for_a_signal(here: Path) -> None:
    assert run(["run", "-q", "--", "sh", "-c", "exit 7"]) == 7
    assert run(["run", "-q", "--", "sh", "-c", "kill -KILL $$"]) == 137
    assert len(list((here / "ioprobe-runs").iterdir())) == 2


def test_options_after_the_command_are_the_jobs(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "-q", "-o", "out", "echo", "--steps", "-q"]) == 0
    assert capfd.readouterr().out == "--steps -q\n"


def test_phases_that_disturb_say_so(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(["run", "--phases", "observe,cached", "-o", "out", "--", "true"])
    assert "disturb training" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--phases", "cached", "--", "true"], "the phases lack 'observe'"),
        (["--phases", "observe,x", "--", "true"], "no such phase 'x'"),
        (["--steps", "0", "--", "true"], "--steps"),
        (["--"], "Missing argument"),
        (["--", "no-such-program"], "cannot start 'no-such-program'"),
        (["--metrics-file", "none/job.prom", "--", "touch", "started"], "cannot write 'none/job.prom'"),
    ],
)
def test_what_cannot_be_done_leaves_no_folder(
    here: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["run", *arguments]) == 2
    streams = capfd.readouterr()
    assert said in streams.err
    assert streams.out == ""
    assert not list(here.glob("ioprobe-runs/*"))
    assert not (here / "started").exists()
