"""Reports of check: formats that machines read, judged by others' readers; text exact; hostile names harmless."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ioprobe.check.configs import merged
from ioprobe.check.pipelines import CheckRequest, check
from ioprobe.config import load_config, parse_config
from ioprobe.diagnosis.check import CheckReport
from ioprobe.report import github, junit, sarif
from ioprobe.report.check import render_json, render_markdown, render_text

ROOT = Path(__file__).parents[1]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> CheckReport:
    monkeypatch.chdir(ROOT)
    files = ["fixtures/configs/project.toml", *sorted(map(str, Path("fixtures/configs/bad").glob("*.toml")))]
    return merged([check(CheckRequest(config=load_config(file), load=False)) for file in files])


@pytest.fixture
def hostile() -> CheckReport:
    name = json.dumps('x</testcase>|"\x1b[31m<b>,:%\n`')
    return check(CheckRequest(config=parse_config(f"[pipelines.{name}]\nnum_workers = 0\nprefetch_factor = 2")))


def test_the_configs_give_each_code_exactly_where_expected(report: CheckReport) -> None:
    found = "".join(
        f"{o.file.removeprefix('fixtures/configs/')}:{o.line}:{o.column} {o.name} [{o.pipeline}]\n"
        for o in report.outcomes
        if o.status == "failed"
    )
    assert found == (ROOT / "fixtures/configs/expected.txt").read_text()


def test_sarif_is_accepted_by_another_implementation(report: CheckReport) -> None:
    model = pytest.importorskip("sarif_pydantic")
    log = model.Sarif.model_validate_json(sarif.render(report))
    (run,) = log.runs
    assert len(run.results) == report.count("failed") + len(report.ignored)
    codes = [rule.id for rule in run.tool.driver.rules]
    assert all(codes[result.rule_index] == result.rule_id for result in run.results)
    raw = json.loads(sarif.render(report))["runs"][0]["results"]
    reasons = [result["suppressions"][0]["justification"] for result in raw if "suppressions" in result]
    assert reasons == [ignored.reason for ignored in report.ignored]


def test_sarif_points_at_the_line_and_marks_levels(report: CheckReport) -> None:
    results = json.loads(sarif.render(report))["runs"][0]["results"]
    (first,) = [r for r in results if r["ruleId"] == "IO201"]
    assert first["level"] == "error"
    location = first["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "fixtures/configs/bad/IO201.toml"}
    assert location["region"] == {"startLine": 12, "startColumn": 1}


def test_junit_is_read_by_another_implementation_with_the_same_counts(report: CheckReport) -> None:
    junitparser = pytest.importorskip("junitparser")
    suites = junitparser.JUnitXml.fromstring(junit.render(report).encode())
    assert len(list(suites)) == len(report.pipelines)
    assert suites.tests == len(report.outcomes) + len(report.ignored)
    assert suites.failures == report.count("failed")
    assert suites.skipped == report.count("abstained") + len(report.ignored)
    cases = [case for suite in suites for case in suite]
    assert len(cases) == suites.tests


def test_hostile_names_stay_inside_every_format(hostile: CheckReport) -> None:
    junitparser = pytest.importorskip("junitparser")
    suites = junitparser.JUnitXml.fromstring(junit.render(hostile).encode())
    assert suites.failures == hostile.count("failed") > 0
    assert json.loads(sarif.render(hostile))["runs"][0]["results"]
    for text in (render_text(hostile), render_markdown(hostile)):
        assert "\x1b" not in text
    assert "<b>" not in render_markdown(hostile)
    tables = [line for line in render_markdown(hostile).splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {6, 4}
    for line in github.render(hostile).splitlines():
        assert line.startswith("::")


def test_annotations_carry_file_line_and_fix(report: CheckReport) -> None:
    lines = github.render(report).splitlines()
    assert (
        "::error file=fixtures/configs/bad/IO104.toml,line=12,col=1,title=IO104 prefetch-too-shallow::train: "
        "prefetch_factor = 1: each of 8 workers has one batch ahead, any pause stalls the step"
        "%0AFix: set prefetch_factor = 2 or more, enough to cover the longest pause"
    ) in lines
    assert lines[-1].startswith("::notice title=ioprobe check::34 pipelines: ")


def test_text_is_what_compilers_print() -> None:
    config = parse_config("[host]\ncores = 4\n[pipelines.train]\nnum_workers = 0\nprefetch_factor = 2", "ioprobe.toml")
    report = check(CheckRequest(config=config, select=("IO10",)))
    assert render_text(report) == (
        "ioprobe.toml:4:1: IO102 no-workers [train]: num_workers = 0: nothing overlaps, every step waits for its whole "
        "batch\n"
        "    fix: set num_workers = 1 or more, with persistent_workers = true\n"
        "ioprobe.toml:5:1: IO105 settings-without-workers [train]: prefetch_factor needs workers, but num_workers = 0: "
        "torch raises ValueError\n"
        "    fix: set num_workers = 1 or more, or drop prefetch_factor\n"
        "\n"
        "note: 1 rule or budget abstained for want of facts: sampler_ms (1x); --verbose lists them\n"
        "1 pipeline: 2 failed, 0 undecided, 5 passed, 1 abstained\n"
    )


def test_markdown_has_a_row_per_problem(report: CheckReport) -> None:
    text = render_markdown(report)
    assert text.startswith("### ioprobe check: failed\n")
    assert sum(line.startswith("| ") and "**IO" in line for line in text.splitlines()) == report.count("failed")


def test_json_is_the_whole_report(report: CheckReport) -> None:
    data = json.loads(render_json(report))
    assert (data["schema"], data["kind"]) == (1, "check")
    assert len(data["outcomes"]) == len(report.outcomes)
