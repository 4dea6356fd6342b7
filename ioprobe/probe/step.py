"""The training step on a resident batch, nothing else running."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from ioprobe import stats
from ioprobe.instrument import clocks
from ioprobe.probe import step_parts
from ioprobe.probe.energy import energy_meter
from ioprobe.probe.failures import failure_of
from ioprobe.probe.flops import count_flops
from ioprobe.probe.step_clock import Block, Clock, clock_for
from ioprobe.probe.updates import counted_updates
from ioprobe.run import Failure, StepRun

Step = Callable[[Any], Any]
Following = Callable[[], Any]
Progress = Callable[[str, float, float], None]

NARROW = 0.02
"""Half the 95% interval over the mean at which a measurement may end early [fraction]."""
_FEWEST = 3
_EARLY = 20
_MOST_WARMUP = 200
_MOST = 20_000
_LOOK_S = 0.1
_PERIODS = 3
"""Whole periods of a step that pauses regularly, where twice the time allows it."""


class EmulatedStep:
    """A step that takes a constant time and no CPU: the stand-in for an accelerator.

    The sleep goes to an absolute deadline, and what the kernel overslept is
    taken off the next one, so that the mean keeps to the asked time.
    """

    def __init__(self, seconds: float) -> None:
        """Make a step of a given length [s]; zero returns at once.

        Raises:
            ValueError: seconds is negative or no finite number.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a step takes a finite time of at least 0 s, not {seconds}")
        self.seconds = seconds
        self._owed_s = 0.0

    def __call__(self, batch: Any) -> None:
        if not self.seconds:
            return
        began = clocks.now()
        deadline = began + self.seconds - self._owed_s
        while (left := deadline - clocks.now()) > 0:
            time.sleep(left)
        # A stolen core may cost more than a step; that much is never caught up with.
        late = clocks.now() - began - self.seconds + self._owed_s
        self._owed_s = min(late, self.seconds / 2)


def rotation(batches: Sequence[Any]) -> Callable[[], Any]:
    """Return a function that hands out the batches in turn, for ever.

    Lists and dictionaries come as shallow copies: many steps pop the labels.
    """
    count = 0

    def following() -> Any:
        nonlocal count
        batch = batches[count % len(batches)]
        count += 1
        return type(batch)(batch) if type(batch) in (list, dict) else batch

    return following


def measure_step(
    step: Step,
    batch: Any,
    *,
    seconds: float,
    samples: int,
    device: Any = None,
    progress: Progress | None = None,
    more_batches: Sequence[Any] = (),
    tokens: int | None = None,
    source: str = "",
    trace: bool = True,
) -> StepRun:
    """Return the time of a training step, first warmed up and then in steady state.

    Warm-up (compilation, allocator, autotuning) ends when successive steps
    agree. Then steps run until the 95% interval of their mean is within 2%, or
    the time is over. A step that pauses regularly (a checkpoint every 40 steps)
    is measured over whole periods: the rate is all work over all time. On an
    accelerator each step is timed by events, with one synchronisation per
    block; a step with a ``sync()`` method is taken to be asynchronous and timed
    in blocks, one mean per block.

    Args:
        step: Called with a batch; what it returns is dropped.
        batch: Kept in memory; handed to every call.
        seconds: Budget of the steady state [s]; warm-up takes at most a quarter more, the first step apart.
        samples: Training examples in a batch.
        device: ``torch.device`` to time on; the accelerator that works here by default, or the CPU.
        progress: Called with what is measured, the seconds spent and the seconds it may take.
        more_batches: Further batches to take turns with.
        tokens: Tokens in a batch.
        source: Where the step comes from, for the report.
        trace: Run a few further steps under ``torch.profiler`` for communication, transfer and checkpoint shares,
            and one or two under torch's FLOP counter where matrix products were seen.

    Returns:
        The run; a step that raised or was interrupted leaves what was measured before and a ``failure``.
    """
    stats.prepare()
    emulated = isinstance(step, EmulatedStep)
    clock = clock_for(step, device, emulated=emulated)
    result = StepRun(
        durations_s=[],
        samples_per_step=samples,
        tokens_per_step=tokens,
        device=clock.device_name,
        emulated=emulated,
        source=source,
    )
    following = rotation([batch, *more_batches])
    try:
        _warm_up(clock, following, 0.25 * seconds, result.warmup_s)
        _measure(clock, following, seconds, result, progress)
        if trace and not emulated and _add_parts(step, following, clock, result):
            add_flops(step, following, result)
    except KeyboardInterrupt:
        result.failure = Failure(phase="step", kind="interrupted", message="interrupted while the step was measured")
    except (Exception, SystemExit) as error:
        result.failure = failure_of(error, "step")
    return result


def _warm_up(clock: Clock, following: Following, budget_s: float, durations: list[float]) -> None:
    """Run steps until successive ones agree; the first never counts against the budget (it may compile)."""
    durations.append(clock.one(following))
    spent = 0.0
    while not _settled(durations) and (spent < budget_s or len(durations) < 2) and len(durations) < _MOST_WARMUP:
        durations.append(clock.one(following))
        spent += durations[-1]


def _settled(durations: Sequence[float]) -> bool:
    # Long steps repeat well; a short one needs more witnesses.
    look = 2 if durations[-1] >= 0.02 else 5
    tail = durations[-look:]
    if len(durations) <= look:
        return False
    # The first may be the slow one that compiles; agreement must be among those after it.
    return max(tail) <= 1.15 * min(tail)


