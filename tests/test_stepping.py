"""Tables of steps: what is asked and what is measured where."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ioprobe.analysis import stepping
from ioprobe.analysis.declared import parse_transformer
from ioprobe.analysis.stepping import StepRequest, measure_steps
from ioprobe.errors import TargetError, UsageError
from ioprobe.model.flops import transformer_flops_per_token
from ioprobe.probe import protocol
from ioprobe.probe.synthetic import make_batches
from ioprobe.report.step import render
from ioprobe.run import Failure, LoaderRun, MainBatches, StepRun
from ioprobe_cli.main import run


class FakeSupervisor:
    """Answers as the measuring process would, and remembers what it was asked."""

    made: list[FakeSupervisor]
    fail_at: dict[str, BaseException]

    def __init__(self, *, log: Any, progress: Any, hang_s: float) -> None:
        self.hang_s, self.asked = hang_s, list[Any]()
        self.made.append(self)

    def __enter__(self) -> FakeSupervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append("ended")

    def load(self, command: protocol.Load) -> None:
        self.asked.append(command)
        if error := self.fail_at.get(command.step or ""):
            raise error

    def measure(self, command: protocol.Measure) -> LoaderRun:
        self.asked.append(command)
        calls = [0.1 * i for i in range(60)]
        main = MainBatches(call_s=calls, wait_s=[0.1] * 60, release_s=[0.0] * 60, samples=[8] * 60, epoch=[0] * 60)
        return LoaderRun(coupled=False, settings=None, main=main)

    def step(self, command: protocol.Step) -> StepRun:
        self.asked.append(command)
        return StepRun(durations_s=[0.05] * 20, samples_per_step=8)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeSupervisor]:
    FakeSupervisor.made, FakeSupervisor.fail_at = [], {}
    monkeypatch.setattr(stepping, "Supervisor", FakeSupervisor)
    return FakeSupervisor


def test_each_setting_has_a_process_and_each_batch_size_its_loader(
    fake: type[FakeSupervisor],
) -> None:
    found = measure_steps(
        StepRequest(step="t.py:make", target="t.py:loader", vary=("batch=8,16", "precision=fp32,bf16"), seconds=2)
    )
    assert [r.settings for r in found.rows] == [
        {"batch": "8", "precision": "fp32"},
        {"batch": "8", "precision": "bf16"},
        {"batch": "16", "precision": "fp32"},
        {"batch": "16", "precision": "bf16"},
    ]
    loads = [made.asked[0] for made in fake.made]
    assert [load.step for load in loads] == [f"t.py:make?precision={p}" for p in ("fp32", "bf16", "fp32", "bf16")]
    assert [load.loader_options for load in loads] == [{"batch_size": n} for n in (8, 8, 16, 16)]
    measured = [any(isinstance(asked, protocol.Measure) for asked in made.asked) for made in fake.made]
    assert measured == [True, False, True, False]
    assert all(r.loader_samples_per_s is not None for r in found.rows)
    assert all(made.asked[-1] == "ended" for made in fake.made)


def test_a_made_up_batch_needs_no_loader_and_none_is_measured(fake: type[FakeSupervisor]) -> None:
    measure_steps(StepRequest(step="t.py:make", shape="8,3", vary=("compile=off,on",)))
    first = fake.made[0].asked
    assert (first[0].target, first[0].loader_options) == (stepping.SYNTHETIC, {"shape": "8,3"})
    assert [type(asked) for asked in first[1:-1]] == [protocol.Step]
    assert fake.made[1].hang_s == 600  # compiling shows no progress


def test_a_setting_that_fails_is_a_row_with_its_failure(fake: type[FakeSupervisor]) -> None:
    fake.fail_at = {"t.py:make?accum=4": UsageError("no keyword 'accum'", hint="take one")}
    found = measure_steps(StepRequest(step="t.py:make", shape="8,3", vary=("accum=1,4",)))
    assert found.rows[0].step.failure is None
    assert found.rows[1].step.failure == Failure(
        phase="step", kind="exception", message="no keyword 'accum'", hint="take one"
    )
    assert found.complete


def test_a_first_setting_that_fails_is_the_users_mistake(fake: type[FakeSupervisor]) -> None:
    fake.fail_at = {"t.py:make": TargetError("no such file")}
    with pytest.raises(TargetError, match="no such file"):
        measure_steps(StepRequest(step="t.py:make", shape="8,3"))


def test_an_interrupt_keeps_the_rows_so_far(fake: type[FakeSupervisor]) -> None:
    fake.fail_at = {"t.py:make?accum=4": KeyboardInterrupt()}
    found = measure_steps(StepRequest(step="t.py:make", shape="8,3", vary=("accum=1,4,8",)))
    assert (len(found.rows), found.complete) == (1, False)
    assert len(fake.made) == 2
    assert "Partial: it was interrupted." in render(found)


def test_declared_flops_replace_counted_ones(fake: type[FakeSupervisor]) -> None:
    shape = "parameters=1e6,layers=2,heads=4,head_size=8,sequence=100,causal,recompute"
    found = measure_steps(StepRequest(step="t.py:make", shape="8,100:int64", transformer=shape))
    numbers = {"parameters": 1e6, "layers": 2, "heads": 4, "head_size": 8, "sequence": 100}
    model = transformer_flops_per_token(**numbers, causal=True)
    assert found.rows[0].step.flops_per_step == model * 8 * 100
    executed = transformer_flops_per_token(**numbers, causal=True, recompute=True)
    assert found.rows[0].step.executed_flops_per_step == executed * 8 * 100
    assert "FLOPs are declared" in render(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=2", "lacks head_size, heads, parameters, sequence"),
        ("layers=two", "cannot read 'layers=two'"),
        ("colour=1", "cannot read 'colour=1'"),
        ("causal=maybe", "cannot read 'causal=maybe'"),
        ("layers=-2", "cannot read 'layers=-2'"),
        ("dtype=int8", "cannot read 'dtype=int8'"),
    ],
)
def test_a_transformer_that_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_transformer(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "a step needs a batch"),
        ({"target": "t.py:loader", "shape": "8,3"}, "not both"),
        ({"shape": "8,x"}, "cannot read shape '8,x'"),
        ({"shape": "8,3;4"}, "differ in their first dimension"),
        ({"shape": "8,3:complex64"}, "cannot read shape"),
        ({"shape": "8,3", "seconds": 0.0}, "--seconds is 0"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StepRequest(step="t.py:make", **fields)


def test_a_made_up_batch_has_the_shape_asked_for_and_is_always_the_same() -> None:
    images, labels = make_batches("4,3,8:uint8;4:int64", batch_size=6)[0]
    assert (images.shape, images.dtype, labels.shape, labels.dtype) == ((6, 3, 8), torch.uint8, (6,), torch.int64)
    assert int(labels.max()) < 10
    assert torch.equal(make_batches("4,3")[0], make_batches("4,3")[0])


def test_a_step_that_raises_is_no_verdict(
    fake: type[FakeSupervisor], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = Failure(phase="step", kind="exception", message="ValueError: labels are missing", where="t.py:3")
    monkeypatch.setattr(fake, "step", lambda self, command: StepRun(durations_s=[0.1], failure=failure))
    assert run(["step", "--step", "t.py:make", "--shape", "2,2", "-q"]) == 2
    assert "ValueError: labels are missing" in capsys.readouterr().out
