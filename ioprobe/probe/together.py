"""Several ranks measured at once: they end after the same batch, and run as many steps.

A step that communicates hangs when one rank leaves earlier than the others. So rank 0 alone decides when it is over,
and says so a few batches ahead, by number; the others read it when they get there.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ioprobe.instrument import clocks
from ioprobe.instrument.meeting import Meetings, time_backward, time_collectives
from ioprobe.probe import protocol, step_parts
from ioprobe.probe.failures import failure_of
from ioprobe.probe.step import add_flops
from ioprobe.probe.step_clock import Block, clock_for
from ioprobe.probe.sync_difference import Together, measure_difference
from ioprobe.probe.updates import counted_updates
from ioprobe.run import StepRun

_AHEAD_S = 0.4
_FIRST_POINTS = (2, 4)
_WARM_STEPS = 3
_FEWEST_STEPS, _MOST_STEPS = 5, 400
_TRACED_STEPS = 5
_PATIENCE_S = 10.0


def connect(team: protocol.Team) -> Any:
    """Return a client of the ranks' key-value store."""
    import torch.distributed

    distributed: Any = torch.distributed
    store = distributed.TCPStore(team.address, team.port, None, False, timedelta(seconds=team.patience_s))
    return distributed.PrefixStore(f"{team.prefix}/measuring", store)


def communicates() -> bool:
    """Whether the user's code has joined a process group."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def time_meetings() -> Meetings:
    """Time backward passes and collectives from now on; call it before the user's code is imported."""
    import torch
    import torch.distributed

    meetings = Meetings()
    if hasattr(torch, "autograd"):
        time_backward(meetings)
    if torch.distributed.is_available():
        time_collectives(meetings)
    return meetings


class Pacer:
    """Tells each rank after which batch the measurement ends.

    Points lie about 0.4 s apart. At each one rank 0 says where the point after next is and whether it is the last;
    ranks that communicate are at most a step apart, so that it is known to all before they get there.

    Args:
        store: The ranks' key-value store.
        rank: Of this process.
        name: Of this measurement, the same on all ranks.
        seconds: How long it may take [s].
    """

    def __init__(self, store: Any, rank: int, name: str, seconds: float) -> None:
        self._store, self._rank, self._name, self._seconds = store, rank, name, seconds
        self._points = [(batches, False) for batches in _FIRST_POINTS]
        self._number = 0

    def is_over(self, batches: int, elapsed_s: float) -> bool:
        """Whether to end after so many batches."""
        at, last = self._points[0]
        if batches < at:
            return False
        if last:
            return True
        self._points.pop(0)
        if self._rank == 0:
            self._decide(batches, elapsed_s)
        elif not self._points:
            self._number += 1
            words = bytes(self._store.get(f"{self._name}/{self._number}")).split()
            self._points.append((int(words[0]), words[1] == b"1"))
        return False

    def _decide(self, batches: int, elapsed_s: float) -> None:
        cycle_s = max(1e-6, elapsed_s / batches)
        at = self._points[-1][0] + max(2, math.ceil(_AHEAD_S / cycle_s))
        last = elapsed_s + (at - batches) * cycle_s >= self._seconds
        self._number += 1
        self._store.set(f"{self._name}/{self._number}", f"{at} {int(last)}")
        self._points.append((at, last))


def measure_step_together(
    step: Callable[[Any], Any],
    following: Callable[[], Any],
    *,
    store: Any,
    rank: int,
    seconds: float,
    samples: int,
    tokens: int | None,
    source: str,
    progress: Callable[[str, float, float], None] | None = None,
) -> StepRun:
    """Return the time of a training step that communicates: as many steps on every rank, then a few under the tracer.

    Where its gradient synchronisation can be turned off, it is also timed without, and under torch's FLOP counter
    where matrix products were seen.

    Args:
        step: Called with a batch.
        following: Returns the next resident batch.
        store: The ranks' key-value store.
        rank: Of this process.
        seconds: Budget; rank 0 turns it into a number of steps for all [s].
        samples, tokens: In a batch.
        source: Where the step comes from.
        progress: Called now and then.
    """
    import torch.distributed

    clock = clock_for(step)
    together = Together(store, rank, torch.distributed.get_world_size(), lambda name: _align(store, name))
    result = StepRun(
        durations_s=[], samples_per_step=samples, tokens_per_step=tokens, device=clock.device_name, source=source
    )
    try:
        for _ in range(_WARM_STEPS):
            result.warmup_s.append(clock.one(following))
        count = _agreed_steps(store, rank, seconds, result.warmup_s[-1])
        block = Block(result.durations_s, result.cpu_s)
        begun = clocks.now()
        with counted_updates(following) as updates:
            for done in range(0, count, 5):
                clock.run(updates.following, min(5, count - done), block)
                if progress is not None:
                    progress("the step alone", clocks.now() - begun, seconds)
            clock.drain(block)
        result.updates_per_step = updates.per_call()
        shares = step_parts.trace(step, following, clock, _TRACED_STEPS, together.align)
        if shares is not None:
            result.parts_s = shares.seconds_per_step(sum(result.durations_s) / len(result.durations_s))
            result.parts_steps = shares.steps
        result.sync = measure_difference(step, following, clock, together=together, seconds=seconds)
        if together.all(shares is not None and shares.products):
            add_flops(step, following, result, together.any)
    except (Exception, SystemExit) as error:
        result.failure = failure_of(error, "step")
    return result


def _agreed_steps(store: Any, rank: int, seconds: float, step_s: float) -> int:
    if rank == 0:
        count = min(_MOST_STEPS, max(_FEWEST_STEPS, math.ceil(seconds / max(1e-6, step_s))))
        store.set("steps", str(count))
        return count
    return int(bytes(store.get("steps")))


def _align(store: Any, name: str) -> None:
    """Wait until all ranks have come to a point; bounded, because a rank may be lost."""
    import torch.distributed

    size = torch.distributed.get_world_size()
    until = clocks.now() + _PATIENCE_S
    store.add(name, 1)
    while int(store.add(name, 0)) < size and clocks.now() < until:
        time.sleep(0.001)
