"""One line in the user's own script: how long does the loop wait for batches, said now and then in the log.

``for batch in ioprobe.watch(loader): ...``
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

log = logging.getLogger("ioprobe")


class Window(NamedTuple):
    """Some steps of a watched loop."""

    steps: int
    wait_s: float
    """Blocked for the next batch [s]."""
    wall_s: float
    """From the first request for a batch to the end of the last step [s]."""
    total_steps: int
    """Steps since the beginning."""

    @property
    def stall_share(self) -> float:
        """Waiting over wall time [fraction]."""
        return self.wait_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def steps_per_s(self) -> float:
        """Steps per second."""
        return self.steps / self.wall_s if self.wall_s > 0 else 0.0


class StallMeter:
    """Sums waits and steps, and gives a window every so many steps.

    Args:
        every: Steps in a window.
        clock: Monotonic clock [s].
    """

    def __init__(self, every: int = 100, *, clock: Callable[[], float] = time.perf_counter) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; it must be at least 1")
        self.every = every
        self._clock = clock
        self._asked: float | None = None
        self._got: float | None = None
        self._steps, self._total = 0, 0
        self._wait_s, self._wall_s = 0.0, 0.0

    def asked(self) -> None:
        """The next batch is asked for: the step before is done."""
        now = self._clock()
        if self._got is not None:
            self._wall_s += now - self._got
            self._steps += 1
            self._total += 1
        self._asked, self._got = now, None

    def got(self) -> Window | None:
        """The batch is there; returns a window where one is full."""
        now = self._clock()
        full = self._take() if self._steps >= self.every else None
        if self._asked is not None:
            self._wait_s += now - self._asked
            self._wall_s += now - self._asked
        self._asked, self._got = None, now
        return full

    def paused(self) -> None:
        """The loop is left: what follows is neither waiting nor a step."""
        self._asked = self._got = None

    def _take(self) -> Window:
        window = Window(self._steps, self._wait_s, self._wall_s, self._total)
        self._steps, self._wait_s, self._wall_s = 0, 0.0, 0.0
        return window


class Reporter:
    """What is done with a window: a line in the log above a threshold, and a file for a Prometheus node exporter.

    Args:
        threshold: Stall share from which on a line is logged [fraction].
        metrics_file: Where OpenMetrics text goes, replaced as a whole each time; None for none.
        name: Of the loader, in the line and as a label.
        emit: Called with each window; None for nothing.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.1,
        metrics_file: str | os.PathLike[str] | None = None,
        name: str = "train",
        emit: Callable[[Window], None] | None = None,
    ) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; it must lie between 0 and 1")
        self.threshold, self.name, self.emit = threshold, name, emit
        self.metrics_file = Path(metrics_file) if metrics_file is not None else None
        self._warned = False

    def __call__(self, window: Window) -> None:
        """Take a window."""
        if self.emit is not None:
            self.emit(window)
        rank = rank_of_process()
        if self.metrics_file is not None:
            try:
                self._write(openmetrics(window, self.name, rank))
            except OSError as error:
                if not self._warned:
                    log.warning("ioprobe: cannot write '%s': %s", self.metrics_file, error.strerror)
                self._warned = True
        if window.stall_share >= self.threshold and rank == 0:
            log.warning(
                "ioprobe: the loop over '%s' waited for data %.1f%% of the last %d steps (%.3g steps/s)",
                self.name,
                100 * window.stall_share,
                window.steps,
                window.steps_per_s,
            )

    def _write(self, text: str) -> None:
        assert self.metrics_file is not None
        temporary = self.metrics_file.with_name(f".{self.metrics_file.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text)
            temporary.replace(self.metrics_file)
        finally:
            temporary.unlink(missing_ok=True)


def openmetrics(window: Window, name: str, rank: int) -> str:
    """Return a window as OpenMetrics text, which the textfile collector of a Prometheus node exporter reads.

    >>> print(openmetrics(Window(10, 0.5, 2.0, 30), "train", 0).splitlines()[2])
    ioprobe_stall_ratio{loader="train",rank="0"} 0.25
    """
    label = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'{{loader="{label}",rank="{rank}"}}'
    lines = []
    for metric, kind, text, value in (
        ("ioprobe_stall_ratio", "gauge", "Share of the loop's time spent waiting for a batch.", window.stall_share),
        ("ioprobe_steps_per_second", "gauge", "Steps per second of the loop.", window.steps_per_s),
        ("ioprobe_steps", "counter", "Steps since the loop began.", float(window.total_steps)),
    ):
        suffix = "_total" if kind == "counter" else ""
        lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}", f"{metric}{suffix}{labels} {value:g}"]
    return "\n".join([*lines, "# EOF", ""])


def rank_of_process() -> int:
    """Return the rank of torch.distributed where it runs, else of the environment, else 0."""
    import sys

    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in ("RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0


class Watched(Generic[T]):
    """A loader that is timed as it is iterated, and else is what it was."""

    def __init__(self, loader: Any, meter: StallMeter, report: Callable[[Window], None]) -> None:
        self._loader, self._meter, self._report = loader, meter, report

    def __iter__(self) -> Iterator[T]:
        meter = self._meter
        meter.asked()
        iterator = iter(self._loader)
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                window = meter.got()
                if window is not None:
                    self._report(window)
                yield batch
                del batch  # the loop's own reference is the last one, as without us
                meter.asked()
        finally:
            meter.paused()

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def watch(
    loader: Any,
    *,
    every: int = 100,
    threshold: float = 0.1,
    metrics_file: str | os.PathLike[str] | None = None,
    name: str = "train",
    emit: Callable[[Window], None] | None = None,
) -> Any:
    """Return the loader, timed: ``for batch in ioprobe.watch(loader)``.

    Batches, order and attributes stay what they are. A line goes to the logger ``ioprobe`` where the loop waits for
    data longer than a threshold, from rank 0 only.

    Args:
        loader: A DataLoader or any iterable of batches.
        every: Steps in a window.
        threshold: Stall share from which on a line is logged [fraction].
        metrics_file: OpenMetrics text for a Prometheus node exporter, replaced after each window.
        name: Of the loader, in the line and as a label.
        emit: Called with each :class:`Window`, on every rank.

    Raises:
        ValueError: every is below 1, or threshold is no fraction.
    """
    report = Reporter(threshold=threshold, metrics_file=metrics_file, name=name, emit=emit)
    return Watched(loader, StallMeter(every), report)
