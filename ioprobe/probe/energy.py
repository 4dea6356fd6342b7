"""Energy and use of an NVIDIA accelerator from its own counters, where nvidia-ml-py is installed."""

from __future__ import annotations

from typing import Any

import msgspec


class EnergyReading(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver counted over a window."""

    joules: float
    """Of the whole board, from its energy counter; kept since Volta [J]."""
    kernel_time_share: float
    """Driver's ``utilization.gpu`` at the end: share of its last sampling period (up to 1 s) in which at least one
    kernel ran, however small [fraction]. It says nothing of how full the device was."""


class EnergyMeter:
    """Reads a board's energy counter at the beginning and the end of a window."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._began_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)

    def stop(self) -> EnergyReading | None:
        """Return what was used since the meter was made; None where the driver stopped answering."""
        nvml = self._nvml
        try:
            joules = (nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) - self._began_mj) / 1000
            share = nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        except nvml.NVMLError:
            return None
        finally:
            nvml.nvmlShutdown()
        return EnergyReading(joules=joules, kernel_time_share=share)


def energy_meter(device: Any) -> EnergyMeter | None:
    """Start a meter for a ``torch.device``, or return None: no NVIDIA device, no nvidia-ml-py, no counter."""
    if getattr(device, "type", "") != "cuda":
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return EnergyMeter(pynvml, pynvml.nvmlDeviceGetHandleByUUID(_uuid(device)))
    except (pynvml.NVMLError, AttributeError, RuntimeError):
        pynvml.nvmlShutdown()
        return None


def _uuid(device: Any) -> str:
    """The board's identifier; an index would not do, because CUDA_VISIBLE_DEVICES renumbers."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
