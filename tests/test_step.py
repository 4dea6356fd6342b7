"""The training step alone, on a fake clock where time matters."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ioprobe import stats
from ioprobe.errors import TargetError
from ioprobe.instrument import clocks
from ioprobe.probe import device as device_module
from ioprobe.probe import step as step_module
from ioprobe.probe import step_parts
from ioprobe.probe.energy import EnergyReading
from ioprobe.probe.step import EmulatedStep, measure_step, steps_for
from ioprobe.probe.step_parts import Shares
from ioprobe.probe.step_target import ModuleStep, as_step, load_step, scalar


class FakeTime:
    """A clock that moves only when a step moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.cpu_s = 0.0

    def pass_by(self, seconds: float, cpu: float = 0.0) -> None:
        self.now_s += seconds
        self.cpu_s += cpu


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(clocks, "now", lambda: fake.now_s)
    monkeypatch.setattr(clocks, "process_cpu", lambda: fake.cpu_s)
    return fake


def steps(fake: FakeTime, lengths: Any, cpu: float = 0.0) -> Callable[[Any], None]:
    stream = iter(lengths)
    return lambda batch: fake.pass_by(next(stream), cpu)


def measure(step: Callable[[Any], Any], seconds: float = 5.0, **more: Any) -> Any:
    return measure_step(step, None, seconds=seconds, samples=8, trace=False, **more)


def test_the_slow_first_step_is_warm_up_and_does_not_spend_the_budget(fake: FakeTime) -> None:
    result = measure(steps(fake, itertools.chain([60.0, 0.3], itertools.repeat(0.1)), cpu=0.05))
    assert result.warmup_s[0] == pytest.approx(60.0)
    assert {round(d, 9) for d in result.durations_s} == {0.1}
    assert result.cpu_s == pytest.approx([0.05] * len(result.durations_s))
    assert result.failure is None


def test_a_steady_step_ends_early_and_a_noisy_one_takes_the_whole_budget(fake: FakeTime) -> None:
    began = fake.now_s
    measure(steps(fake, itertools.repeat(0.1)))
    steady = fake.now_s - began
    began = fake.now_s
    measure(steps(fake, itertools.cycle([0.1, 0.3, 0.1, 0.1, 0.35, 0.1, 0.1])))
    noisy = fake.now_s - began
    assert 2.5 <= steady < 3.1
    assert noisy >= 5.0


@pytest.mark.parametrize("skipped", [0, 7, 39])
def test_a_regular_pause_counts_over_whole_periods(fake: FakeTime, skipped: int) -> None:
    lengths = itertools.cycle([0.02] * 39 + [0.52])
    result = measure(steps(fake, itertools.islice(lengths, skipped, None)), seconds=4.0)
    assert len(result.durations_s) % 40 == 0
    assert stats.mean(result.durations_s).value == pytest.approx((40 * 0.02 + 0.5) / 40)
    assert len(result.durations_s) // 40 >= 3
    assert stats.pause_period(result.durations_s) == 40
    assert stats.periodic_mean(result.durations_s).relative_halfwidth < 1e-9


def test_a_pause_that_is_seen_once_is_waited_for_up_to_twice_the_time(fake: FakeTime) -> None:
    lengths = itertools.cycle([0.02] * 39 + [0.52])
    began = fake.now_s
    result = measure(steps(fake, lengths), seconds=1.5)
    assert fake.now_s - began < 2 * 1.5 + 0.6
    assert len(result.durations_s) == 40
    assert stats.mean(result.durations_s).value == pytest.approx((40 * 0.02 + 0.5) / 40)


def test_one_late_step_prolongs_nothing(fake: FakeTime) -> None:
    began = fake.now_s
    measure(steps(fake, itertools.chain([0.02] * 60, [0.1], itertools.cycle([0.02, 0.03, 0.01]))), seconds=2)
    assert fake.now_s - began < 2.6


def test_long_steps_are_measured_at_least_three_times_unless_that_takes_for_ever(fake: FakeTime) -> None:
    assert len(measure(steps(fake, itertools.repeat(5.0)), seconds=4.0).durations_s) == 3
    assert len(measure(steps(fake, itertools.repeat(60.0)), seconds=4.0).durations_s) == 1


def test_an_asynchronous_step_is_timed_up_to_its_sync(fake: FakeTime) -> None:
    class Asynchronous:
        queued = 0

        def __call__(self, batch: Any) -> None:
            self.queued += 1
            fake.pass_by(0.001)

        def sync(self) -> None:
            fake.pass_by(0.049 * self.queued)
            self.queued = 0

    result = measure(Asynchronous())
    assert result.durations_s == pytest.approx([0.05] * len(result.durations_s))


