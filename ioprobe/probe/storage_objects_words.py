"""What the figures of object stores say: windows, knees, clients and processes compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ioprobe.probe.storage_crew import Reply
from ioprobe.probe.storage_series import Window, replies_window
from ioprobe.run import Caveat, StorageJob
from ioprobe.units import format_bandwidth

KNEE = 0.9
"""The knee is the least concurrency that reaches this share of the best rate."""


def objects_window(replies: Sequence[Reply], threads: int) -> Window | None:
    """Return the window in which every process had all its requests in flight.

    It begins when each has completed as many requests as it has threads, and
    ends before they stop to send new ones. With too few completions for that,
    everything since the start counts: ramp and tail then make the rate a little low.
    """
    parts = [r for r in replies if r.column("done_ns").size]
    if not parts or len(parts) < len(replies):
        return replies_window(parts)
    steady = []
    for reply in parts:
        done = reply.column("done_ns")
        steady.append(done[done <= reply.facts["end_ns"]])
    if min(d.size for d in steady) >= 3 * threads:
        begin, end = max(int(d[threads - 1]) for d in steady), min(int(d[-1]) for d in steady)
    else:
        begin, end = min(r.facts["at_ns"] for r in parts), max(int(r.column("done_ns")[-1]) for r in parts)
    if end <= begin:
        return replies_window(parts)
    done = np.concatenate([r.column("done_ns") for r in parts])
    keep = (done > begin) & (done <= end)
    order = np.argsort(done[keep], kind="stable")
    nbytes = np.concatenate([r.column("nbytes") for r in parts])[keep][order].astype(np.float64)
    latency_s = np.concatenate([r.column("latency_ns") for r in parts])[keep][order] / 1e9
    return Window((end - begin) / 1e9, (done[keep][order] - begin) / 1e9, nbytes, latency_s)


def first_byte_s(replies: Sequence[Reply]) -> float | None:
    """Small ranges are nearly all waiting for the first byte."""
    found = [r.column("latency_ns") for r in replies if r.column("latency_ns").size]
    return float(np.median(np.concatenate(found))) / 1e9 if found else None


def cpu_s_per_op(replies: Sequence[Reply]) -> float | None:
    """Return the CPU time of the clients for one request [s]."""
    ops = sum(r.column("done_ns").size for r in replies)
    return sum(float(r.facts["cpu_s"]) for r in replies) / ops if ops else None


def get_caveats(job: StorageJob, replies: Sequence[Reply]) -> list[Caveat]:
    """Return what a job's retries, refusals, ignored ranges and requests without an answer mean."""
    caveats = []
    hung = sum(r.facts["hung"] for r in replies)
    if hung:
        text = (
            f"{hung} {'request' if hung == 1 else 'requests'} had not come back seconds after the end ({job.name}): "
            "the figures are those of the others"
        )
        caveats.append(
            Caveat("hung", text, "look at the store's and any proxy's log, and set a time-out in the loader")
        )
    if job.throttled:
        text = f"the store throttled {job.throttled} of {job.ops + job.retries} requests ({job.name})"
        caveats.append(Caveat("throttled", text, "lower the concurrency, or spread keys over prefixes"))
    elif job.retries:
        text = f"{job.retries} requests failed and were sent again ({job.name})"
        caveats.append(Caveat("retried", text, "look at the store's and any proxy's log"))
    if any(r.facts["ranges_ignored"] for r in replies):
        text = "the server ignores ranges: each one costs the whole object"
        caveats.append(Caveat("no-ranges", text, "use a server that answers ranges with 206, or read whole objects"))
    return caveats


def rate_of(job: StorageJob) -> float:
    """Return the bandwidth of a job [bytes/s], 0 where nothing was read."""
    return job.bytes_read / job.window_s if job.window_s > 0 else 0.0


def is_flat(rungs: Sequence[StorageJob]) -> bool:
    """Whether twice doubling the concurrency brought nothing."""
    if len(rungs) < 4:
        return False
    best = max(map(rate_of, rungs[:-2]))
    return max(map(rate_of, rungs[-2:])) < 1.05 * best


def knee_of(rungs: Sequence[StorageJob]) -> StorageJob | None:
    """Return the rung with the least concurrency that comes near the best rate, or None where nothing was read."""
    best = max(map(rate_of, rungs), default=0.0)
    return next((rung for rung in rungs if best > 0 and rate_of(rung) >= KNEE * best), None)


def knee_caveat(rungs: Sequence[StorageJob], knee: StorageJob) -> Caveat:
    """Say where more concurrency stops helping."""
    best = max(rungs, key=rate_of)
    text = (
        f"{best.name.rpartition(' x')[0]}: one process reaches {format_bandwidth(rate_of(best))}; "
        f"{knee.depth} requests in flight give {100 * rate_of(knee) / rate_of(best):.0f}% of it"
    )
    return Caveat("knee", text, "more in flight cost memory and bring little")


def scaling_caveat(one: StorageJob, many: StorageJob) -> Caveat:
    """Say what more processes bring."""
    factor = rate_of(many) / rate_of(one) if rate_of(one) else 0.0
    text = (
        f"{many.processes} processes reach {format_bandwidth(rate_of(many))}, {factor:.1f} times one process "
        f"({format_bandwidth(rate_of(one))}): "
        + ("the client in one process is the limit" if factor > 1.3 else "the store, the network or the cores are")
    )
    return Caveat("processes", text)


def side_by_side(found: Sequence[list[StorageJob]]) -> list[StorageJob]:
    """Return the jobs of several clients with their names in front, and a word on which is faster."""
    best: dict[str, StorageJob] = {}
    for jobs in found:
        whole = [job for job in jobs if not job.name.startswith("ranges")]
        best[jobs[0].client or ""] = max(whole, key=rate_of)
        for job in jobs:
            job.name = f"{(job.client or '').split(' ')[0]}: {job.name}"
    (fast, most), *_, (slow, least) = sorted(best.items(), key=lambda item: -rate_of(item[1]))
    if rate_of(least) > 0:
        factor = rate_of(most) / rate_of(least)
        verdict = "the slower client is the limit, not the store" if factor > 1.3 else "the client is not the limit"
        text = (
            f"{fast} reaches {format_bandwidth(rate_of(most))}, {slow} {format_bandwidth(rate_of(least))} "
            f"({factor:.1f} times): {verdict}"
        )
        found[0][0].caveats = [*found[0][0].caveats, Caveat("clients", text)]
    return [job for jobs in found for job in jobs]
