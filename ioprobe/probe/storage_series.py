"""From completion times to windows, slices and percentiles. Arithmetic on arrays, no effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ioprobe.probe.storage_crew import Reply
from ioprobe.stats import ratio

PRECISION = 0.02
"""A rate whose 95% interval is within this of its value needs no more data."""
_SLICES = 40

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """Reads completed while every process was reading: ramp and tail left out."""

    seconds: float
    done_s: Floats
    """Completion since the window began [s], shape (reads,), ascending."""
    nbytes: Floats
    latency_s: Floats

    @property
    def ops(self) -> int:
        """Reads in the window."""
        return int(self.done_s.size)


def replies_window(replies: Sequence[Reply]) -> Window | None:
    """Return the window in which all took part, or None where nobody read anything.

    It begins when the slowest starter has its first bytes, and ends when the
    first one has no more to read.
    """
    parts = [r for r in replies if r.column("done_ns").size]
    if not parts:
        return None
    begin = max(int(r.column("done_ns")[0]) for r in parts)
    end = min(int(r.column("done_ns")[-1]) for r in parts)
    if end <= begin:
        # Fewer than two reads for somebody: take all that happened, from the start of the earliest read.
        begin = min(int(r.column("done_ns")[0] - r.column("latency_ns")[0]) for r in parts)
        end = max(int(r.column("done_ns")[-1]) for r in parts)
    done = np.concatenate([r.column("done_ns") for r in parts])
    keep = (done > begin) & (done <= end)
    order = np.argsort(done[keep], kind="stable")
    nbytes = np.concatenate([r.column("nbytes") for r in parts])[keep][order]
    latency = np.concatenate([r.column("latency_ns") for r in parts])[keep][order]
    return Window((end - begin) / 1e9, (done[keep][order] - begin) / 1e9, nbytes.astype(float), latency / 1e9)


def slice_series(windows: Sequence[Window], *, ops: bool = False) -> tuple[Floats, Floats]:
    """Return (rate per second, length [s]) of equal slices of the windows laid end to end.

    Slices are counted in bytes, or in reads with ops.
    """
    total_s = sum(w.seconds for w in windows)
    reads = sum(w.ops for w in windows)
    if total_s <= 0 or reads == 0:
        return np.empty(0), np.empty(0)
    count = int(max(1, min(_SLICES, reads // 4)))
    starts = np.cumsum([0.0, *[w.seconds for w in windows[:-1]]])
    done = np.concatenate([w.done_s + start for w, start in zip(windows, starts, strict=True)])
    weights = None if ops else np.concatenate([w.nbytes for w in windows])
    sums, _ = np.histogram(done, bins=count, range=(0.0, total_s), weights=weights)
    length = total_s / count
    return sums / length, np.full(count, length)


def narrow_enough(rates: Floats, lengths_s: Floats, precision: float = PRECISION) -> bool:
    """Whether the 95% interval of the overall rate lies within the precision [fraction]."""
    if rates.size < 10:
        return False
    found = ratio(rates * lengths_s, lengths_s)
    return found.value > 0 and found.relative_halfwidth <= precision


def latency_summary(windows: Sequence[Window]) -> dict[str, float]:
    """Return ``p50 p95 p99 p999 max`` [s] of single reads; empty where there are none."""
    if not any(w.ops for w in windows):
        return {}
    return percentiles(np.concatenate([w.latency_s for w in windows]))


def percentiles(latency_s: Floats) -> dict[str, float]:
    """Return ``p50 p95 p99 p999 max`` [s]; shape (reads,), not empty."""
    values = np.quantile(latency_s, [0.5, 0.95, 0.99, 0.999, 1.0])
    return dict(zip(("p50", "p95", "p99", "p999", "max"), map(float, values), strict=True))


def scaled_to_window(device_bytes: int | None, window: float, everything: float) -> int | None:
    """Return the window's part of what the device delivered while everything was read."""
    return device_bytes if not device_bytes or not everything else round(device_bytes * window / everything)
