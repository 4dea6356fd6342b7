"""What it costs to move a batch from a worker to the loop, besides making it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ioprobe.model.profile import CONVOY_S, Floats, MainCosts
from ioprobe.model.rates import inside_epochs, steady_start
from ioprobe.model.rows import Rows
from ioprobe.run import LoaderRun, Stage

LEAST_WAITS = 8
LEAST_STACKS = 12
SAMPLED = 1.5
"""CPU of the queue's thread over what sampled stacks say of it, at most: they are few."""
BESIDE = 0.9
"""CPU of threads beside a batch over the batch's own time, at most [fraction]."""
LEAST_SEEN = 4
"""Receives in one state of the workers that give a mean; a rough one beats the guess."""
_NONE: Floats = np.zeros(0)
BOOKKEEPING_S = 60e-6
"""CPU of ``next(loader)`` itself: task tables, sending one task. It only splits a sum that is measured."""
QUEUE_THREADS_S = 3e-3
QUEUE_THREADS_PER_TENSOR_S = 0.6e-3
"""CPU that a worker's queue threads may take per batch before further threads are suspected."""


def main_costs(source: LoaderRun, rows: Rows, loaders: list[LoaderRun], cores: float) -> MainCosts:
    """Return what the main process spends per batch, the floor of it from loops in which batches lay ready.

    Args:
        source: The measurement to calibrate from.
        rows: Its rows.
        loaders: All measurements of the run.
        cores: Cores that main process and workers share.
    """
    main = source.main
    received, drawn = (_mean(inside_epochs(source, column)) for column in (main.transport_s, main.sampler_s))
    cpu = _mean(inside_epochs(source, main.wait_cpu_s)) or received + drawn
    release = mean_of(main.release_s, steady_start(source))
    if source.settings is not None and source.settings.num_workers == 0:
        # The main process fetches by itself: what the rows do not hold is bookkeeping.
        return MainCosts(dispatch_cpu_s=max(drawn, cpu - float(rows.cpu_s.mean())), release_s=release)
    receive = min(received, max(0.0, cpu - drawn - BOOKKEEPING_S))
    usual = max(0.0, received - receive)
    dispatch = max(drawn, cpu - receive)
    by_state = [_received(m, cores) for m in loaders if m.name == source.name]
    own, others = (
        float(seen.mean()) - receive if seen.size >= LEAST_SEEN else None
        for seen in (np.concatenate([_NONE, *column]) for column in zip(*by_state, strict=True))
    )
    ready = [r for m in loaders if m.coupled and m.name == source.name and (r := _ready_wait(m)) is not None]
    floor = min(ready) - receive - dispatch if ready else min(s for s in (usual, own, others) if s is not None)
    if floor > CONVOY_S and (took := [t for m in loaders if m.name == source.name and (t := _fastest(m)) is not None]):
        floor = min(floor, min(took) - receive)  # nobody was met that did not keep the hand-over from the GIL
    idle = max(0.0, floor)
    busy = max(idle, usual if own is None else own)
    # Where no worker was ever seen to idle while others computed, it is as likely the one as the other.
    crowded = max(idle, (idle + busy) / 2 if others is None else others)
    return MainCosts(
        receive_cpu_s=receive,
        receive_busy_s=busy,
        receive_crowded_s=crowded,
        receive_idle_s=idle,
        dispatch_cpu_s=dispatch,
        release_s=release,
    )


def _received(source: LoaderRun, cores: float) -> tuple[Floats, Floats]:
    """Return the times for receiving one batch [s]: from workers that computed, and from idle ones while others did.

    A batch that came before its turn was received in an earlier call: that one's time is for all it received.
    """
    main, table, skip = source.main, source.workers, steady_start(source)
    n = min(len(main.transport_s), len(main.wait_s), len(main.call_s), main.epoch.count(0))
    if table is None or len(table.start_s) != len(table.index) or len(table.put_s) != len(table.index) or n <= skip + 1:
        return _NONE, _NONE
    took = np.asarray(main.transport_s[:n])
    began = np.asarray(main.call_s[:n]) + np.asarray(main.wait_s[:n]) - took
    index, worker = np.asarray(table.index, dtype=np.int64), np.asarray(table.worker, dtype=np.int64)
    start, put = np.asarray(table.start_s, dtype=np.float64), np.asarray(table.put_s, dtype=np.float64)
    maker = np.full(n, -1)
    known = (index >= 0) & (index < n)
    maker[index[known]] = worker[known]
    own, others = np.zeros(n, dtype=bool), np.zeros(n)
    for w in np.unique(worker):
        mine = np.flatnonzero(worker == w)
        mine = mine[np.argsort(start[mine])]
        last = np.searchsorted(start[mine], began, side="right") - 1
        computes = (last >= 0) & (put[mine][last] > began)
        own |= computes & (maker == w)
        others += computes & (maker != w)
    received = np.flatnonzero(took > 0)
    each = took[received] / np.diff(np.append(received, n))
    own, crowded = own[received], ((others >= cores - 1) & (others > 0) & ~own)[received]
    tells = (maker[received] >= 0) & (received >= skip)
    return each[tells & own], each[tells & crowded]


