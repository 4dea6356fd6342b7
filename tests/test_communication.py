"""Communication by difference: what turns it off, how it is timed, and what it decides."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import make_run

from ioprobe.analysis.reporting import report_from_run
from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.diagnosis.types import Verdict
from ioprobe.instrument import clocks
from ioprobe.probe.step_clock import Clock
from ioprobe.probe.step_sync import find_switch
from ioprobe.probe.step_target import ModuleStep
from ioprobe.probe.step_vary import Variation
from ioprobe.probe.sync_difference import Together, measure_difference
from ioprobe.report import html, terminal
from ioprobe.report import json as json_report
from ioprobe.run import Limit, Run, Stage, SyncDifference, dumps, loads

CPU = torch.device("cpu")


class Synced(torch.nn.Module):
    """Stands for DistributedDataParallel."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
        self.syncs = True
        self.seen: list[bool] = []

    def forward(self, batch: Any) -> Any:
        self.seen.append(self.syncs)
        return self.net(batch)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.syncs = False
        try:
            yield
        finally:
            self.syncs = True


class Gathered(Synced):
    """Stands for a module under fully_shard."""

    no_sync = None  # type: ignore[assignment]

    def set_requires_gradient_sync(self, needed: bool) -> None:
        self.syncs = needed


NET = Synced()


def names_a_global(batch: Any) -> None:
    NET(batch)


class Holder:
    def __init__(self, module: Any) -> None:
        self.parts = {"model": module}

    def __call__(self, batch: Any) -> None:
        self.parts["model"](batch)

    def step(self, batch: Any) -> None:
        self(batch)


def closure(*modules: Any) -> Any:
    def inner(batch: Any) -> None:
        for module in modules:
            module(batch)

    @functools.wraps(inner)
    def step(batch: Any) -> None:
        inner(batch)

    return step


# Where it is found


@pytest.mark.parametrize(
    "made",
    [
        closure,
        Holder,
        lambda m: Holder(m).step,
        lambda m: functools.partial(lambda model, batch: model(batch), m),
        lambda m: ModuleStep(m, CPU),
        lambda m: Variation(precision="bf16").wrap(closure(m), "t.py:make", CPU),
        lambda m: closure(torch.nn.Sequential(m)),
        lambda m: closure(torch.nn.Identity(), m),
    ],
)
def test_a_module_that_synchronises_is_found_where_code_keeps_it(made: Any) -> None:
    module = Synced()
    step = made(module)
    switch = find_switch(step)
    assert switch is not None
    assert (switch.name, switch.sharded) == ("Synced.no_sync", False)
    step(torch.ones(1, 2))
    with switch.off():
        step(torch.ones(1, 2))
    step(torch.ones(1, 2))
    assert module.seen == [True, False, True]


def test_a_module_among_the_globals_of_a_step_is_found() -> None:
    assert find_switch(names_a_global) is not None
    assert find_switch(Holder(torch.nn.Linear(2, 1))) is None
    assert find_switch(print) is None


def test_a_step_may_offer_a_no_sync_of_its_own() -> None:
    class Own(Holder):
        no_sync = Synced.no_sync

    step = Own(Synced())
    switch = find_switch(step)
    assert switch is not None
    assert switch.name == "Own.no_sync"
    with switch.off():
        assert step.syncs is False  # type: ignore[attr-defined]


def test_a_sharded_module_is_switched_by_its_own_method_and_switched_back_after_an_error() -> None:
    module = Gathered()
    switch = find_switch(closure(module))
    assert switch is not None
    assert (switch.name, switch.sharded) == ("Gathered.set_requires_gradient_sync", True)

    def fail() -> None:
        assert not module.syncs
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"), switch.off():
        fail()
    assert module.syncs


def test_a_module_within_another_one_is_left_to_that_one() -> None:
    outer = Synced()
    outer.net = torch.nn.Sequential(Synced())  # type: ignore[assignment]
    switch = find_switch(closure(outer.net[0], outer))
    assert switch is not None
    with switch.off():
        assert not outer.syncs
        assert outer.net[0].syncs


def test_only_the_last_micro_step_synchronises() -> None:
    module = Synced()
    step = ModuleStep(module, CPU, accumulate=3)
    for _ in range(6):
        step(torch.ones(1, 2))
    assert module.seen == [False, False, True] * 2


# How it is timed


class Store(dict[str, str]):
    """One rank's key-value store."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:
        return self[key].encode()


def alone() -> Together:
    return Together(Store(), 0, 1, lambda name: None)


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that moves only when a step moves it."""
    now = [1000.0]
    monkeypatch.setattr(clocks, "now", lambda: now[0])
    monkeypatch.setattr(clocks, "process_cpu", lambda: 0.0)

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


