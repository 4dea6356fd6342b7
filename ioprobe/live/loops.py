"""From the moments at which a job asked for batches to the columns of a run.

A batch's step is the time from its return to the next request; freeing the batch before lies within it. Time outside
the loop over a loader (validation between epochs, checkpoints after the last batch) is cut out of the loop's clock, so
that shares are shares of the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ioprobe.live.hooks.phases import CACHED, DRAIN, OBSERVE
from ioprobe.live.journals import Iterated
from ioprobe.run import MainBatches
from ioprobe.stats import Floats

_COLUMNS = ("cpu_s", "sampler_s", "transport_s", "ready", "samples", "phase", "meeting_s", "number", "own_s")


@dataclass
class Rows:
    """The batches of one loader over all its iterators, in order; a row whose step was cut off is marked by NaN."""

    call_s: list[float] = field(default_factory=list)
    return_s: list[float] = field(default_factory=list)
    next_s: list[float] = field(default_factory=list)
    """When the next batch was asked for; NaN where the loop was left instead."""
    opening_s: list[float] = field(default_factory=list)
    """Further waiting for the first batch of an epoch: the end of the epoch before, starting or rewinding workers."""
    epoch: list[int] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _COLUMNS})

    def of_phase(self, *phases: int) -> list[int]:
        """Return the indices of rows in phases."""
        return [k for k, phase in enumerate(self.columns["phase"]) if int(phase) in phases]


def rows_of(iterators: list[Iterated]) -> Rows:
    """Return the batches of one loader's iterators, given in the order of their making."""
    rows, epoch, ending = Rows(), 0, 0.0
    for iterator in iterators:
        calls = iterator.rows.get("call_s", [])
        resets = iter(iterator.resets)
        opening, at = iterator.init_s + ending, 0
        ends = [*zip(iterator.end_calls, iterator.ends, strict=True), (float("inf"), float("inf"))]
        for end_call, end in ends:
            last = at
            while last < len(calls) and calls[last] < end_call:
                last += 1
            for k in range(at, last):
                rows.call_s.append(calls[k])
                rows.return_s.append(iterator.rows["return_s"][k])
                following = calls[k + 1] if k + 1 < last else end_call
                rows.next_s.append(following if np.isfinite(following) else float("nan"))
                rows.opening_s.append(opening if k == at else 0.0)
                rows.epoch.append(epoch)
                for name in _COLUMNS:
                    rows.columns[name].append(iterator.rows[name][k])
            if last > at or np.isfinite(end):  # an epoch, or what is left of one that the loop was left in
                ending = end - end_call if np.isfinite(end) else 0.0
            epoch += last > at
            at = last
            begin, done = next(resets, (0.0, 0.0))
            opening = ending + done - begin
    return rows


@dataclass(frozen=True)
class Loop:
    """One loader coupled with the job's own step."""

    main: MainBatches
    real_s: Floats
    """When each batch came, on the monotonic clock [s]; with ``virtual_s`` it maps workers' times."""
    virtual_s: Floats
    """The same on the loop's own clock [s since it began]."""
    edges_s: list[float]
    lockstep_s: float
    """Waiting for other loaders that are read in step with this one, counted as waiting [s]."""
    nested_s: float
    """Loops over other loaders inside steps (validation), cut out [s]."""

    def on_clock(self, times_s: list[float]) -> list[float]:
        """Return times on the loop's clock."""
        if not len(self.real_s):
            return times_s
        inside = np.interp(times_s, self.real_s, self.virtual_s)
        times = np.asarray(times_s)
        early = times < self.real_s[0]
        inside[early] = times[early] - self.real_s[0] + self.virtual_s[0]
        return [float(t) for t in inside]


