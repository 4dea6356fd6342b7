"""Cores that threads share, under one clock of wall time and one of service: what the event engine runs on."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappush
from typing import Any

from ioprobe.model.simulate import System

SLICE_S = 1.5e-3
"""How long a thread that has slept runs before it must share its core like any other [s]."""


Handler = Callable[[Any], None]


class Cores:
    """Processor sharing among jobs, and a main process that mostly sleeps and so comes before them."""

    def __init__(self, system: System) -> None:
        self.s = system
        self.t = self.v = 0.0
        self.rate = 1.0
        self.load = 0
        self.main_runs = 0
        self.cpu_used = 0.0
        self.seq = 0
        self.timed: list[tuple[float, int, Handler, Any]] = []
        self.running: list[tuple[float, int, Handler, Any, int]] = []
        # A worker computes, sends, and shares what it sent, each in a thread of its own.
        most = 3 * system.num_workers + 2 + math.ceil(max(1.0, system.step_cpu_share))
        self.rates = [[_rate(system, load, main) for load in range(most + 1)] for main in (0, 1)]

    def _at(self, delay: float, handler: Handler, argument: Any) -> None:
        self.seq += 1
        heappush(self.timed, (self.t + delay, self.seq, handler, argument))

    def _compute(self, demand: float, handler: Handler, argument: Any, width: int = 1) -> None:
        """Run a job on the shared cores; ``width`` threads of it at once."""
        self.cpu_used += demand * width
        self.seq += 1
        heappush(self.running, (self.v + demand, self.seq, handler, argument, width))
        self.load += width
        self.rate = self.rates[self.main_runs][self.load]

    def _burst(self, demand: float, handler: Handler, argument: Any) -> None:
        """Run the main process."""
        if demand <= 0:
            handler(argument)
        elif self.s.main_first:
            first = min(demand, SLICE_S)
            self.cpu_used += first
            self.main_runs = 1
            self.rate = self.rates[1][self.load]
            self._at(first, self._burst_over, (demand - first, handler, argument))
        else:
            self._compute(demand, handler, argument)

    def _burst_over(self, what: tuple[float, Handler, Any]) -> None:
        rest, handler, argument = what
        self.main_runs = 0
        self.rate = self.rates[0][self.load]
        if rest <= 0:
            handler(argument)
        elif self.load < self.s.cores:
            self._burst(rest, handler, argument)
        else:
            # Whoever sleeps most is next in line: it takes turns with one other, however many there are.
            self._at(SLICE_S, self._burst_again, what)

    def _burst_again(self, what: tuple[float, Handler, Any]) -> None:
        self._burst(*what)


def _rate(system: System, load: int, main: int) -> float:
    """Speed of one job among ``load`` threads, with or without the main process on a core of its own."""
    if load == 0:
        return 1.0
    cores = system.cores
    if math.isinf(cores):
        return 1.0
    share = min(1.0, max(0.0, cores - main) / load)
    busy = min(load + main, cores)
    slow = 1.0 + system.contention * max(0.0, busy - 1.0) / max(1e-9, system.reference_cores - 1.0)
    return share / slow
