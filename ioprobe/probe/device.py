"""The accelerator through torch, on every version since 2.4 and with none present."""

from __future__ import annotations

from typing import Any


def current_device() -> Any:
    """Return the ``torch.device`` a step would run on: the accelerator that works here, or the CPU."""
    import torch

    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        # Without the check it names the accelerator that torch was built for, driver or not.
        try:
            found = accelerator.current_accelerator(check_available=True)
        except TypeError:  # torch 2.6 has no such argument
            found = accelerator.current_accelerator() if accelerator.is_available() else None
        return torch.device("cpu") if found is None else found
    # Only torch.backends says whether Apple's is available.
    kinds = {"cuda": torch.cuda, "xpu": getattr(torch, "xpu", None), "mps": getattr(torch.backends, "mps", None)}
    for kind, module in kinds.items():
        if module is not None and module.is_available():
            return torch.device(kind)
    return torch.device("cpu")


def synchronize(device: Any) -> None:
    """Wait until the device has done all that was asked of it; nothing to do on the CPU."""
    import torch

    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def timing_event(device: Any) -> Any:
    """Return an event that can be recorded on the device's stream and timed."""
    import torch

    module = getattr(torch, device.type)
    # torch.mps keeps its class one level down.
    kind = getattr(module, "Event", None) or module.event.Event
    return kind(enable_timing=True)


def device_names() -> list[str]:
    """Return the names of the accelerators that torch can use, one entry each."""
    import torch

    kind = current_device().type
    if kind == "cpu":
        return []
    module = getattr(torch, kind)
    count = module.device_count() if hasattr(module, "device_count") else 1
    if not hasattr(module, "get_device_name"):
        return [kind.upper()] * count
    return [str(module.get_device_name(index)) for index in range(count)]
