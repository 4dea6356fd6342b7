"""Waits and steps of a loop, summed into windows of so many steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ioprobe.watching.stages import StageMeter

_NONE: Mapping[str, float] = MappingProxyType({})


class Window(NamedTuple):
    """Some steps of a watched loop."""

    steps: int
    wait_s: float
    """Blocked for the next batch [s]."""
    wall_s: float
    """From the first request for a batch to the end of the last step [s]."""
    total_steps: int
    """Steps since the beginning."""
    stages: Mapping[str, float] = _NONE
    """Where the workers' time went: shares by stage, which add up to 1 [fraction]; empty where nobody looked."""

    @property
    def stall_share(self) -> float:
        """Waiting over wall time [fraction]."""
        return self.wait_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def steps_per_s(self) -> float:
        """Steps per second."""
        return self.steps / self.wall_s if self.wall_s > 0 else 0.0


class StallMeter:
    """Sums waits and steps, and gives a window every so many steps.

    Args:
        every: Steps in a window.
        clock: Monotonic clock [s].
        stages: Who looks at the workers meanwhile; None for nobody.
    """

    def __init__(
        self, every: int = 100, *, clock: Callable[[], float] = time.perf_counter, stages: StageMeter | None = None
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; it must be at least 1")
        self.every = every
        self.stages = stages
        self._clock = clock
        self._asked: float | None = None
        self._got: float | None = None
        self._steps, self._total = 0, 0
        self._wait_s, self._wall_s = 0.0, 0.0

    def asked(self) -> None:
        """The next batch is asked for: the step before is done."""
        now = self._clock()
        if self._got is not None:
            self._wall_s += now - self._got
            self._steps += 1
            self._total += 1
        self._asked, self._got = now, None

    def got(self) -> Window | None:
        """The batch is there; returns a window where one is full."""
        now = self._clock()
        if self.stages is not None and self._asked is not None:
            self.stages.delivered(self._asked)
        full = self._take() if self._steps >= self.every else None
        if self._asked is not None:
            self._wait_s += now - self._asked
            self._wall_s += now - self._asked
        self._asked, self._got = None, now
        return full

    def paused(self) -> None:
        """The loop is left: what follows is neither waiting nor a step."""
        self._asked = self._got = None
        if self.stages is not None:
            self.stages.drain()

    def _take(self) -> Window:
        stages = self.stages.take() if self.stages is not None else _NONE
        window = Window(self._steps, self._wait_s, self._wall_s, self._total, stages)
        self._steps, self._wait_s, self._wall_s = 0, 0.0, 0.0
        return window
