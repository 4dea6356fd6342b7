"""Rates of storage jobs with their intervals, and Little's law. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ioprobe.run import StorageJob
from ioprobe.stats import Estimate, ratio


def ops_per_s(job: StorageJob) -> Estimate | None:
    """Return a job's rate [operations/s] with its interval, or None where nothing was read."""
    return _rate(job.ops, job.window_s, job.series_ops_per_s)


def bytes_per_s(job: StorageJob) -> Estimate | None:
    """Return a job's bandwidth [bytes/s] with its interval, or None where nothing was read."""
    return _rate(job.bytes_read, job.window_s, job.series_bytes_per_s)


def samples_per_s(job: StorageJob) -> Estimate | None:
    """Return a job's rate [samples/s] with its interval, or None where the samples are not known."""
    rate = bytes_per_s(job)
    if rate is None or not job.samples or not job.bytes_read:
        return None
    return rate.scaled(job.samples / job.bytes_read)


def _rate(total: float, window_s: float, series: Sequence[float]) -> Estimate | None:
    if not total or window_s <= 0:
        return None
    value = total / window_s
    if len(series) < 2 or not sum(series):
        return Estimate(value, value, value, 1)
    found = ratio(series, np.ones(len(series)))
    half = (found.high - found.low) / 2
    return Estimate(value, max(0.0, value - half), value + half, found.n)


def read_amplification(job: StorageJob) -> float | None:
    """Return the bytes fetched over the bytes that samples need, or None where either is not known.

    A cold read fetches what the device delivered, read-ahead and whole pages
    included; a warm one what was asked for.
    """
    if not job.used_bytes:
        return None
    fetched = job.bytes_read
    if job.cache_state in ("cold", "direct") and job.device_read_bytes is not None:
        fetched = max(fetched, job.device_read_bytes)
    return fetched / job.used_bytes


def needed_concurrency(rate_per_s: float, latency_s: float) -> float:
    """Return how many requests must be in flight for a rate, by Little's law.

    Args:
        rate_per_s: Requests per second that the training job needs.
        latency_s: Mean time of one request [s].

    >>> needed_concurrency(2000, 0.02)
    40.0
    """
    return rate_per_s * latency_s


def concurrency_for_samples(job: StorageJob, samples_rate_per_s: float) -> int | None:
    """Return how many readers the measured storage needs in flight for a rate of samples, rounded up.

    One reader at the measured latency delivers 1/processes of the measured
    rate, so this holds below the knee; past it no concurrency helps.
    """
    rate = samples_per_s(job)
    if rate is None or rate.value <= 0:
        return None
    readers = job.processes * job.depth
    latency_s = readers / rate.value  # of one sample, seen by one reader
    return max(1, math.ceil(needed_concurrency(samples_rate_per_s, latency_s) - 1e-9))
