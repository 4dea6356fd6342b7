"""Tables of steps: what is asked, what is measured where, what it means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from ioprobe.analysis import stepping
from ioprobe.analysis.declared import parse_transformer
from ioprobe.analysis.stepping import StepRequest, measure_steps, parse_vary
from ioprobe.diagnosis.step_table import StepRow, StepTable, caveats, figures
from ioprobe.errors import TargetError, UsageError
from ioprobe.model.flops import transformer_flops_per_token
from ioprobe.probe import protocol
from ioprobe.probe.step import measure_step
from ioprobe.probe.step_target import ModuleStep, load_step
from ioprobe.probe.step_vary import Variation, Varied
from ioprobe.probe.synthetic import make_batches
from ioprobe.report.step import as_object, render
from ioprobe.run import Failure, Host, LoaderRun, MainBatches, StepRun
from ioprobe.stats import Estimate, exact
from ioprobe_cli.main import cli, run

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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch=0", "a batch of '0' cannot be"),
        ("precision=fp64", "cannot be varied by 'precision=fp64'"),
        ("colour=red", "cannot be varied by 'colour=red'"),
        ("accum=0", "accum=0"),
        ("16,32", "cannot read --vary"),
        ("batch=", "cannot read --vary"),
        ("batch=" + ",".join(map(str, range(1, 70))), "69 rows; at most 64"),
    ],
)
def test_what_cannot_be_varied_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_vary([text])


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


def test_a_factory_takes_the_variation_that_it_has_keywords_for() -> None:
    def make(precision: str = "fp32") -> None: ...

    variation = Variation.parse("precision=bf16&compile=on&accum=2")
    assert variation.keywords(make) == {"precision": "bf16"}
    assert variation.without({"precision": "bf16"}) == Variation(accum=2, compile=True)


def test_a_module_is_varied_from_outside_and_a_callable_only_in_part(tmp_path: Path) -> None:
    place = tmp_path / "varied_here.py"
    place.write_text(
        "import torch\n"
        "seen = []\n"
        "def make_net(): return torch.nn.Linear(3, 2)\n"
        "def make_step():\n"
        "    net = torch.nn.Linear(3, 2)\n"
        "    def step(batch): seen.append(net(batch).dtype)\n"
        "    return step\n"
        "def make_own(accum=1):\n"
        "    return lambda batch: seen.append(accum)\n"
    )
    cpu, batch = torch.device("cpu"), torch.ones(2, 3)
    net = load_step(f"{place}:make_net?precision=bf16&accum=4", cpu)
    assert isinstance(net, ModuleStep)
    assert (net.dtype, net.accumulate) == (torch.bfloat16, 4)
    step = load_step(f"{place}:make_step?precision=bf16", cpu)
    assert isinstance(step, Varied)
    step(batch)
    load_step(f"{place}:make_own?accum=8", cpu)(batch)
    import varied_here  # type: ignore[import-not-found]

    assert varied_here.seen == [torch.bfloat16, 8]
    with pytest.raises(UsageError, match="accumulation cannot be set from outside"):
        load_step(f"{place}:make_step?accum=2", cpu)


def test_a_varied_step_keeps_its_sync() -> None:
    class Asynchronous:
        def __call__(self, batch: Any) -> None: ...
        def sync(self) -> str:
            return "done"

    varied = Variation(precision="bf16").wrap(Asynchronous(), "t.py:make", torch.device("cpu"))
    assert varied.sync() == "done"  # type: ignore[attr-defined]


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


def test_optimizer_steps_are_counted_as_they_happen() -> None:
    step = ModuleStep(torch.nn.Linear(3, 2), torch.device("cpu"), accumulate=4)
    found = measure_step(step, torch.ones(2, 3), seconds=0.05, samples=2, trace=False)
    assert found.updates_per_step == 0.25
    plain = measure_step(lambda batch: None, None, seconds=0.01, samples=2, trace=False)
    assert plain.updates_per_step is None


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


def test_a_step_that_raises_is_no_verdict(
    fake: type[FakeSupervisor], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = Failure(phase="step", kind="exception", message="ValueError: labels are missing", where="t.py:3")
    monkeypatch.setattr(fake, "step", lambda self, command: StepRun(durations_s=[0.1], failure=failure))
    assert run(["step", "--step", "t.py:make", "--shape", "2,2", "-q"]) == 2
    assert "ValueError: labels are missing" in capsys.readouterr().out


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


def test_exact_estimates_have_no_spread() -> None:
    assert "±" not in render(
        table(StepRow(settings={}, step=StepRun(durations_s=[0.1]), loader_samples_per_s=exact(5.0)))
    )


def test_a_table_that_was_interrupted_before_its_first_row_says_so() -> None:
    assert [line.strip() for line in render(table(complete=False), unicode=False).splitlines() if line.strip()] == [
        "STEP  t.py:make on Fake CPU",
        "! Partial: it was interrupted.",
    ]
