"""Published figures that ship with the package."""

from __future__ import annotations

import pytest

from ioprobe.errors import UsageError
from ioprobe.facts import accelerator, accelerators, step_preset, workload, workload_names


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2"),
        ("Tesla T4", "t4"),
        ("NVIDIA GB200", "gb200-per-gpu"),
        ("NVIDIA B200", "b200-sxm"),
        ("AMD Instinct MI300X", "mi300x"),
        ("h200", "h200-sxm-141gb"),
        ("H100-PCIE-80GB", "h100-pcie-80gb"),
    ],
)
def test_a_device_name_finds_its_accelerator(name: str, found: str) -> None:
    match = accelerator(name)
    assert match is not None
    assert match.id == found


@pytest.mark.parametrize(
    "name",
    [
        "h100",  # two products
        "NVIDIA A10G",  # slower than the A10
        "NVIDIA L40",
        "NVIDIA GH200 480GB",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "AMD Instinct MI250X/MI250",
        "Some Future Chip",
        "",
    ],
)
def test_an_accelerator_that_is_not_known_for_sure_stays_unknown(name: str) -> None:
    assert accelerator(name) is None


def test_peaks_are_dense_and_unpublished_ones_stay_unknown() -> None:
    h100, v100, mi250x = (accelerator(n) for n in ("h100-sxm5-80gb", "v100-sxm2", "mi250x"))
    assert h100 is not None
    assert v100 is not None
    assert mi250x is not None
    assert h100.peak_flops_per_s("torch.bfloat16") == 989.5e12
    assert h100.peak_flops_per_s("fp8") == 1979e12
    assert v100.peak_flops_per_s("bf16") is None
    assert h100.peak_flops_per_s("int3") is None
    # torch counts two devices in this package.
    assert mi250x.peak_flops_per_s("bf16") == pytest.approx(191.5e12)


def test_every_accelerator_names_its_sources_and_no_fp16_peak_is_the_sparse_one() -> None:
    for one in accelerators():
        assert one.sources, one.id
        peak, best = one.peak_dense_tflops.get("bf16"), one.max_achievable_bf16_tflops
        assert peak is None or best is None or best < peak, one.id


@pytest.mark.parametrize(
    ("name", "on", "bytes_per_s"),
    [
        ("unet3d", "a100", 1613.5e6),
        ("unet3d", "NVIDIA H100 80GB HBM3", 3177.1e6),
        ("unet3d", "b200", 6334.6e6),
        ("resnet50", "A100-SXM4-80GB", 105.4e6),
        ("resnet50", "h100", 204.8e6),
        ("cosmoflow", "a100", 513.3e6),
        ("cosmoflow", "h100", 808.1e6),
    ],
)
def test_published_workloads_ask_for_the_published_bandwidth(name: str, on: str, bytes_per_s: float) -> None:
    anchor = workload(name, on)
    assert anchor.samples_per_s * anchor.bytes_per_sample == pytest.approx(bytes_per_s, rel=5e-4)


def test_the_newest_released_version_of_a_benchmark_counts() -> None:
    anchor = workload("unet3d", "h100")
    assert anchor.source == "MLPerf Storage v2.0, mlcommons/storage@caa90c9 configs/dlio/workload/unet3d_h100.yaml"
    assert (anchor.batch_size, anchor.step_s, anchor.au_threshold) == (7, 0.323, 0.9)
    assert workload("unet3d", "v100").source.startswith("MLPerf Storage v0.5")


def test_drafts_are_not_offered() -> None:
    with pytest.raises(UsageError, match="no published rate of workload 'flux' on 'h100'; published for: b200, mi355"):
        workload("flux", "h100")


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown workload 'resnet-50'") as caught:
        workload("resnet-50", "h100")
    assert "resnet50" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        workload("zzz", "h100")
    assert caught.value.hint == "choose one of " + ", ".join(workload_names())


def test_a_preset_is_the_published_step_at_the_published_batch() -> None:
    preset = step_preset("resnet50", "h100")
    assert (preset.step_s, preset.batch_size) == (0.224, 400)
    assert preset.source.startswith("resnet50 on H100 (emulated: MLPerf Storage v2.0")


def test_another_batch_size_scales_the_step_and_says_so() -> None:
    preset = step_preset("resnet50", "h100", 200)
    assert (preset.step_s, preset.batch_size) == (pytest.approx(0.112), 200)
    assert "scaled in proportion from batch 400" in preset.source


def test_a_rate_without_a_batch_size_needs_one() -> None:
    with pytest.raises(UsageError, match="no batch size"):
        step_preset("clip-vit-b32", "a100")
    assert step_preset("clip-vit-b32", "a100", 85).step_s == pytest.approx(85 / 850.35)
