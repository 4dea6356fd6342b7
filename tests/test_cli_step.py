"""``ioprobe step``: a measured and a published step, and what cannot be measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ioprobe_cli.main import cli, run


def test_step_measures_a_real_module_and_keeps_its_run(tmp_path: Path) -> None:
    place = tmp_path / "real_step_here.py"
    place.write_text("import torch\ndef make_net(): return torch.nn.Linear(64, 8)\n")
    command = ["step", "--step", f"{place}:make_net", "--shape", "16,64", "--seconds", "0.2", "-q"]
    result = CliRunner().invoke(cli, [*command, "--format", "json", "-o", str(tmp_path / "kept")])
    assert result.exit_code == 0, result.stderr
    (first,) = json.loads(result.stdout)["rows"]
    assert (first["samples_per_step"], first["dtype"]) == (16, "float32")
    assert first["flops_per_step"] == 2 * (2 * 16 * 64 * 8)
    plan = CliRunner().invoke(cli, ["plan", str(tmp_path / "kept"), "-n", "2", "--format", "json"])
    assert plan.exit_code == 0, plan.stderr
    rate = first["samples_per_s"]["value"]
    assert json.loads(plan.stdout)["points"][0]["samples_per_s"] == pytest.approx(2 * rate)


def test_a_published_step_is_shown_with_its_source() -> None:
    result = CliRunner().invoke(cli, ["step", "--workload", "resnet50", "--accelerator", "h100"])
    assert result.exit_code == 0
    assert "224 ms at batch 400" in result.stdout
    assert "resnet50_h100.yaml" in result.stdout
    page = CliRunner().invoke(cli, ["step", "--workload", "resnet50", "--accelerator", "h100", "--format", "json"])
    assert json.loads(page.stdout)["step_s"] == 0.224


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no step was named"),
        (["--step", "x.py:make"], "a step needs a batch"),
        (["--step", "x.py:make", "--workload", "resnet50"], "excludes TARGET and --step"),
        (["--workload", "resnet50"], "belong together"),
        (["--workload", "resnet5", "--accelerator", "h100"], "unknown workload 'resnet5'"),
        (["--step", "no-such.py:make", "--shape", "2,2"], "no such file"),
        (["--step", "x.py:make", "--shape", "2,2", "--vary", "batch=1,2", "-o", "d"], "--output keeps one run"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_no_verdict(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["step", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err
