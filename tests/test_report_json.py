"""The JSON contract for scripts."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
import report_examples as examples

from ioprobe.diagnosis.types import Diagnosis, Report, StallShare, Verdict
from ioprobe.report import json as report_json
from ioprobe.stats import Estimate


@pytest.mark.parametrize("name", examples.ALL)
def test_a_report_survives_the_way_through_json(name: str) -> None:
    report = examples.ALL[name]()
    assert msgspec.json.decode(report_json.render(report), type=Report) == report


def test_the_fields_that_scripts_read_are_where_the_contract_puts_them() -> None:
    data = json.loads(report_json.render(examples.data_bound()))
    diagnosis = data["diagnosis"]
    assert diagnosis["verdict"] == "data-bound"
    assert diagnosis["limiting_stage"] == "decode"
    assert diagnosis["stall_share"]["measured"] == {"value": 0.582, "low": 0.571, "high": 0.593, "n": 118}
    assert diagnosis["stall_share"]["predicted"]["value"] == 0.572
    assert [rung["stage"] for rung in diagnosis["ladder"]] == [
        "storage",
        "read",
        "decode",
        "collate",
        "transport",
        "loader",
        "step",
        "loop",
    ]
    assert diagnosis["ladder"][2]["samples_per_s"] == {"value": 219.0, "low": 214.62, "high": 223.38, "n": 40}
    assert diagnosis["ladder"][4]["samples_per_s"] is None
    assert data["advice"][0]["settings"] == {"num_workers": 6}
    assert {"code", "action", "settings", "gain", "verified"} <= data["advice"][0].keys()
    assert [caveat["code"] for caveat in data["caveats"]] == ["cache-warm", "few-batches"]
    assert data["run"] == "ioprobe-runs/analyze-20261128-010203/run.json"
    assert data["schema"] == 1


def test_what_was_not_measured_is_null() -> None:
    data = json.loads(report_json.render(examples.plain()))
    assert data["diagnosis"]["stall_share"] == {"measured": None, "predicted": None}
    assert data["diagnosis"]["limiting_stage"] is None
    assert data["run"] is None


def test_a_number_that_is_not_finite_is_null() -> None:
    endless = Estimate(math.inf, math.nan, -math.inf, 1)
    report = examples.report(
        Diagnosis(
            verdict=Verdict.UNDECIDED,
            limiting_stage=None,
            evidence="",
            stall_share=StallShare(measured=endless),
        ),
        metrics={"wait_p99_s": math.inf},
    )
    text = report_json.render(report)
    data = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["diagnosis"]["stall_share"]["measured"] == {"value": None, "low": None, "high": None, "n": 1}
    assert data["metrics"] == {"wait_p99_s": None}


def test_control_characters_are_escaped() -> None:
    text = report_json.render(examples.hostile())
    assert all(char.isprintable() or char in "\n\u202e" for char in text)
    assert text.endswith("}\n")
