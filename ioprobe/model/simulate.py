"""A discrete-event replay of ``torch.utils.data.DataLoader`` on a few cores.

What PyTorch does, and so does this: indices go round-robin into one queue per
worker, ``prefetch_factor`` tasks each to begin with; each batch handed to the
loop sends one more task. A worker fetches and collates, its queue thread
pickles the batch into one result pipe, the main process receives whatever
arrives first and keeps what is not yet due (``in_order=True``) or hands it over
(``in_order=False``). Runnable threads share the cores by processor sharing; the
main process, which mostly sleeps, gets a core when it wakes, for one slice, as
schedulers do.

One virtual clock counts the service that every running job has received, so a
change of load costs O(1) and a batch a handful of heap operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ioprobe.model.profile import Floats, Ints

Row = tuple[float, float, float]
"""One batch in a worker: CPU, blocked, in the serial server [s each]."""


@dataclass(frozen=True)
class System:
    """Everything the replay needs, each demand spelled out. Times are seconds per batch."""

    num_workers: int
    rows: tuple[tuple[Row, ...], ...]
    """One series for all workers, by task number; or one per worker, by that worker's own count. Cycled."""
    prefetch_factor: int = 2
    in_order: bool = True
    cores: float = math.inf
    segments: int = 1
    """Pieces in which a batch alternates between blocked and CPU."""
    worker_batches: tuple[int, ...] | None = None
    """Iterable datasets: batches each worker yields in an epoch."""
    batches_per_epoch: int | None = None
    persistent_workers: bool = False
    feed_cpu_s: float = 0.0
    share_cpu_s: float = 0.0
    """CPU of the worker's end while the main process receives, beside what that is blocked for."""
    receive_cpu_s: float = 0.0
    receive_busy_s: float = 0.0
    """Blocked for the worker's side of the hand-over while that worker computes."""
    receive_crowded_s: float = 0.0
    """The same from a worker that idles, with all cores but the main process's taken."""
    receive_idle_s: float = 0.0
    """The same with a core free."""
    dispatch_cpu_s: float = 0.0
    release_s: float = 0.0
    """CPU for freeing a batch, in the main process, after its step."""
    step_s: tuple[float, ...] = (0.0,)
    """Step durations, cycled; 0 drains the loader."""
    step_cpu_share: float = 0.0
    """CPU of the step over its duration; above 1 it runs several threads."""
    start_s: float = 0.0
    init_s: float = 0.0
    first_extra_s: float = 0.0
    """CPU of a new worker's first batch above its usual one."""
    first_blocked_s: float = 0.0
    again_extra_s: float = 0.0
    """CPU of a worker's first batch of a later epoch above its usual one, where workers persist."""
    again_blocked_s: float = 0.0
    edge_s: float = 0.0
    """Further time at an epoch's edge: stopping the old workers."""
    serial_channels: int = 1
    serial_uses_cpu: bool = False
    serial_hand_over_s: float = 0.0
    """Further time in the server when another worker stands in line: waking it, switching."""
    contention: float = 0.0
    """Slowdown of CPU work with all cores busy against one [fraction]."""
    reference_cores: float = 1.0
    """Cores at which ``contention`` holds."""
    main_first: bool = True
    """False where the main process computes itself and so has no precedence."""


class Event(NamedTuple):
    """Something that happened in a replay."""

    at_s: float
    kind: str
    """``send`` (a task goes out), ``start``, ``made`` (handed over) or ``deliver`` (to the loop; worker -1)."""
    worker: int
    task: int


@dataclass(frozen=True)
class Trace:
    """What the loop saw: one row per batch, shape (batches,), times since the start [s]."""

    call_s: Floats
    return_s: Floats
    step_end_s: Floats
    """When the step on the batch was over."""
    index: Ints
    """Task number of the batch, in the order of delivery."""
    epoch: Ints
    most_batches: int
    """Largest number of finished batches that were not yet delivered."""
    cpu_s: float
    """CPU time that all threads used."""
    order: tuple[Event, ...] = ()
    """All events in order of time, when asked for."""

    @property
    def wait_s(self) -> Floats:
        """Blocked for each batch [s]."""
        return np.asarray(self.return_s - self.call_s)


def simulate(system: System, batches: int, *, record: bool = False, start_full: bool = False) -> Trace:
    """Replay the loader until so many batches were delivered (or the data ended).

    Takes the exact recurrence where nothing contends, else the event engine;
    both give the same answer where both apply. Deterministic.

    Args:
        system: The loader, the step and the machine.
        batches: Batches to deliver, at least 1.
        record: Keep the order of events (event engine).
        start_full: Ask for the first batch only when every task given out is finished.

    Raises:
        ValueError: batches < 1, or the system has no rows.
    """
    if batches < 1 or not system.rows or not all(system.rows):
        raise ValueError("simulate needs at least one batch and one row")
    if system.num_workers == 0:
        return _inline(system, batches)
    if not record and not start_full and _free_of_contention(system, batches):
        from ioprobe.model.recurrence import replay

        return replay(system, batches)
    from ioprobe.model.engine import Engine

    return Engine(system, batches, record, start_full).run()


def _free_of_contention(system: System, batches: int) -> bool:
    threads = system.num_workers * (2 if system.feed_cpu_s else 1) + max(1.0, system.step_cpu_share)
    return (
        threads + (1 if system.share_cpu_s else 0) <= system.cores
        and not system.contention
        and system.receive_busy_s == system.receive_crowded_s == system.receive_idle_s
        and system.worker_batches is None
        and (system.batches_per_epoch is None or system.batches_per_epoch >= batches)
        and not any(row[2] for series in system.rows for row in series)
    )


def _inline(system: System, batches: int) -> Trace:
    """num_workers=0: fetch, then step, one after the other."""
    rows, steps = system.rows[0], system.step_s
    cost = np.array([sum(rows[i % len(rows)]) for i in range(batches)])
    step = np.array([steps[i % len(steps)] for i in range(batches)])
    wait = cost + system.dispatch_cpu_s
    wait[0] += system.first_extra_s + system.first_blocked_s
    if system.batches_per_epoch is not None:
        wait[system.batches_per_epoch :: system.batches_per_epoch] += (
            system.again_extra_s + system.again_blocked_s + system.edge_s
        )
    end = np.cumsum(wait + step + system.release_s)
    back = end - step - system.release_s
    length = system.batches_per_epoch or batches
    task = np.arange(batches)
    cpu = sum(rows[i % len(rows)][0] for i in range(batches)) + batches * system.dispatch_cpu_s
    cpu += float(step.sum()) * system.step_cpu_share
    return Trace(back - wait, back, end, task % length, task // length, 1, cpu)