def loop_of(rows: Rows, others: list[Iterated], idle_s: dict[int, float], *, meetings: bool) -> Loop:
    """Return the coupled loop of the observed batches.

    Args:
        rows: Of the loader.
        others: Iterators over the process's other loaders.
        idle_s: Accelerator idle before each batch's step, by the batch's number.
        meetings: Whether there are other ranks to meet.
    """
    use = [k for k in rows.of_phase(OBSERVE) if np.isfinite(rows.next_s[k])]
    came = np.asarray([rows.return_s[k] for k in use])
    wait = np.asarray([rows.return_s[k] - rows.call_s[k] + rows.opening_s[k] for k in use])
    step = np.asarray([rows.next_s[k] - rows.return_s[k] for k in use])
    nested, lockstep = _others(came, came + step, others)
    step = np.maximum(0.0, step - nested - lockstep - _growth(rows, use, "own_s"))
    wait = wait + lockstep
    call = np.concatenate([[0.0], np.cumsum(wait + step)[:-1]]) if len(use) else np.zeros(0)
    first = [j for j, k in enumerate(use) if j and rows.epoch[k] != rows.epoch[use[j - 1]]]
    numbers = {epoch: n for n, epoch in enumerate(dict.fromkeys(rows.epoch[k] for k in use))}

    def column(name: str) -> list[float]:
        return [rows.columns[name][k] for k in use]

    main = MainBatches(
        call_s=call.tolist(),
        wait_s=wait.tolist(),
        wait_cpu_s=column("cpu_s"),
        sampler_s=column("sampler_s"),
        transport_s=column("transport_s"),
        step_s=step.tolist(),
        device_idle_s=_idle(column("number"), idle_s),
        samples=[int(v) for v in column("samples")],
        ready=[int(v) for v in column("ready")],
        epoch=[numbers[rows.epoch[k]] for k in use],
        meeting_s=_growth(rows, use, "meeting_s") if meetings else [],
    )
    edges = [float(wait[j]) for j in first]
    return Loop(main, came, call + wait, edges, float(lockstep.sum()), float(nested.sum()))


def _others(begin: Floats, end: Floats, others: list[Iterated]) -> tuple[Floats, Floats]:
    """Return (time in whole loops over other loaders, waiting for loaders read in step), one entry per step [s]."""
    nested, lockstep = np.zeros(len(begin)), np.zeros(len(begin))
    if not len(begin):
        return nested, lockstep
    for other in others:
        calls, returns = other.rows.get("call_s", []), other.rows.get("return_s", [])
        last = max([other.begin_s, *returns[-1:], *other.ends[-1:]])
        at = int(np.searchsorted(begin, other.begin_s, side="right")) - 1
        if 0 <= at < len(end) and last <= end[at]:
            nested[at] += last - other.begin_s
            continue
        places = np.searchsorted(begin, calls, side="right") - 1
        for place, call, done in zip(places, calls, returns, strict=True):
            if place >= 0 and done <= end[place]:
                lockstep[place] += done - call
    return nested, lockstep


def _idle(numbers: list[float], idle_s: dict[int, float]) -> list[float]:
    """Return the column ``device_idle_s``: the idle time before a step stands in the row after it."""
    if not idle_s:
        return []
    before = [idle_s.get(int(n), 0.0) for n in numbers]
    return [0.0, *before[:-1]]


def _growth(rows: Rows, use: list[int], name: str) -> list[float]:
    """Return by how much a running total grew from each batch to the next one [s]."""
    totals = rows.columns[name]
    return [max(0.0, totals[k + 1] - totals[k]) if k + 1 < len(totals) else 0.0 for k in use]


def cached_steps(rows: Rows) -> list[float]:
    """Return the durations of steps on resident batches [s]; the first ones, during which workers fill up, too."""
    return [rows.next_s[k] - rows.call_s[k] for k in rows.of_phase(CACHED) if np.isfinite(rows.next_s[k])]


def drained(rows: Rows) -> MainBatches:
    """Return the batches of the loader drained alone."""
    use = rows.of_phase(DRAIN)
    begin = rows.call_s[use[0]] if use else 0.0

    def column(name: str) -> list[float]:
        return [rows.columns[name][k] for k in use]

    return MainBatches(
        call_s=[rows.call_s[k] - begin for k in use],
        wait_s=[rows.return_s[k] - rows.call_s[k] + rows.opening_s[k] for k in use],
        wait_cpu_s=column("cpu_s"),
        sampler_s=column("sampler_s"),
        transport_s=column("transport_s"),
        samples=[int(v) for v in column("samples")],
        ready=[int(v) for v in column("ready")],
        epoch=[0 for _ in use],
    )
