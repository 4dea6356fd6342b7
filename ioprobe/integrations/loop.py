"""What the callbacks have in common: the loop is timed, and its windows are reported and kept for the next log."""

from __future__ import annotations

import os

from ioprobe.watching import Reporter, StageMeter, StallMeter, Window


class WatchedLoop:
    """A training loop that a framework drives.

    Args:
        every: Steps in a window.
        threshold: Stall share from which on rank 0 writes a line to the logger ``ioprobe`` [fraction].
        metrics_file: OpenMetrics text for a Prometheus node exporter; None for none.
        stages: Look where the workers spend their time.
    """

    def __init__(
        self, every: int, *, threshold: float, metrics_file: str | os.PathLike[str] | None, stages: bool
    ) -> None:
        self._stages = StageMeter() if stages else None
        self.meter = StallMeter(every, stages=self._stages)
        self._report = Reporter(threshold=threshold, metrics_file=metrics_file)
        self._window: Window | None = None

    def begin(self) -> None:
        """Iterators are made from now on."""
        if self._stages is not None:
            self._stages.begin()

    def end(self) -> None:
        """The loop is done, or has failed."""
        if self._stages is not None:
            self._stages.end()

    def got(self) -> None:
        """A batch is there."""
        window = self.meter.got()
        if window is not None:
            self._window = window
            self._report(window)

    def take(self) -> Window | None:
        """Return the window that nobody has taken yet."""
        window, self._window = self._window, None
        return window
