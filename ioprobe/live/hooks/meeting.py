"""Where ranks may wait for each other, timed in the job's own processes; see :mod:`ioprobe.instrument.meeting`."""

from __future__ import annotations

import functools
import sys
from typing import Any

from ioprobe.instrument.meeting import Meetings, time_backward, time_collectives

__all__ = ["Backwards", "Meetings", "time_backward", "time_collectives"]


class Backwards:
    """Counts backward passes: a loop without any does not train, whatever its gradients are set to."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self) -> None:
        """Count the calls of ``torch.autograd.backward``, which ``Tensor.backward`` calls."""
        module: Any = sys.modules["torch.autograd"]
        call = module.backward

        @functools.wraps(call)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return call(*args, **kwargs)

        module.backward = backward
