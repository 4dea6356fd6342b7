"""What a report says of FLOP/s, MFU and energy, and what it leaves unknown."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from made_runs import make_run

from ioprobe.analysis.declared import declare_flops
from ioprobe.analysis.reporting import report_from_run
from ioprobe.analysis.request import Request
from ioprobe.analysis.session import describe_step
from ioprobe.diagnosis.types import Report
from ioprobe.errors import UsageError
from ioprobe.report import html, markdown, terminal
from ioprobe.report import json as json_report
from ioprobe.run import Run, StepRun

H100 = "NVIDIA H100 80GB HBM3"
PEAK = 989.5e12
"""Dense bf16 peak of that product [FLOP/s]."""


def counted(**step: Any) -> Run:
    """A loop that waits a fifth of its time; steps of 40 ms with 40% of the peak, half as much again recomputed."""
    run = make_run(loop_wait_s=0.010, step_s=0.040, loader_cycle_s=0.050)
    run.host = msgspec.structs.replace(run.host, cpu_model="Fake CPU", accelerators=[H100])
    fields = {"device": "cuda:0", "dtype": "bfloat16", "flops_per_step": 0.4 * PEAK * 0.04}
    fields["executed_flops_per_step"] = 0.6 * PEAK * 0.04
    for name, value in {**fields, **step}.items():
        setattr(run.step, name, value)
    return run


def renderings(report: Report) -> list[str]:
    """As one line each: where they break is not the point here."""
    made = terminal.render(report, width=200), markdown.render(report), html.render(report)
    return [" ".join(text.split()) for text in made]


def test_mfu_and_hfu_are_in_every_report_with_their_peak_and_its_source() -> None:
    report = report_from_run(counted())
    assert report.metrics["mfu"] == pytest.approx(0.4)
    assert report.metrics["hfu"] == pytest.approx(0.6)
    assert report.metrics["mfu_in_loop_share"] == pytest.approx(0.32)  # of 50 ms, 40 ms are the step
    assert report.metrics["flops_per_s"] == pytest.approx(0.4 * PEAK)
    sentence = next(r for r in report.diagnosis.reasons if "MFU" in r)
    assert sentence.startswith(
        "the step alone does 396 TFLOP/s: MFU 40.0%, HFU 60.0% of the dense bfloat16 peak of h100-sxm5-80gb, "
        "989.5 TFLOP/s ("
    )
    for text in renderings(report):
        assert "MFU 40.0%" in text
        assert "32.0%" in text
    assert json.loads(json_report.render(report))["metrics"]["hfu"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ({"device": "cpu"}, "the dense peak of 'Fake CPU' is not known"),
        ({"dtype": None}, "the type in which the matrix products run is not known"),
        ({"emulated": True}, "the dense peak of 'an emulated accelerator' is not known"),
        ({"emulated": True, "accelerator": "h100"}, "the dense peak of 'h100' is not known"),  # two products
    ],
)
def test_without_a_published_peak_mfu_stays_unknown_and_the_work_is_told(step: dict[str, Any], why: str) -> None:
    report = report_from_run(counted(**step))
    assert not {"mfu", "hfu", "mfu_in_loop_share"} & report.metrics.keys()
    assert report.metrics["flops_per_s"] == pytest.approx(0.4 * PEAK)
    assert any(r.endswith(f"MFU is not known: {why}") for r in report.diagnosis.reasons)


def test_a_step_whose_work_is_not_known_says_nothing_of_it() -> None:
    report = report_from_run(counted(flops_per_step=None))
    assert not {"mfu", "flops_per_s"} & report.metrics.keys()
    assert not any("FLOP" in reason for reason in report.diagnosis.reasons)


def test_more_than_a_matrix_product_reaches_is_a_caveat_of_the_report() -> None:
    report = report_from_run(counted(flops_per_step=0.9 * PEAK * 0.04))
    (caveat,) = [c for c in report.caveats if c.code == "flops-above-achievable"]
    for text in renderings(report):
        assert "cannot be: the best matrix product measured there reaches 80%" in text
    assert caveat.settle


def test_energy_and_the_drivers_utilization_are_labelled() -> None:
    report = report_from_run(counted(joules_per_step=28.0, kernel_time_share=0.97))
    assert report.metrics["joules_per_sample"] == pytest.approx(28.0 / 16)
    text = terminal.render(report, width=120)
    assert "joules per sample" in text
    assert "driver's GPU utilization (a kernel ran)" in text
    assert "joules_per_sample" not in report_from_run(counted()).metrics


def test_a_declared_transformer_gives_the_work_of_a_step_measured_or_emulated() -> None:
    shape = "parameters=8e9,layers=32,heads=32,head_size=128,sequence=8192,dtype=bf16"
    request = Request(target="t", step_s=1.0, accelerator="h100-sxm5-80gb", transformer=shape)
    step = describe_step(StepRun(durations_s=[1.0] * 5, samples_per_step=1, emulated=True), request)
    per_token = 6 * 8e9 + 12 * 32 * 32 * 128 * 8192
    assert step.flops_per_step == per_token * 8192
    assert (step.dtype, step.accelerator) == ("bf16", "h100-sxm5-80gb")
    assert "6N + 12" in step.flops_source
    run = counted()
    run.step = step
    assert report_from_run(run).metrics["mfu"] == pytest.approx(per_token * 8192 / PEAK)
    real = StepRun(durations_s=[0.1], samples_per_step=2, tokens_per_step=100, dtype="float16")
    declare_flops(real, shape.replace(",dtype=bf16", ""))
    assert (real.flops_per_step, real.dtype) == (per_token * 100, "float16")


def test_a_transformer_that_cannot_be_read_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(UsageError, match="--transformer lacks head_size"):
        Request(target="t", transformer="parameters=1,layers=2,heads=3,sequence=4")
