"""Where a report goes, and what decides its form."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import report_examples as examples
from run_makers import loader_run, run_of

from ioprobe.analysis.request import Request
from ioprobe.analysis.session import new_run
from ioprobe.errors import OutputError, UsageError
from ioprobe_cli import measuring, output


class Stdout(io.TextIOWrapper):
    def __init__(self, *, terminal: bool, encoding: str = "utf-8") -> None:
        self.kept = io.BytesIO()
        self.terminal = terminal
        super().__init__(self.kept, encoding=encoding, write_through=True)

    def isatty(self) -> bool:
        return self.terminal

    def said(self) -> bytes:
        self.flush()
        return self.kept.getvalue()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def emitted(
    monkeypatch: pytest.MonkeyPatch, format_: str = "text", *, terminal: bool = False, encoding: str = "utf-8"
) -> bytes:
    stdout = Stdout(terminal=terminal, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    output.emit(examples.data_bound(), format_)
    return stdout.said()


def test_a_pipe_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = emitted(monkeypatch).decode()
    assert text.startswith("DATA-BOUND  limited by decode\n")
    assert "\x1b" not in text
    assert "█" in text


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"\x1b[1;31mDATA-BOUND" in emitted(monkeypatch, terminal=True)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert b"\x1b" not in emitted(monkeypatch, terminal=True)


def test_colours_can_be_forced_into_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert b"\x1b[" in emitted(monkeypatch)


def test_a_stdout_that_knows_only_ascii_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    assert emitted(monkeypatch, encoding="ascii").isascii()


@pytest.mark.parametrize("format_", ["md", "html"])
def test_the_other_formats_are_utf_8_whatever_stdout_is(monkeypatch: pytest.MonkeyPatch, format_: str) -> None:
    assert "±" in emitted(monkeypatch, format_, encoding="ascii").decode("utf-8")


def test_json_on_stdout_is_one_object_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(emitted(monkeypatch, "json", terminal=True))["diagnosis"]["verdict"] == "data-bound"


def test_a_file_is_written_whole_and_stdout_stays_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    place = tmp_path / "report.txt"
    output.emit(examples.data_bound(), "text", output=place)
    assert place.read_text().startswith("DATA-BOUND  limited by decode\n")
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == [place]


def test_a_folder_that_is_missing_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write '.*none/report\.html': No such file or directory"):
        output.emit(examples.data_bound(), "html", output=tmp_path / "none" / "report.html")


def test_run_folders_are_new_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = [output.new_run_folder("analyze", "2026-11-28T01:02:03.456Z") for _ in range(3)]
    assert [str(folder) for folder in made] == [
        "ioprobe-runs/analyze-20261128-010203",
        "ioprobe-runs/analyze-20261128-010203-2",
        "ioprobe-runs/analyze-20261128-010203-3",
    ]
    assert all(folder.is_dir() for folder in made)


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    assert output.new_run_folder("analyze", "2026-11-28T01:02:03Z", tmp_path / "a" / "b") == tmp_path / "a" / "b"
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(OutputError, match="holds a run already"):
        output.new_run_folder("analyze", "2026-11-28T01:02:03Z", tmp_path)


def test_a_file_in_the_folders_place_is_one_clear_error(tmp_path: Path) -> None:
    place = tmp_path / "taken"
    place.write_text("")
    with pytest.raises(OutputError, match="cannot make the folder"):
        output.new_run_folder("analyze", "2026-11-28T01:02:03Z", place)


def test_two_commands_at_once_do_not_share_a_folder(tmp_path: Path) -> None:
    output.new_run_folder("analyze", "2026-11-28T01:02:03Z", tmp_path)
    with pytest.raises(OutputError, match="another ioprobe is about to write its run"):
        output.new_run_folder("analyze", "2026-11-28T01:02:03Z", tmp_path)


def _rules(stdout: int) -> subprocess.CompletedProcess[str]:
    code = "import sys; from ioprobe_cli.main import main; main(['rule'])"
    return subprocess.run([sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_a_reader_that_goes_away_is_no_verdict() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        ended = _rules(write)
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_stdout_is_one_clear_line() -> None:
    with open("/dev/full", "wb") as full:
        ended = _rules(full.fileno())
    assert (ended.returncode, ended.stderr) == (2, "Error: cannot write 'stdout': No space left on device\n")


def test_a_report_is_rendered_though_stdout_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not output.wants_color()
    output.emit(examples.data_bound())


def test_a_run_names_its_target_without_credentials() -> None:
    measured = new_run(Request(target="http://user:hidden@host/x.tar?token=hidden"))
    assert measured.workload.target == "http://host/x.tar"


@pytest.mark.parametrize("more", [{"seconds": float("inf")}, {"seconds": 1e308}, {"hang_s": float("nan")}])
def test_a_measurement_without_end_cannot_be_asked_for(more: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="cannot be meant"):
        Request(target="x", **more)


@pytest.mark.parametrize(("ended", "hint"), [("seconds", "raise --seconds"), ("exhausted", "give it more samples")])
def test_too_few_batches_are_told_with_what_helps(ended: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    few = loader_run([3.0], [])
    few.coupled, few.stopped_because = False, ended
    assert measuring.exit_code(run_of(few)) == 2
    error, said = capsys.readouterr().err.splitlines()
    assert error == "Error: the loader gave too few batches to be measured: 1"
    assert hint in said