def _fastest(source: LoaderRun) -> float | None:
    """Return what the fastest twentieth of a loop's receives took at most [s]; None where there are few."""
    took = [t for t in source.main.transport_s[steady_start(source) :] if t > 0]
    return float(np.quantile(took, 0.05)) if len(took) >= LEAST_WAITS else None


def _ready_wait(loop: LoaderRun) -> float | None:
    """Return the usual wait for a batch that lies ready [s]: all of it is handling; None where none did."""
    skip = steady_start(loop)
    waits = [w for w, ready in zip(loop.main.wait_s[skip:], loop.main.ready[skip:], strict=False) if ready > 0]
    settings = loop.settings
    if len(waits) < LEAST_WAITS or settings is None or not settings.num_workers:
        return None
    return float(np.median(waits))


def other_threads(rows: Rows, source: LoaderRun) -> tuple[float, float]:
    """Split the worker's other threads into the queue's (pickling, descriptors) and the dataset's own.

    The queue's thread used no more CPU than for as long as stacks found it at work: large objects take it long.
    """
    other, own = float(np.mean(rows.other_cpu_s)), float(np.mean(rows.cpu_s))
    if source.settings is not None and source.settings.num_workers == 0:
        return 0.0, 0.0
    few = QUEUE_THREADS_S + QUEUE_THREADS_PER_TENSOR_S * (source.batch_tensors or 1)
    sending = _sending_s(source)
    if other <= few + SAMPLED * sending or other <= 0.3 * own:
        return other, 0.0
    return min(other, sending), max(0.0, other - sending)


def _sending_s(source: LoaderRun) -> float:
    """Return how long a worker's queue thread was at work per batch, as stacks show [s]; 0 without stacks."""
    main, threads = (next((s for s in source.stacks if s.role == r), None) for r in ("worker", "worker-thread"))
    table = source.workers
    if main is None or threads is None or main.samples < LEAST_STACKS or table is None or not table.fetch_wall_s:
        return 0.0
    # A worker's main thread is in every look, so its stacks measure the worker's life.
    life_s = sum(map(sum, (table.idle_s, table.fetch_wall_s, table.collate_wall_s))) / len(table.fetch_wall_s)
    return life_s * threads.stages.get(Stage.TRANSPORT, 0) / main.samples


def waits_for_own_threads(rows: Rows, threads_s: float, in_line_s: float = 0.0) -> tuple[Rows, float]:
    """Return the rows with the waiting for the worker's own threads as computing, and what those computed besides.

    While a pool's threads work, the worker's main thread waits for them: that is one time, not two. The same holds of
    processes that it starts.

    Args:
        rows: As measured by the workers' main threads.
        threads_s: CPU of their other threads and of their processes per batch [s].
        in_line_s: Time per batch for which those only waited for a core [s].
    """
    waited = np.minimum(threads_s, rows.fetch_blocked_s)
    rest = rows.fetch_blocked_s - waited
    rest = rest * max(0.0, 1 - in_line_s / max(1e-9, float(rest.mean())))
    found = replace(rows, fetch_cpu_s=rows.fetch_cpu_s + waited, fetch_blocked_s=rest)
    beside = threads_s - float(waited.mean())
    # They end before the batch does, so they never take longer than it.
    return found, min(beside, BESIDE * float((rows.cpu_s + rows.blocked_s).mean()))


def shared_cpu_s(feed_cpu_s: float, main: MainCosts, source: LoaderRun) -> float:
    """Return the part of the queue threads' CPU that falls while the main process receives [s per batch].

    A tensor's file descriptor goes over a connection of its own
    (``torch.multiprocessing.reductions.rebuild_storage_fd``,
    ``multiprocessing.resource_sharer``). Its two ends greet and answer each
    other by the same code, so the worker's costs what the main process's does.
    What holds no tensor is all pickled before it is sent.
    """
    return min(feed_cpu_s, main.receive_cpu_s) if source.batch_tensors else 0.0


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else 0.0


def mean_of(values: list[float], skip: int) -> float:
    """Return the mean past the leading values [s]; 0 where nothing was measured."""
    kept = values[skip:]
    return float(np.mean(kept)) if kept else 0.0