def _measure(clock: Clock, following: Following, seconds: float, result: StepRun, progress: Progress | None) -> None:
    with counted_updates(following) as updates:
        _measure_steady(clock, updates.following, seconds, result, progress)
    result.updates_per_step = updates.per_call()
    lead = _before_whole_periods(result.durations_s)
    result.warmup_s += result.durations_s[:lead]
    del result.durations_s[:lead], result.cpu_s[:lead]


def _measure_steady(
    clock: Clock, following: Following, seconds: float, result: StepRun, progress: Progress | None
) -> None:
    block = Block(result.durations_s, result.cpu_s)
    meter = energy_meter(clock.device)
    began = looked = clocks.now()
    while True:
        steps = clock.block_steps(result.durations_s)
        clock.run(following, _until_pause(result.durations_s, steps) if clock.each else steps, block)
        now = clocks.now()
        if now - looked < _LOOK_S and now - began < seconds and len(result.durations_s) < _MOST:
            continue
        looked = now
        if progress is not None:
            progress("the step alone", now - began, seconds)
        if _enough(result.durations_s, now - began, seconds, emulated=result.emulated):
            break
    clock.drain(block)
    if meter is not None and (reading := meter.stop()) is not None:
        mean_s = stats.mean(result.durations_s).value
        result.joules_per_step = reading.joules * mean_s / (clocks.now() - began)
        result.kernel_time_share = reading.kernel_time_share


def _until_pause(durations: Sequence[float], steps: int) -> int:
    """At most so many steps that the next pause, where one is due or may be, ends the block."""
    if len(durations) >= _MOST // 10 or steps == 1 or not (found := stats.pauses(durations)):
        return steps
    period = stats.pause_period(durations)
    return 1 if period is None else min(steps, max(1, found[-1] + period + 1 - len(durations)))


def _enough(durations: Sequence[float], spent_s: float, seconds: float, *, emulated: bool) -> bool:
    if len(durations) < _FEWEST:
        # Steps of minutes: three are wanted, but not at any price.
        return spent_s >= 4 * seconds
    narrow = stats.mean(durations).relative_halfwidth <= NARROW
    if spent_s < seconds and len(durations) < _MOST:
        early = len(durations) >= _EARLY and (emulated or spent_s >= seconds / 2)
        return early and narrow
    if spent_s >= 2 * seconds or len(durations) >= _MOST:
        return True
    found = stats.pauses(durations)
    if sum(durations[i] for i in found) < 0.1 * sum(durations):
        return True
    # Pauses that matter: end with one, so that whole periods are counted, and several of them while there is time.
    period = stats.pause_period(durations)
    if period is None or found[-1] != len(durations) - 1:
        return False
    return len(found) > _PERIODS or spent_s + sum(durations[-period:]) > 2 * seconds


def _before_whole_periods(durations: Sequence[float]) -> int:
    """How many leading steps belong to a period that began before the measurement did."""
    found = stats.pauses(durations)
    if stats.pause_period(durations) is None or found[-1] != len(durations) - 1:
        return 0
    return found[0] + 1


def _add_parts(step: Step, following: Following, clock: Clock, result: StepRun) -> bool:
    """Trace a few further steps, scale their shares to the measured time, and return whether torch multiplied."""
    usual = stats.percentile(result.durations_s, 0.5) or 0.0
    period = stats.pause_period(result.durations_s)
    shares = step_parts.trace(step, following, clock, steps_for(usual, period))
    if shares is None:
        return False
    result.parts_steps = shares.steps
    if period is None:
        result.parts_s = shares.seconds_per_step(stats.mean(result.durations_s).value)
        return shares.products
    parts = shares.seconds_per_step(usual)
    # The measurement ended with a pause: this many steps lie before the next one.
    counted = (
        0 if result.flops_per_step is None else 1 if result.executed_flops_per_step == result.flops_per_step else 2
    )
    for _ in range(period - shares.steps - counted - 1):
        step(following())
    pause = step_parts.trace(step, following, clock, 1)
    if pause is not None and pause.window_s > stats.PAUSE / 2 * usual:
        with_pause = pause.seconds_per_step(max(result.durations_s))
        names = parts.keys() | with_pause.keys()
        parts = {n: (parts.get(n, 0.0) * (period - 1) + with_pause.get(n, 0.0)) / period for n in sorted(names)}
        result.parts_steps += 1
    result.parts_s = parts
    return shares.products


def add_flops(
    step: Step, following: Following, result: StepRun, agree: Callable[[bool], bool] = lambda mine: mine
) -> None:
    """Count the work of one step more; what torch compiled is counted as it was written.

    For ``agree`` see :func:`ioprobe.probe.flops.count_flops`.
    """
    plain = getattr(step, "uncompiled", step)
    try:
        counted = count_flops(plain, following(), agree)
    except Exception:  # kernels that torch's counter cannot run under; the step itself has shown that it works
        return
    if counted is not None:
        result.flops_per_step, result.executed_flops_per_step = float(counted.model), float(counted.executed)
        result.dtype = counted.dtype


def steps_for(usual_s: float, period: int | None) -> int:
    """Return how many steps to trace: about a third of a second, at most 20, and no pause among them."""
    wanted = min(20, max(3, math.ceil(0.3 / usual_s))) if usual_s > 0 else 20
    return wanted if period is None else max(1, min(wanted, period - 1))
