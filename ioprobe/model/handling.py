"""What it costs to move a batch from a worker to the loop, besides making it."""

from __future__ import annotations

import numpy as np

from ioprobe.model.profile import MainCosts
from ioprobe.model.rates import steady_start
from ioprobe.model.rows import Rows
from ioprobe.run import LoaderRun

LEAST_WAITS = 8
BOOKKEEPING_S = 60e-6
"""CPU of ``next(loader)`` itself: task tables, sending one task. It only splits a sum that is measured."""
QUEUE_THREADS_S = 3e-3
QUEUE_THREADS_PER_TENSOR_S = 0.6e-3
"""CPU that a worker's queue threads may take per batch before further threads are suspected."""


def main_costs(source: LoaderRun, rows: Rows, loaders: list[LoaderRun]) -> MainCosts:
    """Return what the main process spends per batch, the floor of it from loops in which batches lay ready."""
    main, skip = source.main, steady_start(source)
    received, drawn = mean_of(main.transport_s, skip), mean_of(main.sampler_s, skip)
    cpu = mean_of(main.wait_cpu_s, skip) or received + drawn
    release = mean_of(main.release_s, skip)
    if source.settings is not None and source.settings.num_workers == 0:
        # The main process fetches by itself: what the rows do not hold is bookkeeping.
        return MainCosts(dispatch_cpu_s=max(drawn, cpu - float(rows.cpu_s.mean())), release_s=release)
    receive = min(received, max(0.0, cpu - drawn - BOOKKEEPING_S))
    busy = max(0.0, received - receive)
    dispatch = max(drawn, cpu - receive)
    ready = [r for m in loaders if m.coupled and m.name == source.name and (r := _ready_wait(m)) is not None]
    idle = max(0.0, min(ready) - receive - dispatch) if ready else busy
    busy = max(busy, idle)
    return MainCosts(
        receive_cpu_s=receive,
        receive_busy_s=busy,
        receive_idle_s=idle,
        dispatch_cpu_s=dispatch,
        release_s=release,
    )


def _ready_wait(loop: LoaderRun) -> float | None:
    """Return the usual wait for a batch that lies ready [s]: all of it is handling; None where none did."""
    skip = steady_start(loop)
    waits = [w for w, ready in zip(loop.main.wait_s[skip:], loop.main.ready[skip:], strict=False) if ready > 0]
    settings = loop.settings
    if len(waits) < LEAST_WAITS or settings is None or not settings.num_workers:
        return None
    return float(np.median(waits))


def other_threads(rows: Rows, source: LoaderRun) -> tuple[float, float]:
    """Split the worker's other threads into the queue's (pickling, descriptors) and the dataset's own."""
    other, own = float(np.mean(rows.other_cpu_s)), float(np.mean(rows.cpu_s))
    queue = QUEUE_THREADS_S + QUEUE_THREADS_PER_TENSOR_S * (source.batch_tensors or 1)
    if source.settings is not None and source.settings.num_workers == 0:
        return 0.0, 0.0
    if other > queue and other > 0.3 * own:
        return 0.0, other
    return other, 0.0


def mean_of(values: list[float], skip: int) -> float:
    """Return the mean past the leading values [s]; 0 where nothing was measured."""
    kept = values[skip:]
    return float(np.mean(kept)) if kept else 0.0
