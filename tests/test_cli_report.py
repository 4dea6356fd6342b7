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
from ioprobe.run import (
    Host,
    LoaderRun,
    LoaderSettings,
    MainBatches,
    Run,
    Workload,
    dumps,
    loads,
)
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
    for text, told in (
        ('{"schema": 1, "kind"', "is cut off"),
        ('{"schema": 1; "kind"', "cannot read run file"),
        ("", "is empty"),
    ):
        (tmp_path / "run.json").write_text(text)
        assert run(["report", str(tmp_path)]) == 2
        assert told in capsys.readouterr().err.splitlines()[0]


def _measured(usable_cores: float = 2.0, num_workers: int = 2, **columns: list[float]) -> bytes:
    rows = MainBatches(**{"call_s": [0.0, 1.0], "wait_s": [0.1, 0.1], "samples": [8, 8], "epoch": [0, 0]} | columns)
    loader = LoaderRun(coupled=True, settings=LoaderSettings(num_workers=num_workers), main=rows)
    host, created_at = Host(usable_cores=usable_cores), "2026-11-28T01:02:03Z"
    made = Run(kind="analyze", created_at=created_at, version="0.1.0", host=host, workload=Workload(), loaders=[loader])
    return dumps(made)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (_measured(wait_s=[0.1]), "columns differ in length - at `$.loaders[0].main`"),
        (_measured(samples=[]), "columns differ in length - at `$.loaders[0].main`"),
        (_measured(step_s=[0.1, 0.1, 0.1]), "columns differ in length - at `$.loaders[0].main`"),
        (_measured(call_s=[0.0, 1e300]), "1e+300 cannot be - at `$.loaders[0].main.call_s`"),
        (_measured(wait_s=[0.1, -5.0]), "-5 cannot be - at `$.loaders[0].main.wait_s`"),
        (_measured(num_workers=10**15), "1e+15 cannot be - at `$.loaders[0].settings.num_workers`"),
        (_measured(usable_cores=-1.0), "-1 cannot be - at `$.host.usable_cores`"),
    ],
)
def test_figures_that_nothing_measures_are_damage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, fault: str
) -> None:
    (tmp_path / "run.json").write_bytes(data)
    for command in ("report", "predict"):
        assert run([command, str(tmp_path)]) == 2
        assert capsys.readouterr().err == (
            f"Error: run file '{tmp_path}/run.json' is damaged: {fault}\nHint: measure again\n"
        )


def test_a_step_that_failed_may_leave_its_row_unfinished() -> None:
    assert loads(_measured(step_s=[0.1])).loaders[0].main.step_s == [0.1]


def test_a_name_cannot_break_the_line_or_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "no\x1b[31m\nsuch"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == (
        "Error: cannot read run file 'no\\x1b[31m\\nsuch': No such file or directory"
    )


def test_credentials_of_a_url_in_a_path_s_place_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "http://user:hidden@host/run.json?token=hidden"]) == 2
    assert capsys.readouterr().err.startswith("Error: cannot read run file 'http://host/run.json': ")
