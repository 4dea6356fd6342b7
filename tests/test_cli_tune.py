"""``ioprobe tune``: the contract for scripts, what people read, and what goes into ioprobe.toml."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from made_tunings import at, tuning
from msgspec import structs

from ioprobe.analysis.apply import apply_settings
from ioprobe.config import load_config
from ioprobe.diagnosis.tuning import GridRow, gain_between, pooled
from ioprobe.errors import ConfigError
from ioprobe.report.tuning import render_markdown, render_text
from ioprobe.stats import Estimate
from ioprobe_cli.main import run as ioprobe


def test_the_seconds_of_other_commands_are_called_budget_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert ioprobe(["tune", "train.py:make_loader", "--seconds", "15"]) == 2
    assert "--budget" in capsys.readouterr().err.splitlines()[-1]


WAITING = Path(__file__).parents[1] / "fixtures" / "pipelines" / "waiting.py"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], Path]:
    """One real run: a loader that waits 32 ms a batch, against a step of 5 ms."""
    folder = tmp_path_factory.mktemp("tune")
    printed = folder / "out.json"
    import contextlib

    with open(printed, "w") as file, contextlib.redirect_stdout(file):
        words = f"tune {WAITING}:make_loader --step-ms 5 --budget 8 --max-workers 6 --format json --quiet"
        code = ioprobe([*words.split(), "--output", str(folder / "run")])
    return code, json.loads(printed.read_text()), folder


def test_the_contract_for_scripts_holds(tuned: tuple[int, dict[str, Any], Path]) -> None:
    code, found, folder = tuned
    assert code == 0
    assert {"current", "recommended", "candidates", "spent_s"} <= set(found)
    assert {"settings", "predicted", "verified", "reason"} <= set(found["recommended"])
    assert found["current"]["settings"]["num_workers"] == 1
    assert found["run"] == str(folder / "run" / "run.json")
    assert (folder / "run" / "run.json").exists()
    assert found["spent_s"] > 0


@pytest.mark.parametrize("format_", ["text", "md", "json"])
def test_a_saved_answer_is_shown_again(
    tuned: tuple[int, dict[str, Any], Path], format_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found, folder = tuned
    assert ioprobe(["report", str(folder / "run"), "--format", format_]) == 0
    again = capsys.readouterr().out
    assert ioprobe(["report", str(folder / "run"), "--format", format_, "-o", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again").read_text() == again
    assert not capsys.readouterr().out
    if format_ == "json":
        assert json.loads(again) == found
    else:
        assert f"num_workers={found['recommended']['settings']['num_workers']}" in again.splitlines()[0]


def test_the_page_of_a_tuned_loader_is_that_of_its_loop(
    tuned: tuple[int, dict[str, Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ioprobe(["report", str(tuned[2] / "run"), "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_a_loader_that_waits_gets_more_workers_verified_by_a_real_run(
    tuned: tuple[int, dict[str, Any], Path],
) -> None:
    pick = tuned[1]["recommended"]
    # 32 ms a batch and a step of 5 ms ask for about six workers; the point is that one is far too few.
    assert pick["action"] == "change"
    assert 3 <= pick["settings"]["num_workers"] <= 6
    assert pick["verified"]["value"] > 0.5
    assert pick["predicted"]["samples_per_s"]["value"] > tuned[1]["current"]["samples_per_s"]["value"]


def test_a_failing_factory_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ioprobe(["tune", f"{WAITING}:make_failing", "--output", str(tmp_path / "run"), "--quiet"]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "the dataset is not there" in seen.err


def test_a_budget_below_the_least_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert ioprobe(["tune", "x.py:f", "--budget", "1"]) == 2
    assert "--budget" in capsys.readouterr().err


def test_people_read_pick_proof_and_what_else_would_help() -> None:
    text = render_text(tuning(), width=100)
    assert text.splitlines()[0] == "CHANGE  num_workers=4, prefetch_factor=2, persistent_workers=True"
    assert "verified by real runs in turn with the present setting: +298.0% (+290.0 to +306.0%)" in text
    assert "storage twice as fast: +80%" in text
    assert "spent 12.0 s, 3 settings run" in text


def test_every_setting_that_was_run_is_shown_and_each_candidate_once_best_first() -> None:
    tried = at(2, 300.0, measured=Estimate(290.0, 280.0, 300.0, 40))
    candidates = [at(4, 400.0), at(8, 350.0), tried, at(3, 250.0), at(8, 200.0), at(1, 100.0)]
    lines = render_text(structs.replace(tuning(), candidates=candidates), width=100).splitlines()
    begin = next(k for k, line in enumerate(lines) if line.startswith("Candidates"))
    assert [line.split()[0] for line in lines[:begin] if "num_workers=" in line and "prefetch" in line][1:] == [
        "now",
        "pick",
        "tried",
    ]
    assert [int(line.split()[0]) for line in lines[begin + 2 : begin + 7]] == [4, 8, 2, 3, 1]


def test_a_grid_is_the_table_that_people_make_by_hand() -> None:
    grid = [
        GridRow(
            settings={"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True},
            samples_per_s=[98.0, 97.0, 101.0],
            cold_samples_per_s=40.0,
            stall_share=0.5,
        ),
        GridRow(
            settings={"num_workers": 4, "prefetch_factor": 2, "persistent_workers": True},
            samples_per_s=[390.0, 380.0, 401.0],
            cold_samples_per_s=160.0,
            stall_share=0.02,
        ),
    ]
    assert render_markdown(tuning(grid=grid)).splitlines()[-4:] == [
        "| num_workers | prefetch_factor | warm samples/s | cold samples/s | stall share |  |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 1 | 2 | 98 [97-101] | 40 | 50.0% |  |",
        "| 4 | 2 | 390 [380-401] | 160 | 2.0% | pick |",
    ]


def test_gains_are_ratios_of_pooled_rates_with_the_spread_between_runs() -> None:
    old = [Estimate(100.0, 99.0, 101.0, 50), Estimate(102.0, 101.0, 103.0, 50)]
    new = [Estimate(150.0, 148.0, 152.0, 50), Estimate(153.0, 151.0, 155.0, 50)]
    gain = gain_between(new, old)
    assert gain is not None
    assert gain.value == pytest.approx(0.5)
    assert 0.4 < gain.low < 0.5 < gain.high < 0.6
    assert pooled([]) is None
    assert gain_between(new, []) is None


def test_apply_makes_the_file_where_there_is_none(tmp_path: Path) -> None:
    apply_settings({"num_workers": 4, "persistent_workers": True}, "train.py:make_loader", folder=tmp_path)
    pipeline = load_config(tmp_path / "ioprobe.toml").pipelines["train"]
    assert (pipeline.target, pipeline.num_workers, pipeline.persistent_workers) == ("train.py:make_loader", 4, True)


def test_apply_changes_the_keys_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ioprobe.toml"
    path.write_text(
        "# ours\n[pipelines.val]\nnum_workers = 1\n\n[pipelines.big]  # the real one\n"
        'target = "train.py:make_loader"\nnum_workers = 2  # guessed\nbatch_size = 8\n'
    )
    place = apply_settings({"num_workers": 6, "prefetch_factor": 4}, "train.py:make_loader", folder=tmp_path)
    assert place == f"{path} [pipelines.big]"
    assert path.read_text() == (
        "# ours\n[pipelines.val]\nnum_workers = 1\n\n[pipelines.big]  # the real one\nprefetch_factor = 4\n"
        'target = "train.py:make_loader"\nnum_workers = 6  # guessed\nbatch_size = 8\n'
    )


def test_apply_refuses_where_two_pipelines_could_be_meant(tmp_path: Path) -> None:
    path = tmp_path / "ioprobe.toml"
    path.write_text('[pipelines.a]\ntarget = "t.py:f"\n[pipelines.b]\ntarget = "t.py:f"\n')
    before = path.read_text()
    with pytest.raises(ConfigError, match="pipelines a, b have the target"):
        apply_settings({"num_workers": 6}, "t.py:f", folder=tmp_path)
    assert path.read_text() == before


def test_a_loader_without_settings_cannot_be_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text("def batches():\n    while True:\n        yield [1, 2]\n")
    assert ioprobe(["tune", f"{tmp_path / 'own.py'}:batches", "--budget", "5", "-q", "-o", str(tmp_path / "out")]) == 2
    assert "cannot tune: the loader is no DataLoader" in capsys.readouterr().err


def test_an_answer_that_is_no_file_is_not_waited_for(
    tuned: tuple[int, dict[str, Any], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "tuning.json")
    (tmp_path / "run.json").write_bytes((tuned[2] / "run" / "run.json").read_bytes())
    assert ioprobe(["report", str(tmp_path)]) == 2
    assert "is no file" in capsys.readouterr().err
