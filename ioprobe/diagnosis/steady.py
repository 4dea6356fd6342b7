"""Which batches of a measurement are steady state, and what they say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ioprobe import stats
from ioprobe.run import LoaderRun
from ioprobe.stats import Estimate, Floats

_FEWEST = 8


@dataclass(frozen=True)
class Steady:
    """A loop (or a drained loader) in steady state. Shares are fractions of its wall time."""

    n: int
    """Batches in the window."""
    first: int
    """Index of its first batch."""
    samples_per_s: Estimate
    cycle_s: float
    """Mean time per batch [s]."""
    stall_share: Estimate
    """Waiting for the next batch; epoch edges count where whole epochs were seen."""
    release_share: float
    """Freeing the batch before."""
    edge_share: float
    """Of the stall: waiting for the first batch of an epoch, ``iter`` included."""
    whole_epochs: int
    """Whole epochs in the window; 0 where the epoch is longer than the measurement."""
    sampler_share: float | None
    transport_share: float | None
    wait_cpu_share: float
    step_s: float | None
    """Mean time of the step within the loop [s]."""
    samples_per_batch: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    first_epoch_stall: float | None
    """Stall share of the first epoch, its first batch left out; None where it was not completed."""
    wait_in_bursts: float
    """Share of the waiting that falls on the longest tenth of the waits."""


def cycles(run: LoaderRun) -> Floats:
    """Return the time from each call for a batch to the next one [s], shape (batches,)."""
    main = run.main
    n = len(main.call_s)
    if n == 0:
        return np.zeros(0)
    last = main.wait_s[-1] + (main.release_s[-1] if main.release_s else 0.0)
    last += main.step_s[n - 1] if len(main.step_s) >= n else 0.0
    return np.append(np.diff(np.asarray(main.call_s)), last)


def waits(run: LoaderRun) -> Floats:
    """Return the exposed wait of each batch [s]: what the accelerator did not hide, where that is known."""
    wait = np.asarray(run.main.wait_s, dtype=np.float64)
    idle = np.asarray(run.main.device_idle_s, dtype=np.float64)
    if idle.size and idle.size == wait.size and idle.any():
        # The device's idle time before step k is known two steps later; the columns are in that order.
        wait = np.minimum(wait, np.append(idle[1:], idle[-1:]))
    return wait


def steady(run: LoaderRun | None) -> Steady | None:
    """Return the steady state of a measurement; None where it has too few batches."""
    if run is None or len(run.main.call_s) < 3:
        return None
    cycle, wait = cycles(run), waits(run)
    use, whole = _window(run, cycle, wait)
    if int(use.sum()) < 2 or float(cycle[use].sum()) <= 0:
        return None
    main = run.main
    samples = np.asarray(main.samples, dtype=np.float64)
    wall = float(cycle[use].sum())
    edge = _edges(run)

    def share(column: list[float]) -> float | None:
        values = np.asarray(column, dtype=np.float64)
        return float(values[use].sum()) / wall if values.size == use.size else None

    step = np.asarray(main.step_s, dtype=np.float64)
    chosen = np.sort(wait[use])
    tenth = max(1, chosen.size // 10)
    total_wait = float(chosen.sum())
    return Steady(
        n=int(use.sum()),
        first=int(np.argmax(use)),
        samples_per_s=stats.ratio(samples[use], cycle[use]),
        cycle_s=wall / int(use.sum()),
        stall_share=_clip(stats.ratio(wait[use], cycle[use])),
        release_share=share(main.release_s) or 0.0,
        edge_share=float(wait[use & edge].sum()) / wall,
        whole_epochs=whole,
        sampler_share=share(main.sampler_s),
        transport_share=share(main.transport_s),
        wait_cpu_share=share(main.wait_cpu_s) or 0.0,
        step_s=float(step[use[: step.size]].mean()) if step.size >= use.size and step.size else None,
        samples_per_batch=float(samples[use].mean()),
        wait_p50_s=float(np.quantile(chosen, 0.5)),
        wait_p95_s=float(np.quantile(chosen, 0.95)),
        wait_p99_s=float(np.quantile(chosen, 0.99)),
        first_epoch_stall=_first_epoch(run, cycle, wait),
        wait_in_bursts=float(chosen[-tenth:].sum()) / total_wait if total_wait > 0 else 0.0,
    )


def _clip(estimate: Estimate) -> Estimate:
    return Estimate(
        min(1.0, max(0.0, estimate.value)), max(0.0, estimate.low), min(1.0, max(0.0, estimate.high)), estimate.n
    )


def _edges(run: LoaderRun) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of the first batches of epochs, the very first batch included."""
    epoch = np.asarray(run.main.epoch, dtype=np.int64)
    return np.append(True, np.diff(epoch) != 0) if epoch.size else np.zeros(0, dtype=np.bool_)


def _window(run: LoaderRun, cycle: Floats, wait: Floats) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], int]:
    """Return the mask of steady batches, and how many whole epochs they are."""
    n = cycle.size
    use = np.zeros(n, dtype=np.bool_)
    edge = _edges(run)
    starts = np.flatnonzero(edge)
    # Short epochs: whole ones after the first, so that the edges weigh as they do in training.
    if starts.size >= 3 and (starts[-1] - starts[1]) >= 0.3 * n:
        use[starts[1] : starts[-1]] = True
        return use, int(starts.size - 2)
    # Two epochs begun, the workers started anew for each: the first is as good an epoch as any.
    if starts.size == 2 and _respawns(run) and starts[1] >= 0.3 * n:
        use[: starts[1]] = True
        return use, 1
    least = min(max(run.warmup_batches, 1), max(1, n - _FEWEST))
    if starts.size >= 2 and n - starts[1] >= max(_FEWEST, n // 2):
        least = max(least, int(starts[1]))  # the first epoch is done: it was the warm-up
    body = slice(least, n)
    # What the queue hid at first shows in the waits; what the cycle shows besides is a first slow step.
    cut = max(stats.steady_start(wait[body]), stats.steady_start(cycle[body]) if n - least >= 40 else 0)
    # A deep queue may take most of the measurement to drain, which that rule cannot see past half.
    cut = max(cut, stats.drained(run.main.ready[:n]) - least)
    cut = min(cut, max(0, n - least - _FEWEST))
    use[least + cut :] = True
    # An epoch longer than the measurement: one edge in the window would weigh more than it does in training.
    use &= ~edge
    if run.stopped_because in ("failed", "interrupted") and use.sum() > 3:
        use[-1] = False  # cut short
    return use, 0


def _respawns(run: LoaderRun) -> bool:
    settings = run.settings
    return settings is not None and settings.num_workers > 0 and not settings.persistent_workers


def _first_epoch(run: LoaderRun, cycle: Floats, wait: Floats) -> float | None:
    starts = np.flatnonzero(_edges(run))
    if starts.size < 2 or starts[1] < 4:
        return None
    part = slice(1, int(starts[1]))
    wall = float(cycle[part].sum())
    return float(wait[part].sum()) / wall if wall > 0 else None
