"""One line in the user's own script: how long does the loop wait for batches, and what do the workers do meanwhile.

``for batch in ioprobe.watch(loader): ...``
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from ioprobe.watching.meter import StallMeter, Window
from ioprobe.watching.metrics import Reading, in_words, openmetrics, replace_text
from ioprobe.watching.stages import StageMeter

__all__ = ["Reporter", "StageMeter", "StallMeter", "Watched", "Window", "rank_of_process", "watch"]

T = TypeVar("T")

log = logging.getLogger("ioprobe")


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
            self._write(self.metrics_file, window, rank)
        if window.stall_share >= self.threshold and rank == 0:
            log.warning(
                "ioprobe: the loop over '%s' waited for data %.1f%% of the last %d steps (%.3g steps/s)%s",
                self.name,
                100 * window.stall_share,
                window.steps,
                window.steps_per_s,
                f"; its workers: {in_words(window.stages)}" if window.stages else "",
            )

    def _write(self, path: Path, window: Window, rank: int) -> None:
        share, rate = window.stall_share, window.steps_per_s
        reading = Reading(self.name, rank, window.total_steps, share, rate, stages=window.stages)
        try:
            replace_text(path, openmetrics([reading]))
        except OSError as error:
            if not self._warned:
                log.warning("ioprobe: cannot write '%s': %s", path, error.strerror)
            self._warned = True


def rank_of_process() -> int:
    """Return the rank of torch.distributed where it runs, else of the environment, else 0."""
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
        meter, stages = self._meter, self._meter.stages
        iterator: Iterator[T] | None = None
        if stages is not None:
            stages.begin()
        try:
            meter.asked()
            iterator = iter(self._loader)
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                window = meter.got()
                if stages is not None:
                    stages.end()  # iterators come with the first batch; what others make later is not ours
                if window is not None:
                    self._report(window)
                yield batch
                del batch  # the loop's own reference is the last one, as without us
                meter.asked()
        finally:
            meter.paused()
            if stages is not None:
                del iterator  # workers that end with it write down what they did
                stages.end()

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
    stages: bool = True,
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
        stages: Look where the workers of PyTorch's loaders spend their time; False leaves them alone.

    Raises:
        ValueError: every is below 1, or threshold is no fraction.
    """
    report = Reporter(threshold=threshold, metrics_file=metrics_file, name=name, emit=emit)
    return Watched(loader, StallMeter(every, stages=StageMeter() if stages else None), report)
