"""A callback for Hugging Face's Trainer: ``Trainer(..., callbacks=[StallCallback()])``."""

from __future__ import annotations

import os
from typing import Any

from ioprobe.errors import UsageError
from ioprobe.integrations.loop import WatchedLoop

_Base: Any = object
try:
    from transformers import TrainerCallback as _Base  # type: ignore[no-redef]
except ImportError:  # said when the callback is made
    pass


class StallCallback(_Base):  # type: ignore[misc]
    """Adds ``stall_share``, ``loop_steps_per_s`` and the workers' stages to the Trainer's logs, over so many steps.

    A stage is ``workers_decode``: the share of the workers' time that went there [fraction]. Trainer asks the reporters
    of ``report_to`` first: to have it there, pass them as callbacks after this one, ``callbacks=[StallCallback(),
    TensorBoardCallback()]`` with ``report_to="none"``.
    With gradient accumulation, the batches of an optimizer step are fetched before it begins; that wait is one.

    Args:
        every: Optimizer steps in a window.
        threshold: Stall share from which on rank 0 writes a line to the logger ``ioprobe`` [fraction].
        metrics_file: OpenMetrics text for a Prometheus node exporter; None for none.
        stages: Look where the workers spend their time; False leaves them alone.

    Raises:
        UsageError: transformers is not installed.
    """

    def __init__(
        self,
        every: int = 100,
        *,
        threshold: float = 0.1,
        metrics_file: str | os.PathLike[str] | None = None,
        stages: bool = True,
    ) -> None:
        if _Base is object:
            raise UsageError("transformers is not installed", hint="pip install transformers")
        super().__init__()
        self._loop = WatchedLoop(every, threshold=threshold, metrics_file=metrics_file, stages=stages)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Iterators are made from now on."""
        self._loop.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer is done."""
        self._loop.end()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first batch of the epoch is asked for."""
        self._loop.meter.paused()
        self._loop.meter.asked()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The batches of a step are there."""
        self._loop.got()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step is done; evaluation, saving and logging follow before the next batch is asked for."""
        self._loop.meter.asked()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluation is no part of the training loop: the wait begins anew."""
        self._loop.meter.paused()
        self._loop.meter.asked()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Nor is a checkpoint."""
        self._loop.meter.paused()
        self._loop.meter.asked()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What happens between epochs is neither waiting nor a step."""
        self._loop.meter.paused()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Add the last window to what the Trainer logs, and to its history."""
        window = self._loop.take()
        if window is None or logs is None:
            return
        found = {"stall_share": window.stall_share, "loop_steps_per_s": window.steps_per_s}
        found |= {f"workers_{name}": share for name, share in window.stages.items()}
        logs |= found
        history = getattr(state, "log_history", None)
        if history:
            history[-1] |= found