def test_device_steps_are_timed_by_events_without_draining_the_queue(
    fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Device:
        type = "fake"
        free_at = 0.0
        synchronized = 0

        def __str__(self) -> str:
            return "fake:0"

    device = Device()

    class Event:
        def record(self) -> None:
            self.at_s = max(device.free_at, fake.now_s)

        def synchronize(self) -> None:
            fake.now_s = max(fake.now_s, self.at_s)

        def elapsed_time(self, other: Event) -> float:
            return (other.at_s - self.at_s) * 1000

    def synchronize(_: Any) -> None:
        device.synchronized += 1
        fake.now_s = max(fake.now_s, device.free_at)

    monkeypatch.setattr(device_module, "timing_event", lambda _: Event())
    monkeypatch.setattr(device_module, "synchronize", synchronize)

    def step(batch: Any) -> None:
        fake.pass_by(0.009, cpu=0.009)  # launching takes nearly as long as the device's own work
        device.free_at = max(device.free_at, fake.now_s) + 0.010

    result = measure(step, device=device)
    assert result.device == "fake:0"
    assert result.durations_s == pytest.approx([0.010] * len(result.durations_s))
    assert len(result.cpu_s) == len(result.durations_s)
    assert device.synchronized < len(result.durations_s) / 4


def test_energy_is_that_of_a_step_and_the_meter_covers_the_steady_state_only(
    fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meter:
        def __init__(self) -> None:
            self.began_s = fake.now_s

        def stop(self) -> EnergyReading:
            return EnergyReading(joules=300.0 * (fake.now_s - self.began_s), kernel_time_share=0.5)

    monkeypatch.setattr(step_module, "energy_meter", lambda device: Meter())
    result = measure(steps(fake, itertools.chain([60.0], itertools.repeat(0.1))))
    assert result.joules_per_step == pytest.approx(30.0)  # 300 W for 0.1 s
    assert result.kernel_time_share == 0.5


def test_a_step_that_raises_leaves_what_was_measured_and_names_the_line() -> None:
    calls = itertools.count()

    def step(batch: Any) -> None:
        if next(calls) == 30:
            raise ValueError("labels are missing\nfor this batch")

    result = measure(step)
    assert result.failure is not None
    assert (result.failure.phase, result.failure.kind) == ("step", "exception")
    assert result.failure.message == "ValueError: labels are missing"
    assert result.failure.where.startswith(f"{__file__}:")
    assert len(result.warmup_s) + len(result.durations_s) == 30


def test_an_interrupted_step_leaves_what_was_measured(fake: FakeTime) -> None:
    def interrupting(lengths: Any) -> Any:
        yield from lengths
        raise KeyboardInterrupt

    result = measure(steps(fake, interrupting([0.1] * 10)))
    assert result.failure is not None
    assert result.failure.kind == "interrupted"
    assert len(result.warmup_s) + len(result.durations_s) == 10


def test_progress_tells_seconds_done_and_seconds_to_come(fake: FakeTime) -> None:
    seen: list[tuple[str, float, float]] = []
    measure(steps(fake, itertools.repeat(0.1)), progress=lambda *what: seen.append(what))
    assert {(text, of_s) for text, _, of_s in seen} == {("the step alone", 5.0)}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_batches_take_turns_and_a_step_may_pop_from_them(fake: FakeTime) -> None:
    seen = []

    def step(batch: dict[str, int]) -> None:
        fake.pass_by(0.1)
        seen.append(batch.pop("label"))

    result = measure_step(step, {"label": 1}, seconds=1, samples=1, more_batches=[{"label": 2}], trace=False)
    assert result.failure is None
    assert seen[:4] == [1, 2, 1, 2]


def test_an_emulated_step_keeps_to_its_mean_though_each_sleep_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime()

    def sleep(seconds: float) -> None:
        fake.pass_by(seconds + 0.001)

    monkeypatch.setattr(clocks, "now", lambda: fake.now_s)
    monkeypatch.setattr(time, "sleep", sleep)
    step, began = EmulatedStep(0.02), fake.now_s
    for _ in range(1000):
        step(None)
    assert (fake.now_s - began) / 1000 == pytest.approx(0.02, rel=1e-4)


def test_an_emulated_step_never_catches_up_with_more_than_half_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime()
    late = itertools.chain([5.0], itertools.repeat(0.0))
    monkeypatch.setattr(clocks, "now", lambda: fake.now_s)
    monkeypatch.setattr(time, "sleep", lambda seconds: fake.pass_by(seconds + next(late)))
    step = EmulatedStep(0.02)
    step(None)
    began = fake.now_s
    step(None)
    assert fake.now_s - began == pytest.approx(0.01)


def test_an_emulated_step_is_marked_and_never_traced() -> None:
    result = measure_step(EmulatedStep(0.001), None, seconds=0.05, samples=4, source="--step-ms 1")
    assert (result.emulated, result.device, result.source, result.parts_s) == (True, "cpu", "--step-ms 1", {})
    with pytest.raises(ValueError, match="finite time"):
        EmulatedStep(-1)


@pytest.mark.parametrize(
    ("usual_s", "period", "wanted"), [(0.1, None, 3), (0.001, None, 20), (0.02, 5, 4), (0.0, None, 20)]
)
def test_few_steps_are_traced_and_no_pause_among_them(usual_s: float, period: int | None, wanted: int) -> None:
    assert steps_for(usual_s, period) == wanted


def test_communication_is_found_in_a_real_trace() -> None:
    from torch.profiler import record_function

    def step(batch: Any) -> None:
        with record_function("forward_backward"):
            time.sleep(0.001)
        with record_function("nccl:all_reduce"):
            time.sleep(0.02)

    result = measure_step(step, None, seconds=0.1, samples=1)
    assert result.parts_steps >= 3
    assert sum(result.parts_s.values()) == pytest.approx(stats.mean(result.durations_s).value)
    assert result.parts_s["communication"] > 2 * result.parts_s["compute"]
    assert result.parts_s["checkpoint"] == result.parts_s["transfer"] == 0


def test_a_pause_is_traced_where_it_happens_and_weighs_once_a_period(
    fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = []

    def trace(step: Any, following: Any, clock: Any, count: int) -> Shares:
        began = fake.now_s
        for _ in range(count):
            step(following())
        window_s = fake.now_s - began
        traced.append(window_s)
        part = {"compute": 0.02 * count, "checkpoint": max(0.0, window_s - 0.02 * count)}
        return Shares(part, window_s, count)

    monkeypatch.setattr(step_parts, "trace", trace)
    step = steps(fake, itertools.cycle([0.02] * 39 + [0.52]))
    result = measure_step(step, None, seconds=4.0, samples=8)
    assert traced == pytest.approx([16 * 0.02, 0.52])
    assert result.parts_s == pytest.approx({"checkpoint": 0.5 / 40, "compute": 0.02})
    assert result.parts_steps == 17


def test_a_module_is_trained_on_its_batch() -> None:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    before = module[1].weight.detach().clone()
    step = as_step(module, "train.py:Net", torch.device("cpu"))
    step((torch.full((2, 3, 4), 7, dtype=torch.uint8), torch.tensor([0, 1])))
    assert not torch.equal(before, module[1].weight)
    assert module[1].weight.grad is None


def test_accumulation_steps_the_optimizer_once_in_so_many_micro_steps() -> None:
    import torch

    module = torch.nn.Linear(2, 2)
    step = ModuleStep(module, torch.device("cpu"), accumulate=2)
    batch, before = torch.ones(1, 2), module.weight.detach().clone()
    step(batch)
    assert torch.equal(before, module.weight)
    step(batch)
    assert not torch.equal(before, module.weight)


def test_a_mapping_reaches_the_module_by_name_and_the_loss_is_its_own() -> None:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 2)

        def forward(self, input_ids: Any, labels: Any) -> dict[str, Any]:
            return {"logits": self.table(input_ids), "loss": self.table(labels).sum()}

    step = ModuleStep(Model(), torch.device("cpu"))
    batch = {"input_ids": torch.tensor([1]), "labels": torch.tensor([2]), "meta": ["x"]}
    args, kwargs = step.arguments(batch)
    assert (args, sorted(kwargs)) == ((), ["input_ids", "labels"])
    step(batch)


def test_an_output_without_floats_cannot_be_trained_on() -> None:
    import torch

    assert scalar([{"x": torch.tensor([1])}, torch.tensor([2.0, 4.0])]).item() == 3.0
    with pytest.raises(TargetError, match="holds no floating-point tensor"):
        scalar(torch.tensor([1]))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("make_nothing", "returned nothing; expected a callable"),
        ("make_number", "returned an object of type int"),
        ("make_error", r"raised: KeyError: 'learning_rate' \(.*steps_here.py:16\)"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_a_factory_that_gives_no_step_is_one_clear_line(tmp_path: Path, name: str, fault: str) -> None:
    with pytest.raises(TargetError, match=fault):
        load_step(f"{user_file(tmp_path)}:{name}")


@pytest.mark.parametrize("name", ["make_step", "step", "Step", "Net", "make_net"])
def test_factories_functions_classes_and_modules_are_steps(tmp_path: Path, name: str) -> None:
    import torch

    load_step(f"{user_file(tmp_path)}:{name}", torch.device("cpu"))(torch.ones(2, 2))


def user_file(folder: Path) -> Path:
    place = folder / "steps_here.py"
    place.write_text(
        "import torch\n"
        "def step(batch): assert batch is not None\n"
        "def make_step(): return step\n"
        "class Step:\n"
        "    def __call__(self, batch): assert batch is not None\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.one = torch.nn.Linear(2, 1)\n"
        "    def forward(self, x): return self.one(x)\n"
        "def make_net(): return Net()\n"
        "def make_nothing(): pass\n"
        "def make_number(): return 3\n"
        "def make_error():\n"
        "    settings = {}\n"
        "    return settings['learning_rate']\n"
    )
    return place
