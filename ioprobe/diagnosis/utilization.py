"""What part of an accelerator's dense peak a step reaches."""

from __future__ import annotations

import msgspec

from ioprobe import stats
from ioprobe.facts import Accelerator, accelerator
from ioprobe.run import Caveat, Host, StepRun
from ioprobe.units import format_flops, format_share


class Utilization(msgspec.Struct, frozen=True, kw_only=True):
    """What part of the dense peak a step reaches; None where work or peak is not known."""

    mfu: float | None
    """Model FLOPs over the dense peak of the dtype in use [fraction]."""
    hfu: float | None
    """The same with recomputed work [fraction]."""
    flops_per_s: float | None
    """Model FLOPs over time, per device [FLOP/s]."""
    peak_flops_per_s: float | None
    """Dense peak of one device [FLOP/s]."""
    basis: str
    """Whose peak, of which dtype, and the source; or why it is not known."""
    caveats: list[Caveat] = []


def utilization(
    step_s: float,
    *,
    model_flops: float | None,
    executed_flops: float | None = None,
    device: str,
    dtype: str | None,
    devices: int = 1,
) -> Utilization:
    """Return MFU and HFU of a step.

    Args:
        step_s: Mean seconds per step; must be positive.
        model_flops: FLOPs per step without recomputation, over all devices.
        executed_flops: The same with it.
        device: The device's name, as torch or the driver gives it.
        dtype: Type in which the matrix products run.
        devices: Devices that share the work.
    """
    chip = accelerator(device)
    peak = None if chip is None or dtype is None else chip.peak_flops_per_s(dtype)
    rate = None if model_flops is None else model_flops / step_s / devices
    executed = None if executed_flops is None else executed_flops / step_s / devices
    if peak is None:
        return Utilization(
            mfu=None, hfu=None, flops_per_s=rate, peak_flops_per_s=None, basis=_unknown(chip, device, dtype)
        )
    mfu = None if rate is None else rate / peak
    hfu = None if executed is None else executed / peak
    source = chip.sources[0] if chip is not None and chip.sources else ""
    return Utilization(
        mfu=mfu,
        hfu=hfu,
        flops_per_s=rate,
        peak_flops_per_s=peak,
        basis=f"dense {dtype} peak of {chip.id if chip else device}, {peak / 1e12:g} TFLOP/s ({source})",
        caveats=_too_high(max(mfu or 0.0, hfu or 0.0), chip),
    )


def step_utilization(step: StepRun, host: Host) -> Utilization | None:
    """Return MFU and HFU of a measured step on one device; None where its FLOPs are not known.

    Args:
        step: With its FLOPs counted or declared, those of this rank.
        host: Names the device: the accelerator that an emulated step stands for, else the one it ran on.
    """
    if step.flops_per_step is None or not step.durations_s:
        return None
    here = host.cpu_model if step.device == "cpu" else next(iter(host.accelerators), step.device)
    if step.emulated and not step.accelerator:
        here = "an emulated accelerator"
    return utilization(
        stats.periodic_mean(step.durations_s).value,
        model_flops=step.flops_per_step,
        executed_flops=step.executed_flops_per_step,
        device=step.accelerator or here,
        dtype=step.dtype,
    )


def utilization_sentence(use: Utilization) -> str:
    """Return what the step reaches, in words."""
    rate = "" if use.flops_per_s is None else f"the step alone does {format_flops(use.flops_per_s)}"
    if use.mfu is None:
        return f"{rate}; MFU is not known: {use.basis}"
    hfu = "" if use.hfu is None else f", HFU {format_share(use.hfu)}"
    return f"{rate}: MFU {format_share(use.mfu)}{hfu} of the {use.basis}"


def _unknown(chip: Accelerator | None, device: str, dtype: str | None) -> str:
    if chip is None:
        return f"the dense peak of '{device}' is not known"
    if dtype is None:
        return "the type in which the matrix products run is not known"
    return f"no dense {dtype} peak is published for {chip.id}"


def _too_high(share: float, chip: Accelerator | None) -> list[Caveat]:
    """A share of the peak that no matrix product reaches is a fault of the measurement."""
    reachable = (chip.max_achievable_fraction if chip else None) or 1.0
    if share <= reachable:
        return []
    best = f"the best matrix product measured there reaches {reachable:.0%}" if reachable < 1 else "the peak is 100%"
    return [
        Caveat(
            "flops-above-achievable",
            f"{share:.0%} of the peak cannot be: {best}; time, FLOP count or dtype is wrong",
            "count the FLOPs without torch.compile, name the dtype in use, and time with more steps",
        )
    ]
