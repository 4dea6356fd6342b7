"""SIGINT, SIGTERM and SIGHUP in every phase: exit code 130, the part that was measured kept, and nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from ioprobe.check import pipelines
from ioprobe.probe.undisturbed import undisturbed
from ioprobe.run import load, write_atomic
from ioprobe_cli import progress as progress_module
from ioprobe_cli.main import cli, run

FAULTS = Path(__file__).parents[1] / "fixtures" / "pipelines" / "faults.py"
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder whose temporary files, shared memory and processes are looked after."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setattr("tempfile.tempdir", None)
    segments = {p.name for p in Path("/dev/shm").iterdir()}
    before = {p.pid for p in psutil.Process().children(recursive=True)}  # what other tests of this process began
    yield tmp_path
    for _ in range(100):  # the kernel takes a moment to bury what was killed
        left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before and not _expected(p)]
        if not left:
            break
        time.sleep(0.02)
    assert left == []
    assert [
        p for p in Path("/dev/shm").iterdir() if p.name not in segments and p.name.startswith(("torch_", "sem."))
    ] == []
    # torch makes its compiler's folder as soon as FLOPs are counted; it is the user's, and stays empty.
    assert [p for p in (tmp_path / "t").iterdir() if not p.name.startswith("torchinductor_")] == []
    assert [p for p in tmp_path.rglob("*") if p.name.endswith(".tmp") or p.name.startswith(".tmp-")] == []


def _expected(process: psutil.Process) -> bool:
    """Whether a child may stay: a dead one, or multiprocessing's own, which lives as long as this process."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE or any("resource_tracker" in x for x in process.cmdline())
    except psutil.NoSuchProcess:
        return True


def _signal_when(monkeypatch: pytest.MonkeyPatch, words: str, *numbers: int) -> None:
    """Send signals to this process once progress says these words."""
    sent: list[int] = []

    def watch(self: object, text: str, done_s: float, of_s: float) -> None:
        if words in text and not sent:
            sent.extend(numbers)
            for number in numbers:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(progress_module.Progress, "__call__", watch)


@pytest.mark.parametrize(
    ("words", "number", "kept"),
    [
        ("starting", TERM, False),
        ("coupled", HUP, False),
        ("the step alone", INT, True),
        ("the loader alone", TERM, True),
        ("diagnosing", HUP, True),
    ],
)
def test_an_ending_in_any_phase_of_an_analysis_is_130_and_leaves_nothing(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    number: int,
    kept: bool,
) -> None:
    _signal_when(monkeypatch, words, number)
    code = run(["analyze", f"{FAULTS}:healthy", "--step", f"{FAULTS}:step", "--seconds", "3", "-o", "out"])
    said = capsys.readouterr().err
    assert (code, "Interrupted" in said) == (130, True)
    if words == "diagnosing":
        assert "kept in 'out/run.json'" in said
    if kept:
        saved = load("out")
        assert saved.loaders
        assert saved.complete == (words == "diagnosing")
    assert signal.getsignal(TERM) == signal.SIG_DFL


def test_an_ending_while_storage_is_measured_for_an_analysis_keeps_the_loop(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["synth", "ds", "--samples", "64", "--image-size", "32", "--shard-size", "16", "--quiet"]) == 0
    _signal_when(monkeypatch, "storage", HUP)
    assert run(["analyze", "ds", "--step-ms", "2", "--num-workers", "1", "--seconds", "3", "-o", "out"]) == 130
    assert load("out").loop() is not None
    assert not load("out").complete


@pytest.mark.parametrize("number", [INT, TERM, HUP])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_ending_of_synth_leaves_whole_shards_only(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int, workers: str
) -> None:
    _signal_when(monkeypatch, "writing webdataset: 2 of", number)
    words = ["synth", "ds", "--samples", "400", "--image-size", "32", "--shard-size", "10", "--workers", workers]
    assert run(words) == 130
    names = {p.name for p in (place / "ds").iterdir()}
    assert 2 <= len([name for name in names if name.startswith("shard-")]) < 40


@pytest.mark.parametrize("number", [TERM, HUP])
def test_an_ending_while_the_built_in_data_is_written_leaves_no_run_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _signal_when(monkeypatch, "writing a small dataset", number)
    assert run(["analyze", "--seconds", "3"]) == 130
    assert [p.name for p in (place / "ioprobe-runs").iterdir() if not p.name.startswith(".")] == []


@pytest.mark.parametrize(
    "words",
    [["tune", f"{FAULTS}:healthy", "--step-ms", "1", "--budget", "5"],
     ["step", f"{FAULTS}:healthy", "--step", f"{FAULTS}:step", "--seconds", "2"],
     ["storage", "large.bin", "--block-size", "4k", "--seconds", "2"]],
    ids=lambda words: words[0],
)  # fmt: skip
@pytest.mark.parametrize("number", [INT, TERM, HUP])
def test_other_measuring_commands_end_alike(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], number: int
) -> None:
    (place / "large.bin").write_bytes(os.urandom(1 << 20))
    _signal_when(monkeypatch, "", number)
    assert run(words) == 130
    assert list(place.rglob("run.json")) == []