def test_rounds_with_and_without_take_turns_and_give_what_synchronisation_costs(passing: Any) -> None:
    module = Synced()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    before = module.net.weight.detach().clone()

    def step(batch: Any) -> None:
        module(batch).mean().backward()
        passing(0.025 if module.syncs else 0.010)
        optimizer.step()
        optimizer.zero_grad()

    found = measure_difference(step, lambda: torch.ones(1, 2), Clock(step), together=alone(), seconds=2.2)
    assert found is not None
    assert (found.switch, found.failed, found.steps) == ("Synced.no_sync", "", 5)
    assert found.with_s == pytest.approx([0.025] * 8)
    assert found.without_s == pytest.approx([0.010] * 8)
    blocks = module.seen[4:]
    assert [blocks[i] for i in range(0, len(blocks), 6)] == [True, False, False, True] * 4
    assert torch.equal(before, module.net.weight)  # ranks that do not synchronise keep the same weights
    step(torch.ones(1, 2))
    assert not torch.equal(before, module.net.weight)


def test_a_step_that_fails_without_synchronisation_says_why_and_synchronises_again() -> None:
    module = Synced()

    def step(batch: Any) -> None:
        if not module.syncs:
            raise RuntimeError("gradients of another size")

    found = measure_difference(step, lambda: None, Clock(step), together=alone(), seconds=0.1)
    assert found is not None
    assert found.failed == "RuntimeError: gradients of another size"
    assert (found.with_s, found.without_s) == ([], [])
    assert module.syncs


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "switch", "sharded"),
    [
        ("ddp", "DistributedDataParallel.no_sync", False),
        ("fsdp", "FullyShardedDataParallel.no_sync", True),
        ("fully_shard", "FSDPLinear.set_requires_gradient_sync", True),
    ],
)
def test_torchs_own_modules_are_switched_and_train_on_afterwards(kind: str, switch: str, sharded: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    module: Any = torch.nn.Linear(2, 1)
    if kind == "fully_shard":
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    elif kind == "ddp":
        module = DistributedDataParallel(module)
    else:
        module = FullyShardedDataParallel(module, device_id=CPU)
    step = ModuleStep(module, CPU)
    step(torch.ones(1, 2))
    found = measure_difference(step, lambda: torch.ones(1, 2), Clock(step), together=alone(), seconds=0.02)
    assert found is not None
    assert (found.switch, found.sharded, found.failed) == (switch, sharded, "")
    assert len(found.with_s) == len(found.without_s) >= 3
    step(torch.ones(1, 2))


def test_without_a_switch_on_every_rank_nothing_is_measured() -> None:
    assert measure_difference(print, lambda: None, Clock(print), together=alone(), seconds=0.1) is None
    store = Store({"all/1/1": "0"})
    other = Together(store, 0, 2, lambda name: None)
    step = closure(Synced())
    assert measure_difference(step, lambda: None, Clock(step), together=other, seconds=0.1) is None
    assert store["all/1/0"] == "1"


def test_ranks_agree_on_what_holds_for_all_and_on_what_rank_0_says() -> None:
    store = Store({"all/1/1": "1", "all/2/1": "0", "all/3/1": "1", "first/4": "rank 0 wins"})
    mine = Together(store, 0, 2, lambda name: None)
    assert (mine.all(True), mine.all(True)) == (True, False)
    assert mine.any(True)  # asked as: is it false everywhere?
    other = Together(Store({"first/1": "6 rounds"}), 1, 2, lambda name: None)
    assert other.from_first(lambda: "mine") == "6 rounds"


# What it decides


def communicating(with_s: list[float], without_s: list[float], **more: Any) -> Run:
    """A loader with time to spare and steps of 25 ms."""
    run = make_run(loop_wait_s=0.0002, step_s=0.025, loader_cycle_s=0.004, step_parts=more.pop("step_parts", None))
    assert run.step is not None
    switch = "DistributedDataParallel.no_sync"
    run.step.sync = SyncDifference(switch=switch, with_s=with_s, without_s=without_s, steps=9, **more)
    return loads(dumps(run))


def test_a_step_that_mostly_synchronises_is_communication_bound_with_its_evidence() -> None:
    run = communicating([0.025] * 6, [0.010] * 6)
    found = diagnose(run)
    diagnosis = found.diagnosis
    assert (diagnosis.verdict, diagnosis.limiting_stage) == (Verdict.COMMUNICATION_BOUND, Limit.COMMUNICATION)
    assert diagnosis.evidence.startswith(
        "60.0% of the step's 25.0 ms is gradient synchronisation: without it (DistributedDataParallel.no_sync) a step "
        "takes 10.0 ms instead of 25.0 ms, weights held still in both; "
    )
    rung = next(r for r in diagnosis.ladder if r.stage is Stage.COMMUNICATION)
    assert rung.samples_per_s is not None
    assert rung.samples_per_s.value == pytest.approx(16 / 0.015)
    assert rung.samples_per_s.low == pytest.approx(16 / 0.015)
    assert found.advice[0].code == "IO620"
    assert "a changed global batch changes training" in found.advice[0].action


def test_the_rungs_interval_holds_what_the_rounds_leave_open() -> None:
    run = communicating([0.024, 0.026, 0.025, 0.025], [0.010] * 4)
    rung = next(r for r in diagnose(run).diagnosis.ladder if r.stage is Stage.COMMUNICATION)
    assert rung.samples_per_s is not None
    # 15 ms, known to 3.182 x 0.816 / 2 ms from four rounds.
    half = 3.182 * 0.000816497 / 2 / 0.015
    assert rung.samples_per_s.low == pytest.approx(16 / 0.015 * (1 - half / (1 + half)), rel=1e-3)
    assert rung.samples_per_s.high == pytest.approx(16 / 0.015 / (1 - half), rel=1e-3)


@pytest.mark.parametrize(
    ("with_s", "without_s"),
    [
        ([0.025] * 6, [0.022] * 6),  # an eighth of the step
        ([0.010, 0.050, 0.010, 0.040, 0.010, 0.030], [0.013] * 6),  # half of it, or nothing
        ([0.025] * 6, [0.026] * 6),  # less than nothing
    ],
)
def test_little_or_doubtful_synchronisation_leaves_the_job_compute_bound(
    with_s: list[float], without_s: list[float]
) -> None:
    found = diagnose(communicating(with_s, without_s)).diagnosis
    assert (found.verdict, found.limiting_stage) == (Verdict.COMPUTE_BOUND, Limit.STEP)
    said = any("gradient synchronisation" in reason for reason in found.reasons)
    assert said == (with_s[0] - without_s[0] > 0 or with_s[1] > 0.03)


def test_collectives_that_a_trace_sees_beyond_gradients_count() -> None:
    parts = {"compute": 0.010, "communication": 0.015}
    run = communicating([0.025] * 6, [0.024] * 6, step_parts=parts)
    found = diagnose(run).diagnosis
    assert found.verdict is Verdict.COMMUNICATION_BOUND
    assert "60.0% of the step's 25.0 ms is communication that no computation hides, by a trace" in found.evidence


def test_what_gathering_takes_beyond_a_sharded_modules_gradients_is_said() -> None:
    found = diagnose(communicating([0.025] * 6, [0.010] * 6, sharded=True)).diagnosis
    assert "gathering the parameters comes on top" in found.evidence


def test_why_there_is_no_difference_is_said() -> None:
    found = diagnose(communicating([], [], failed="RuntimeError: gradients of another size")).diagnosis
    assert (
        "the step was not timed without gradient synchronisation: RuntimeError: gradients of another size"
        in found.reasons
    )


def test_the_loops_time_is_divided_into_input_communication_and_computation() -> None:
    run = communicating([0.025] * 6, [0.020] * 6, step_parts={"compute": 0.018, "transfer": 0.005, "idle": 0.002})
    run.loaders[0].main.wait_s = [0.025] * 200
    run.loaders[0].main.call_s = [0.05 * i for i in range(200)]
    report = report_from_run(run)
    assert report.partition == pytest.approx(
        {"compute": 0.26, "communication": 0.1, "transfer": 0.1, "data_stall": 0.5, "other_idle": 0.04}
    )
    assert report.partition is not None
    assert sum(report.partition.values()) == pytest.approx(1)
    assert run.step is not None
    run.step.emulated = True
    assert report_from_run(run).partition is None


def test_the_reports_hold_communication_and_its_rung(tmp_path: Path) -> None:
    report = report_from_run(communicating([0.025] * 6, [0.010] * 6))
    assert report.metrics["communication_share"] == pytest.approx(0.6)
    assert report.metrics["synchronisation_s"] == pytest.approx(0.015)
    page = json.loads(json_report.render(report))
    assert [r["stage"] for r in page["diagnosis"]["ladder"]][-3:] == ["communication", "step", "loop"]
    for text in (terminal.render(report, width=120), html.render(report)):
        assert "communication" in text.lower()
        assert "no_sync" in text
