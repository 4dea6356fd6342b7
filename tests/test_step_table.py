"""Tables of steps: what the figures mean, and how they are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ioprobe.diagnosis.step_table import StepRow, StepTable, caveats, figures
from ioprobe.report.step import as_object, render
from ioprobe.run import Failure, Host, StepRun
from ioprobe.stats import Estimate, exact

HOST = Host(hostname="h", cpu_model="Fake CPU", accelerators=["NVIDIA H100 80GB HBM3"])


def row(rate: float = 100.0, *, samples: int = 10, loader: float | None = None, **more: Any) -> StepRow:
    settings = more.pop("settings", {})
    step = StepRun(
        durations_s=[samples / rate] * 20, samples_per_step=samples, cpu_s=[samples / rate * 1.5] * 20, **more
    )
    known = None if loader is None else Estimate(loader, loader * 0.98, loader * 1.02, 50)
    return StepRow(settings=settings, step=step, loader_samples_per_s=known)


def table(*rows: StepRow, **more: Any) -> StepTable:
    fields: dict[str, Any] = {
        "source": "t.py:make",
        "created_at": "2026-11-28T00:00:00+00:00",
        "version": "1",
        "host": HOST,
    }
    return StepTable(rows=list(rows), **{**fields, **more})


def test_figures_are_work_over_time_with_latency_apart() -> None:
    step = StepRun(durations_s=[0.1] * 19 + [0.3], samples_per_step=4, tokens_per_step=400, cpu_s=[0.11] * 20)
    found = figures(StepRow(settings={}, step=step), HOST)
    assert found.steps_per_s is not None
    assert found.samples_per_s is not None
    assert found.tokens_per_s is not None
    assert found.steps_per_s.value == pytest.approx(20 / 2.2)
    assert found.samples_per_s.value == pytest.approx(80 / 2.2)
    assert found.tokens_per_s.value == pytest.approx(8000 / 2.2)
    assert found.latency_p50_s == pytest.approx(0.1)
    assert found.cores == pytest.approx(1.0)
    assert (found.utilization, found.binding) == (None, None)


def test_a_step_without_durations_has_no_figures() -> None:
    found = figures(StepRow(settings={}, step=StepRun(durations_s=[])), HOST)
    assert (found.samples_per_s, found.latency_p50_s, found.cores) == (None, None, None)


@pytest.mark.parametrize(("loader", "binding"), [(None, None), (50.0, "loader"), (200.0, "step"), (101.0, "either")])
def test_the_slower_of_step_and_loader_binds(loader: float | None, binding: str | None) -> None:
    assert figures(row(100.0, loader=loader), HOST).binding == binding


def test_mfu_is_that_of_the_device_the_step_ran_on() -> None:
    fast = figures(row(flops_per_step=989.5e12 * 0.04, dtype="bfloat16", device="cuda:0"), HOST)
    assert fast.utilization is not None
    assert fast.utilization.mfu == pytest.approx(0.4)
    slow = figures(row(flops_per_step=1e9, dtype="float32", device="cpu"), HOST)
    assert slow.utilization is not None
    assert (slow.utilization.mfu, slow.utilization.basis) == (None, "the dense peak of 'Fake CPU' is not known")


def test_precision_that_turns_the_job_data_bound_is_said() -> None:
    found = table(
        row(100.0, loader=150.0, settings={"precision": "fp32"}),
        row(200.0, loader=150.0, settings={"precision": "bf16"}),
    )
    (caveat,) = caveats(found)
    assert caveat.code == "turns-data-bound"
    assert "precision=bf16" in caveat.text
    assert caveats(table(row(100.0, loader=90.0), row(200.0, loader=90.0))) == []


def test_another_global_batch_carries_the_quality_warning() -> None:
    codes = [
        c.code
        for c in caveats(table(row(samples=8, settings={"batch": "8"}), row(samples=16, settings={"batch": "16"})))
    ]
    assert codes == ["global-batch"]
    (warning,) = caveats(table(row(samples=8), row(samples=16)))
    assert "a changed global batch changes training: learning rate and schedule need re-tuning" in warning.text
    accumulated = table(row(samples=8, settings={"accum": "1"}), row(samples=8, settings={"accum": "4"}))
    assert [c.code for c in caveats(accumulated)] == ["global-batch"]
    same = table(
        row(samples=8, settings={"batch": "8", "accum": "4"}), row(samples=32, settings={"batch": "32", "accum": "1"})
    )
    assert caveats(same) == []


def test_with_accumulation_steps_are_micro_steps_and_updates_are_counted_apart() -> None:
    counted = table(
        row(100.0, settings={"accum": "1"}, updates_per_step=1.0),
        row(100.0, settings={"accum": "4"}, updates_per_step=0.25),
    )
    found = [figures(r, HOST) for r in counted.rows]
    assert [f.steps_per_s and f.steps_per_s.value for f in found] == pytest.approx([10, 10])
    assert [f.updates_per_s and f.updates_per_s.value for f in found] == pytest.approx([10, 2.5])
    lines = render(counted, width=90).splitlines()
    assert lines[1].split()[:4] == ["step", "samples/s", "steps/s", "updates/s"]
    assert lines[3].split()[:5] == ["accum=4", "100", "±0%", "10", "2.5"]
    assert [c.code for c in caveats(counted)] == ["global-batch"]


def test_the_table_shows_what_is_known_and_leaves_out_what_is_not() -> None:
    text = render(
        table(row(100.0, loader=150.0, parts_s={"compute": 0.03, "communication": 0.07}, parts_steps=5)), width=90
    )
    assert text == (
        "STEP  t.py:make on Fake CPU\n"
        "    step  samples/s  steps/s     p50     p95  cores   loader  bound by\n"
        "as it is    100 ±0%       10  100 ms  100 ms    1.5  150 ±2%      step\n"
        "· compute 30.0 ms (30.0%), communication 70.0 ms (70.0%); from 5 traced steps\n"
        "· 20 steps after 0 of warm-up\n"
    )


def test_a_failed_step_is_shown_with_its_line_and_its_remedy() -> None:
    failure = Failure(phase="step", kind="exception", message="ValueError: bad", where="t.py:3", hint="mend it")
    text = render(table(StepRow(settings={}, step=StepRun(durations_s=[], failure=failure))))
    assert "✗ ValueError: bad" in text
    assert "t.py:3" in text
    assert "mend it" in text


def test_the_object_for_scripts_has_every_row() -> None:
    page = as_object(table(row(loader=150.0, settings={"batch": "10"}), row()))
    assert json.loads(json.dumps(page)) == page
    assert (page["schema"], page["kind"], len(page["rows"])) == (1, "step", 2)
    first = page["rows"][0]
    assert first["settings"] == {"batch": "10"}
    assert first["samples_per_s"]["value"] == pytest.approx(100)
    assert first["binding"] == "step"
    assert page["rows"][1]["loader_samples_per_s"] is None


def test_exact_estimates_have_no_spread() -> None:
    assert "±" not in render(
        table(StepRow(settings={}, step=StepRun(durations_s=[0.1]), loader_samples_per_s=exact(5.0)))
    )


def test_a_table_that_was_interrupted_before_its_first_row_says_so() -> None:
    assert [line.strip() for line in render(table(complete=False), unicode=False).splitlines() if line.strip()] == [
        "STEP  t.py:make on Fake CPU",
        "! Partial: it was interrupted.",
    ]
