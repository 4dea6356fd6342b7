"""From iterator traces to the columns of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ioprobe.instrument.hooks import IteratorTrace
from ioprobe.instrument.stacks import named_rows
from ioprobe.run import MainBatches, WorkerBatches


def worker_batches(rows: list[dict[str, float]], begin_s: float) -> WorkerBatches:
    """Return workers' rows as columns, in the order in which the batches were handed over."""
    rows = sorted(rows, key=lambda row: row["put_s"])
    return WorkerBatches(
        worker=[int(r["worker"]) for r in rows],
        index=[int(r["index"]) for r in rows],
        start_s=[r["start_s"] - begin_s for r in rows],
        idle_s=[r["idle_s"] for r in rows],
        fetch_wall_s=[r["fetch_wall_s"] for r in rows],
        fetch_cpu_s=[r["fetch_cpu_s"] for r in rows],
        fetch_runq_s=[r["fetch_runq_s"] for r in rows],
        collate_wall_s=[r["collate_wall_s"] for r in rows],
        collate_cpu_s=[r["collate_cpu_s"] for r in rows],
        collate_runq_s=[r["collate_runq_s"] for r in rows],
        other_cpu_s=[r["other_cpu_s"] for r in rows],
        child_cpu_s=[r["child_cpu_s"] for r in rows],
        put_s=[r["put_s"] - begin_s for r in rows],
        nbytes=[int(r["nbytes"]) for r in rows],
        read_bytes=[int(r["read_bytes"]) for r in rows],
        read_ops=[int(r["read_ops"]) for r in rows],
    )


def busy_s(rows: list[dict[str, float]]) -> float:
    """Return how long workers were at a batch, from when they began it until they handed it over [s]."""
    return sum(row["put_s"] - row["start_s"] for row in rows)


def align(rows: MainBatches, traces: list[IteratorTrace]) -> None:
    """Copy what the iterators saw inside each wait; only where their batches are the loop's batches, one for one."""
    count = len(rows.call_s)
    seen = sum(len(t.call_s) for t in traces)
    if seen != count:  # a wrapper that reads ahead: its inner waits are not the loop's waits
        rows.sampler_s, rows.transport_s, rows.ready = [], [], []
        return
    rows.sampler_s = [x for t in traces for x in t.sampler_s]
    rows.transport_s = [x for t in traces for x in t.transport_s]
    rows.ready = [x for t in traces for x in t.ready]


def start_times(traces: list[IteratorTrace]) -> tuple[list[float], list[float]]:
    """Return (start_s, init_s), one value per worker of each iterator: the main process's part and the worker's."""
    starts: list[float] = []
    inits: list[float] = []
    for trace in traces:
        if not trace.num_workers:
            continue
        starts += [trace.init_s / trace.num_workers] * trace.num_workers
        ready = [trace.ring.times(worker)[1] for worker in range(trace.num_workers)]
        inits += init_times(trace.begin_s, trace.init_s, ready)
    return starts, inits


def init_times(begin_s: float, init_s: float, ready_s: Sequence[float]) -> list[float]:
    """Return how long each worker took from when its process was made until it could fetch [s].

    A spawned one imports before it enters the loader's code, so its own clock would not tell.

    Args:
        begin_s: When the iterator began to make them, one after the other.
        init_s: How long that took it.
        ready_s: When each was ready; 0 for one that never was, which is left out.
    """
    each_s = init_s / max(1, len(ready_s))
    return [max(0.0, ready - begin_s - each_s * (k + 1)) for k, ready in enumerate(ready_s) if ready]


def worker_stacks(traces: list[IteratorTrace]) -> list[Any]:
    """Return the stack counts that workers left in their rings."""
    found: list[Any] = []
    for trace in traces:
        for worker in range(trace.ring.workers):
            try:
                found += named_rows(trace.ring.stacks(worker))
            except ValueError:  # a worker was killed while it wrote
                continue
    return found


def worker_cores(pids: list[int]) -> int | None:
    """Return how many cores the CPU masks of processes allow, all together; None where that is not known."""
    cores: set[int] = set()
    for pid in pids:
        try:
            cores |= os.sched_getaffinity(pid)
        except (AttributeError, OSError):  # no Linux, or the worker is gone
            continue
    return len(cores) or None


def worker_memory(pids: list[int]) -> list[int]:
    """Return the proportional memory of processes [bytes]; those that are gone are left out."""
    sizes = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                for line in file:
                    if line.startswith(b"Pss:"):
                        sizes.append(int(line.split()[1]) * 1024)
                        break
        except (OSError, ValueError):
            continue
    return sizes
