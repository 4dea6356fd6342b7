"""Three ways to time a step: by the host's clock, in blocks up to a ``sync()``, and by device events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from ioprobe.instrument import clocks

_BLOCK_S = 0.1
"""Length of a block between two synchronisations [s]; long enough that the device never runs dry for its sake."""
_MOST_STEPS = 256


class Block(msgspec.Struct):
    """Steps timed in one go."""

    durations_s: list[float]
    cpu_s: list[float]
    """CPU of the process, all threads, one entry per duration."""


class Clock:
    """Times a step that is done when it returns."""

    device_name = "cpu"
    device: Any = None
    """``torch.device`` of an accelerator, None on the CPU."""
    each = True
    """Whether a duration is that of one step, not the mean of several."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        self.step = step

    def block_steps(self, durations_s: Sequence[float]) -> int:
        """How many steps to run before the next look at the results."""
        return min(_MOST_STEPS, math.ceil(_BLOCK_S / 5 / max(_middle(durations_s), 1e-6))) if durations_s else 1

    def one(self, following: Callable[[], Any]) -> float:
        """Run one step by itself and return how long it took [s]."""
        block = Block([], [])
        self.run(following, 1, block)
        return block.durations_s[0]

    def run(self, following: Callable[[], Any], steps: int, into: Block) -> None:
        """Run steps and add one duration for each; what was done before a step raised stays."""
        for _ in range(steps):
            batch = following()
            cpu, began = clocks.process_cpu(), clocks.now()
            self.step(batch)
            into.durations_s.append(clocks.now() - began)
            into.cpu_s.append(clocks.process_cpu() - cpu)

    def drain(self, into: Block) -> None:
        """Add the durations that are still on their way."""

    def finish(self) -> None:
        """Wait until all work that was asked for is done."""


class SyncClock(Clock):
    """Times a step that returns at once and has a ``sync()``: the mean of a block is one duration."""

    each = False

    def __init__(self, step: Callable[[Any], Any]) -> None:
        super().__init__(step)
        self.sync: Callable[[], Any] = step.sync  # type: ignore[attr-defined]
        self._latest_s = 0.0
        self._steps = 0

    def block_steps(self, durations_s: Sequence[float]) -> int:
        # Equal blocks, so that each duration weighs the same.
        if not self._steps:
            self._steps = min(_MOST_STEPS, max(4, math.ceil(_BLOCK_S / max(self._latest_s, 1e-6))))
        return self._steps

    def run(self, following: Callable[[], Any], steps: int, into: Block) -> None:
        batches = [following() for _ in range(steps)]
        cpu, began = clocks.process_cpu(), clocks.now()
        for batch in batches:
            self.step(batch)
        self.sync()
        self._latest_s = (clocks.now() - began) / steps
        into.durations_s.append(self._latest_s)
        into.cpu_s.append((clocks.process_cpu() - cpu) / steps)

    def finish(self) -> None:
        self.sync()


class EventClock(Clock):
    """Times each step on the device, by one unbroken chain of events.

    Results are read one block late, so that the device never runs dry: a
    synchronisation in every step would take away the host's lead over it and
    make the step look slower than it is in training.
    """

    def __init__(self, step: Callable[[Any], Any], device: Any) -> None:
        super().__init__(step)
        self.device = device
        self.device_name = str(device)
        self._marks: list[Any] = []
        self._cpu_s: list[float] = []

    def block_steps(self, durations_s: Sequence[float]) -> int:
        return min(_MOST_STEPS, max(4, math.ceil(_BLOCK_S / max(_middle(durations_s), 1e-6)))) if durations_s else 4

    def one(self, following: Callable[[], Any]) -> float:
        self.finish()
        began = clocks.now()
        self.step(following())
        self.finish()
        return clocks.now() - began

    def run(self, following: Callable[[], Any], steps: int, into: Block) -> None:
        if not self._marks:
            self.step(following())  # fills the queue, so that the first duration does not count the launch
            self._mark()
        earlier = len(self._marks) - 1
        for _ in range(steps):
            batch = following()
            cpu = clocks.process_cpu()
            self.step(batch)
            self._mark()
            self._cpu_s.append(clocks.process_cpu() - cpu)
        self._marks[earlier].synchronize()
        self._collect(earlier, into)

    def drain(self, into: Block) -> None:
        self.finish()
        self._collect(len(self._marks) - 1, into)
        self._marks.clear()

    def _mark(self) -> None:
        from ioprobe.probe.device import timing_event

        self._marks.append(timing_event(self.device))
        self._marks[-1].record()

    def _collect(self, count: int, into: Block) -> None:
        for before, after in pairwise(self._marks[: count + 1]):
            into.durations_s.append(before.elapsed_time(after) / 1000)
        into.cpu_s.extend(self._cpu_s[:count])
        del self._marks[:count], self._cpu_s[:count]

    def finish(self) -> None:
        from ioprobe.probe.device import synchronize

        synchronize(self.device)


def clock_for(step: Callable[[Any], Any], device: Any = None, *, emulated: bool = False) -> Clock:
    """Return the clock that fits a step: its own ``sync()`` first, then device events, then the host's clock."""
    if emulated:
        return Clock(step)
    if callable(getattr(step, "sync", None)):
        return SyncClock(step)
    if device is None:
        from ioprobe.probe.device import current_device

        device = current_device()
    return Clock(step) if device.type == "cpu" else EventClock(step, device)


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values[-32:])
    return ordered[len(ordered) // 2]