def test_an_ending_of_tune_keeps_what_was_measured(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _signal_when(monkeypatch, "the loader alone", INT)
    assert run(["tune", f"{FAULTS}:healthy", "--step-ms", "1", "--budget", "8", "-o", "out"]) == 130
    kept = load(place / "out")
    assert not kept.complete
    assert [m.coupled for m in kept.loaders] == [True]
    assert f"is in {Path('out') / 'run.json'}" in capsys.readouterr().err


CHECKED = f"""
[host]
cores = 2
[pipelines.first]
target = "{FAULTS}:healthy"
step = "{FAULTS}:step"
[pipelines.second]
target = "ds"
[budgets]
stall_share = 0.99
"""


@pytest.mark.parametrize("number", [INT, TERM, HUP])
@pytest.mark.parametrize(
    ("options", "words", "after_s"),
    [
        ([], "first: building the loader", 0.0),
        ([], "first: building the loader", 0.5),
        (["--load"], "second: listing", 0.0),
        (["--load"], "second: listing", 0.05),
        (["--measure", "6"], "first: measuring", 0.0),
        (["--measure", "6"], "first: measuring", 1.0),
        (["--measure", "6"], "first: measuring", 4.0),
    ],
    ids=["building", "child-builds", "listing", "child-lists", "measuring", "child-starts", "child-measures"],
)
def test_an_ending_of_a_check_judges_nothing(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
    after_s: float,
    number: int,
) -> None:
    assert run(["synth", "ds", "--samples", "64", "--image-size", "32", "--shard-size", "16", "--quiet"]) == 0
    (place / "ioprobe.toml").write_text(CHECKED)
    capsys.readouterr()
    timers: list[threading.Timer] = []
    check = pipelines.check

    def watched(request: pipelines.CheckRequest, *, progress: pipelines.Progress) -> pipelines.CheckReport:
        def say(text: str) -> None:
            progress(text)
            if text.startswith(words) and not after_s:
                os.kill(os.getpid(), number)
            elif text.startswith(words):
                timers.append(threading.Timer(after_s, os.kill, (os.getpid(), number)))
                timers[-1].start()

        return check(request, progress=say)

    monkeypatch.setattr(pipelines, "check", watched)
    code = run(["check", *options, "--output-file", "report.txt"])
    for timer in timers:
        timer.cancel()
        timer.join()
    said = capsys.readouterr()
    assert (code, said.out, "Interrupted" in said.err) == (130, "", True)
    assert not (place / "report.txt").exists()
    assert signal.getsignal(TERM) == signal.SIG_DFL


def test_two_signals_at_once_are_one_ending(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As timeout sends them, to the process and to its group.
    _signal_when(monkeypatch, "coupled", TERM, TERM, HUP)
    assert run(["loader", f"{FAULTS}:healthy", "--seconds", "3"]) in (0, 130)
    _signal_when(monkeypatch, "the loader alone", TERM, TERM, HUP)
    assert run(["loader", f"{FAULTS}:healthy", "--seconds", "3", "-o", "out"]) == 130
    assert not load("out").complete


def test_a_signal_that_the_caller_ignores_stays_ignored(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(HUP, signal.SIG_IGN)  # nohup
    try:
        _signal_when(monkeypatch, "writing webdataset", HUP)
        assert run(["synth", "ds", "--samples", "8", "--image-size", "16", "--quiet"]) == 0
    finally:
        signal.signal(HUP, before)


def test_a_signal_while_cleaning_up_comes_after_it() -> None:
    done = []

    def clean() -> None:
        with undisturbed():
            os.kill(os.getpid(), INT)
            done.append("cleaned")

    with pytest.raises(KeyboardInterrupt):
        clean()
    assert done == ["cleaned"]
    assert signal.getsignal(INT) is signal.default_int_handler


def test_outside_the_main_thread_no_handler_is_touched() -> None:
    seen: list[int] = []

    def inside() -> None:
        with undisturbed():
            seen.append(CliRunner().invoke(cli, ["--version"]).exit_code)
        seen.append(run(["--version"]))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [0, 0]


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "a", b"old")

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "a", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


def test_exit_codes_of_endings_are_told() -> None:
    assert "130 interrupted (Ctrl-C, SIGTERM, SIGHUP)" in " ".join(CliRunner().invoke(cli, ["--help"]).output.split())


@pytest.mark.parametrize("number", [INT, TERM, HUP])
def test_an_ending_while_modules_are_imported_leaves_nothing(place: Path, number: int) -> None:
    code = (
        "import os, sys; from importlib.abc import MetaPathFinder\n"
        "class Finder(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == 'msgspec': os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from ioprobe_cli.main import main; main(['analyze', '--seconds', '3'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert [p for p in place.rglob("*") if p.is_file()] == []
