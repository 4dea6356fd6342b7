"""Communication by difference: the same step with and without gradient synchronisation, in turn, on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec

from ioprobe import stats
from ioprobe.probe.failures import failure_of
from ioprobe.probe.step_clock import Block, Clock
from ioprobe.probe.step_sync import Switch, find_switch
from ioprobe.run import SyncDifference

_ROUNDS = (8, 6, 4, 3)
"""Pairs of blocks; fewer where steps are long, and never so few that they have no spread."""
_LEAST_S = 1.2
"""Spent on it even where the step's own budget is smaller [s]: one disturbed block must not decide."""
_MOST_STEPS = 50
_LONGEST_S = 20.0
"""A step so long that three short rounds take more than this is not measured again [s]."""


class Plan(msgspec.Struct, frozen=True):
    """How often to run the step, the same on all ranks."""

    rounds: int
    steps: int
    """Timed in each block; one more comes before."""


def plan_rounds(seconds: float, step_s: float) -> Plan | None:
    """Return how often to run a step within a budget; None where it is too long.

    >>> plan_rounds(3.0, 0.02), plan_rounds(0.4, 0.07), plan_rounds(3.0, 60.0)
    (Plan(rounds=8, steps=9), Plan(rounds=8, steps=1), None)
    """
    for rounds in _ROUNDS:
        steps = math.floor(max(seconds, _LEAST_S) / (2 * rounds * max(step_s, 1e-6)))
        if steps >= 1:
            return Plan(rounds, min(steps, _MOST_STEPS))
    return Plan(3, 1) if 4 * _ROUNDS[-1] * step_s <= max(_LONGEST_S, 4 * seconds) else None


class Together:
    """What the ranks agree on through their key-value store, in one order on all of them.

    Args:
        store: The ranks' key-value store.
        rank: Of this process.
        size: Number of ranks.
        align: Waits until all ranks have come to a point of that name.
    """

    def __init__(self, store: Any, rank: int, size: int, align: Callable[[str], None]) -> None:
        self._store, self._rank, self._size, self._align = store, rank, size, align
        self._questions = self._points = 0

    def all(self, mine: bool) -> bool:
        """Whether it is so on every rank."""
        self._questions += 1
        name = f"all/{self._questions}"
        self._store.set(f"{name}/{self._rank}", str(int(mine)))
        return all(bytes(self._store.get(f"{name}/{rank}")) == b"1" for rank in range(self._size))

    def any(self, mine: bool) -> bool:
        """Whether it is so on some rank."""
        return not self.all(not mine)

    def from_first(self, mine: Callable[[], str]) -> str:
        """Return what rank 0 says."""
        self._questions += 1
        name = f"first/{self._questions}"
        if self._rank == 0:
            text = mine()
            self._store.set(name, text)
            return text
        return bytes(self._store.get(name)).decode()

    def align(self) -> None:
        """Wait until all ranks are here."""
        self._points += 1
        self._align(f"point/{self._points}")


def measure_difference(
    step: Callable[[Any], Any], following: Callable[[], Any], clock: Clock, *, together: Together, seconds: float
) -> SyncDifference | None:
    """Return a step's time with and without gradient synchronisation; None where it cannot be turned off.

    Blocks of both kinds take turns, so that a drift of the host cancels out, and each begins on all ranks at once with
    a step that does not count. The optimizer gets no gradients meanwhile: it works on neither kind, ranks that do not
    synchronise keep the same weights, and a sharded module's optimizer does not stumble over gradients of full size.

    Args:
        step: Called with a batch.
        following: Returns the next resident batch.
        clock: Fits the step.
        together: The ranks.
        seconds: Budget [s].
    """
    switch = find_switch(step)
    if not together.all(switch is not None) or switch is None:
        return None
    result = SyncDifference(switch=switch.name, sharded=switch.sharded)
    try:
        with _idle_optimizers():
            _run_rounds(switch, following, clock, together, seconds, result)
    except Exception as error:
        result.failed = failure_of(error, "step").message
    finally:
        # What was summed up without synchronisation would otherwise join the next gradients.
        clock.finish()
    return result


def _run_rounds(
    switch: Switch,
    following: Callable[[], Any],
    clock: Clock,
    together: Together,
    seconds: float,
    result: SyncDifference,
) -> None:
    for off in (True, False):  # whatever is made or compiled at first
        together.align()
        with switch.off() if off else nullcontext():
            usual_s = max(clock.one(following) for _ in range(2))
    plan = msgspec.json.decode(
        together.from_first(lambda: msgspec.json.encode(plan_rounds(seconds, usual_s)).decode()), type=Plan | None
    )
    if plan is None:
        result.failed = "the step is too long to be run that often"
        return
    result.steps = plan.steps
    for number in range(plan.rounds):
        for off in (False, True) if number % 2 == 0 else (True, False):
            together.align()
            with switch.off() if off else nullcontext():
                mean_s = _block(clock, following, plan.steps)
            (result.without_s if off else result.with_s).append(mean_s)


def _block(clock: Clock, following: Callable[[], Any], steps: int) -> float:
    """Return the mean time of so many steps after one that brings the ranks into step [s]."""
    clock.one(following)
    block = Block([], [])
    clock.run(following, steps, block)
    clock.drain(block)
    return stats.mean(block.durations_s).value


@contextmanager
def _idle_optimizers() -> Iterator[None]:
    """Take the gradients away from every optimizer of torch right before it would apply them."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def drop(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    handle = register_optimizer_step_pre_hook(drop)
    try:
        yield
    finally:
        handle.remove()
