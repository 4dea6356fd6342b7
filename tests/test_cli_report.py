"""``ioprobe report RUN``."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import report_examples as examples
from click.testing import CliRunner

from ioprobe.diagnosis.types import Report
from ioprobe.run import Host, Run, Workload, dumps
from ioprobe_cli.main import cli, run


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run file, and an analysis that answers with a known report about it."""

    def report_from_run(measured: Run, *, run_path: str) -> Report:
        assert measured.kind == "analyze"
        base = examples.data_bound()
        return Report(**{name: getattr(base, name) for name in base.__struct_fields__} | {"run": run_path})

    analysis = types.ModuleType("ioprobe.analysis")
    analysis.report_from_run = report_from_run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ioprobe.analysis", analysis)
    measured = Run(kind="analyze", created_at="2026-11-28T01:02:03Z", version="0.1.0", host=Host(), workload=Workload())
    (tmp_path / "run.json").write_bytes(dumps(measured))
    return tmp_path


def test_a_folder_stands_for_the_run_in_it(saved: Path) -> None:
    result = CliRunner().invoke(cli, ["report", str(saved)])
    assert result.exit_code == 0
    assert result.stdout.startswith("DATA-BOUND  limited by decode\n")
    assert f"run file  {saved}/run.json\n" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("format_", "begins"), [("html", "<!doctype html>"), ("md", "### ioprobe: data-bound"), ("json", "{\n")]
)
def test_every_format_goes_to_stdout_or_to_a_file(saved: Path, format_: str, begins: str) -> None:
    printed = CliRunner().invoke(cli, ["report", str(saved), "--format", format_])
    assert printed.stdout.startswith(begins)
    written = CliRunner().invoke(cli, ["report", str(saved), "--format", format_, "--output", str(saved / "out")])
    assert written.stdout == ""
    assert (saved / "out").read_text() == printed.stdout


def test_json_names_the_run_file(saved: Path) -> None:
    result = CliRunner().invoke(cli, ["report", str(saved / "run.json"), "--format", "json"])
    assert json.loads(result.stdout)["run"] == str(saved / "run.json")


def test_a_run_that_is_not_there_is_no_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["report", str(tmp_path / "none.json")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"Error: cannot read run file '{tmp_path}/none.json': No such file or directory\n"
        "Hint: pass a run.json or the folder that holds it\n"
    )


def test_a_damaged_run_is_no_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1, "kind"')
    assert run(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("Error: cannot read run file")
