"""A Lightning callback: ``Trainer(callbacks=[StallCallback()])`` says how long the loop waits for batches."""

from __future__ import annotations

import importlib
import os
from typing import Any

from ioprobe.errors import UsageError
from ioprobe.integrations.loop import WatchedLoop

_Base: Any = object
for _name in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
    try:
        _Base = importlib.import_module(_name).Callback
        break
    except ImportError:  # the other name of the same package, or none of them
        continue


class StallCallback(_Base):  # type: ignore[misc]
    """Logs ``ioprobe/stall_share``, ``ioprobe/steps_per_s`` and the workers' stages every so many steps.

    A stage is ``ioprobe/workers/decode``: the share of the workers' time that went there [fraction].

    Args:
        every: Steps in a window.
        threshold: Stall share from which on rank 0 writes a line to the logger ``ioprobe`` [fraction].
        metrics_file: OpenMetrics text for a Prometheus node exporter; None for none.
        stages: Look where the workers spend their time; False leaves them alone.

    Raises:
        UsageError: Lightning is not installed.
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
            raise UsageError("Lightning is not installed", hint="pip install lightning")
        super().__init__()
        self._loop = WatchedLoop(every, threshold=threshold, metrics_file=metrics_file, stages=stages)

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Iterators are made from now on."""
        self._loop.begin()

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """The trainer is done, or has failed."""
        self._loop.end()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """The trainer has failed."""
        self.teardown(trainer, module, "fit")

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """The first batch of the epoch is asked for."""
        self._loop.meter.paused()
        self._loop.meter.asked()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """A batch is there."""
        self._loop.got()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The step is done; what follows, up to the next batch, is waiting."""
        window = self._loop.take()
        if window is not None:
            shares = {f"ioprobe/workers/{name}": share for name, share in window.stages.items()}
            rates = {"ioprobe/stall_share": window.stall_share, "ioprobe/steps_per_s": window.steps_per_s}
            module.log_dict({**rates, **shares})
        self._loop.meter.asked()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Validation is no part of the training loop."""
        self._loop.meter.paused()

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Back to the training loop."""
        self._loop.meter.asked()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """What happens between epochs is neither waiting nor a step."""
        self._loop.meter.paused()
