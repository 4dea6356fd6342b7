"""Floating-point work against hand calculation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from ioprobe.diagnosis.utilization import utilization
from ioprobe.model.flops import transformer_flops_per_token
from ioprobe.probe import energy
from ioprobe.probe.flops import count_flops
from ioprobe.probe.step_target import ModuleStep

CPU = torch.device("cpu")
H100 = "NVIDIA H100 80GB HBM3"


def test_a_linear_layer_takes_two_flops_per_weight_forward_and_two_for_its_weights_gradient() -> None:
    counted = count_flops(ModuleStep(torch.nn.Linear(64, 32), CPU), torch.ones(8, 64))
    assert counted is not None
    # The input needs no gradient, so backward is one product, not two.
    assert counted.model == counted.executed == 2 * (2 * 8 * 64 * 32)
    assert sum(counted.by_operator.values()) == counted.executed


@pytest.mark.parametrize(("dtype", "name"), [(None, "float32"), (torch.bfloat16, "bfloat16")])
def test_the_type_is_that_of_the_matrix_products(dtype: Any, name: str) -> None:
    counted = count_flops(ModuleStep(torch.nn.Linear(8, 8), CPU, dtype=dtype), torch.ones(2, 8))
    assert counted is not None
    assert counted.dtype == name


def test_a_step_without_matrix_products_has_no_count() -> None:
    assert count_flops(lambda batch: None, torch.ones(2)) is None


class Deep(torch.nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.block = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        if self.reentrant is None:
            return self.block(x)
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:.*autocast.* is deprecated:FutureWarning")  # torch 2.4's own checkpoint calls it
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_activations_count_as_executed_and_not_as_model_flops(reentrant: bool) -> None:
    batch = torch.ones(4, 16)
    plain = count_flops(ModuleStep(Deep(None), CPU), batch)
    again = count_flops(ModuleStep(Deep(reentrant), CPU), batch)
    assert plain is not None
    assert again is not None
    assert plain.model == plain.executed == again.model
    first, second = 2 * 4 * 16 * 64, 2 * 4 * 64 * 16
    # Without re-entry the recomputation stops before the last product: nothing needs its output.
    assert again.executed - plain.executed == first + (second if reentrant else 0)


def test_counting_leaves_torch_as_it_was() -> None:
    before = torch.utils.checkpoint._checkpoint_without_reentrant_generator
    with pytest.raises(ValueError, match="boom"):
        count_flops(lambda batch: (_ for _ in ()).throw(ValueError("boom")), None)
    assert torch.utils.checkpoint.CheckpointFunction is CheckpointFunction
    assert torch.utils.checkpoint._checkpoint_without_reentrant_generator is before


def test_transformer_flops_follow_the_published_formula() -> None:
    shape = {"layers": 2, "heads": 4, "head_size": 8, "sequence": 100}
    assert transformer_flops_per_token(parameters=1000, **shape) == 6 * 1000 + 12 * 2 * 4 * 8 * 100
    assert transformer_flops_per_token(parameters=1000, **shape, causal=True) == 6000 + 6 * 6400
    assert transformer_flops_per_token(parameters=1000, **shape, recompute=True) == 8000 + 16 * 6400
    # Of a mixture of experts only those count that a token passes through.
    assert transformer_flops_per_token(parameters=1000, active_parameters=300, **shape) == 1800 + 12 * 6400


def test_mfu_is_against_the_dense_peak_of_the_dtype_in_use() -> None:
    found = utilization(0.5, model_flops=989.5e12 * 0.2, executed_flops=989.5e12 * 0.25, device=H100, dtype="bfloat16")
    assert found.mfu == pytest.approx(0.4)
    assert found.hfu == pytest.approx(0.5)
    assert found.caveats == []
    assert found.basis.startswith("dense bfloat16 peak of h100-sxm5-80gb, 989.5 TFLOP/s (")
    eight = utilization(0.5, model_flops=8 * 989.5e12 * 0.2, device=H100, dtype="bf16", devices=8)
    assert eight.mfu == pytest.approx(0.4)
    assert eight.hfu is None


@pytest.mark.parametrize(
    ("device", "dtype", "why"),
    [
        ("AMD EPYC", "float32", "the dense peak of 'AMD EPYC' is not known"),
        (H100, None, "the type in which the matrix products run is not known"),
        ("Tesla V100-SXM2-32GB", "bfloat16", "no dense bfloat16 peak is published for v100-sxm2"),
    ],
)
def test_an_unknown_peak_stays_unknown(device: str, dtype: str | None, why: str) -> None:
    found = utilization(1.0, model_flops=1e12, device=device, dtype=dtype)
    assert (found.mfu, found.hfu, found.peak_flops_per_s, found.flops_per_s) == (None, None, None, 1e12)
    assert found.basis == why


def test_more_than_a_matrix_product_can_reach_is_a_fault_of_the_measurement() -> None:
    found = utilization(1.0, model_flops=989.5e12 * 0.81, device=H100, dtype="bf16")
    assert [c.code for c in found.caveats] == ["flops-above-achievable"]
    assert found.caveats[0].text.startswith(
        "81% of the peak cannot be: the best matrix product measured there reaches 80%"
    )
    assert utilization(1.0, model_flops=1e12, executed_flops=2000e12, device=H100, dtype="bf16").caveats


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, energy_mj: list[int]) -> None:
        self.energy_mj = energy_mj
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self.energy_mj:
            raise self.NVMLError("not supported")
        return self.energy_mj.pop(0)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=87)


def test_energy_is_the_difference_of_the_boards_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([5_000, 12_500])
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.setattr(energy, "_uuid", lambda _: "GPU-1")
    meter = energy.energy_meter(SimpleNamespace(type="cuda"))
    assert meter is not None
    reading = meter.stop()
    assert reading == energy.EnergyReading(joules=7.5, kernel_time_share=0.87)
    assert nvml.open == 0


@pytest.mark.parametrize(("kind", "counter"), [("cpu", [1, 2]), ("cuda", [])])
def test_energy_is_not_measured_without_a_counter(
    monkeypatch: pytest.MonkeyPatch, kind: str, counter: list[int]
) -> None:
    nvml = FakeNvml(counter)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.setattr(energy, "_uuid", lambda _: "GPU-1")
    assert energy.energy_meter(SimpleNamespace(type=kind)) is None
    assert nvml.open == 0
