"""``ioprobe profile``: exit codes, stdout, stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ioprobe.run import load
from ioprobe_cli.main import run

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROFILES, TRACES = FIXTURES / "profiles", FIXTURES / "traces"


def test_traces_of_two_ranks_print_a_report_with_shares_and_the_late_rank(capfd: pytest.CaptureFixture[str]) -> None:
    files = [str(TRACES / f"gloo_rank{rank}.json.gz") for rank in (0, 1)]
    assert run(["profile", *files, "--format", "json"]) == 0
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert err == ""
    assert list(report["partition"]) == ["compute", "communication", "transfer", "data_stall", "other_idle"]
    assert sum(report["partition"].values()) == pytest.approx(1.0)
    assert report["diagnosis"]["verdict"] == "data-bound"
    assert [(r["rank"], r["late"]) for r in report["ranks"]] == [(0, False), (1, True)]


def test_text_is_the_default_and_explain_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", str(PROFILES / "decode.raw.txt"), "--explain"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("DATA-BOUND")
    assert "limited by decode" in out.splitlines()[0]
    assert err.splitlines()[0].split() == ["role", "stage", "stacks", "rule", "place;", "innermost", "frame"]
    assert any("pillow" in line and "Photos.decode" in line for line in err.splitlines())


def test_the_run_file_is_kept_where_it_is_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "here"
    assert run(["profile", str(PROFILES / "decode.raw.txt"), "--output", str(folder), "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["run"] == str(folder / "run.json")
    kept = load(folder)
    assert (kept.kind, kept.loaders[0].stacks[0].role, kept.host.hostname) == ("profile", "main", "")


def test_a_trace_and_stacks_of_one_job_are_judged_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [str(TRACES / "gloo_rank1.json.gz"), str(PROFILES / "decode.raw.txt")]
    assert run(["profile", *files, "--format", "json"]) == 0
    diagnosis = json.loads(capfd.readouterr().out)["diagnosis"]
    assert (diagnosis["verdict"], diagnosis["limiting_stage"]) == ("data-bound", "decode")


def test_rules_of_the_users_config_are_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "ioprobe.toml"
    config.write_text('[[attach.rules]]\nstage = "collate"\nfunction = "Photos.*"\n')
    assert run(["profile", str(PROFILES / "decode.raw.txt"), "--config", str(config), "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["diagnosis"]["limiting_stage"] == "collate"


@pytest.mark.parametrize("content", [b"", b"no recording\nat all\n", b'{"traceEvents": [', b"\0\1\2"])
def test_a_file_that_cannot_be_read_is_one_line_and_exit_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert run(["profile", str(tmp_path / "x.json")]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["Error", "Hint"]


def test_no_file_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["profile"]) == 2
    assert "Missing argument 'FILES...'" in capfd.readouterr().err
