"""Keep an accelerator's queue short and learn when it idled, without stopping it.

A step on an accelerator returns before it is done. Waiting for each step would
remove the run-ahead that a real loop has; never waiting would measure how fast
steps can be enqueued. So the loop stays at most two steps ahead, and events
tell the idle time between steps.
"""

from __future__ import annotations

from typing import Any

_AHEAD = 2


class DevicePace:
    """Call :meth:`before` and :meth:`after` around every step; on a CPU both do nothing."""

    def __init__(self) -> None:
        self._make: Any = None
        self._marks: list[tuple[Any, Any]] = []
        self._start: Any = None
        try:
            self._make = _event_maker()
        except Exception:  # an accelerator that is named but does not work: measure as on a CPU
            self._make = None

    def before(self) -> None:
        """The step is about to be enqueued."""
        if self._make is not None:
            self._start = self._make()
            self._start.record()

    def after(self) -> float | None:
        """The step was enqueued; returns the idle time before an earlier step once known [s], None on a CPU."""
        if self._make is None:
            return None
        end = self._make()
        end.record()
        self._marks.append((self._start, end))
        if len(self._marks) <= _AHEAD:
            return 0.0
        (_, end_a), (start_b, _) = self._marks[0], self._marks[1]
        self._marks.pop(0)
        start_b.synchronize()
        return max(0.0, float(end_a.elapsed_time(start_b)) * 1e-3)


def _event_maker() -> Any:
    from ioprobe.probe.device import current_device

    device = current_device()
    if device.type in ("cpu", "mps"):
        return None
    import torch

    if hasattr(torch, "Event"):
        return lambda: torch.Event(device=device, enable_timing=True)
    return lambda: torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
