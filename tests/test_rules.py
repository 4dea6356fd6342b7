"""Each rule sees its bad fixture, at the line marked there, and is silent over the good one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ioprobe.check.pipelines import CheckRequest, check
from ioprobe.config import load_config, parse_config
from ioprobe.diagnosis.check import CheckReport
from ioprobe.diagnosis.rules import RULES, SECTIONS

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"


def judge(path: Path) -> CheckReport:
    return check(CheckRequest(config=load_config(path), load=False))


def found(report: CheckReport) -> set[tuple[str, int | None]]:
    return {(o.name, o.line) for o in report.outcomes if o.status == "failed"}


def expected(path: Path) -> set[tuple[str, int | None]]:
    lines = path.read_text().splitlines()
    return {(code, n) for n, line in enumerate(lines, 1) for code in re.findall(r"# expect: (IO\d+)", line)}


@pytest.mark.parametrize("code", sorted(RULES))
def test_a_rule_points_at_exactly_the_marked_line_of_its_bad_fixture(code: str) -> None:
    path = CONFIGS / "bad" / f"{code}.toml"
    marks = expected(path)
    assert {name for name, _ in marks} == {code}
    assert found(judge(path)) == marks


@pytest.mark.parametrize("code", sorted(RULES))
def test_no_rule_speaks_over_a_good_fixture_and_its_own_rule_passed(code: str) -> None:
    report = judge(CONFIGS / "good" / f"{code}.toml")
    assert found(report) == set()
    assert report.exit_code() == 0
    assert {o.status for o in report.outcomes if o.name == code} == {"passed"}


@pytest.mark.parametrize("code", sorted(RULES))
def test_every_finding_has_a_fix_and_every_rule_its_text(code: str) -> None:
    rule = RULES[code]
    assert set(rule.sections) == set(SECTIONS)
    assert rule.summary.endswith(".")
    for outcome in judge(CONFIGS / "bad" / f"{code}.toml").outcomes:
        if outcome.status == "failed":
            assert outcome.fix, outcome


def test_an_empty_pipeline_makes_rules_abstain_and_none_fail() -> None:
    report = check(CheckRequest(config=parse_config("[pipelines.train]"), load=False))
    assert report.count("failed") == 0
    assert report.count("abstained") >= 20
    assert all(o.text for o in report.outcomes if o.status == "abstained")
