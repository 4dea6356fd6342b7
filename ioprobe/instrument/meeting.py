"""Time in which ranks may wait for each other: backward passes and collectives.

A rank that arrives early stays inside until the last one has come, so comparing these times between ranks tells who is
late. The calls themselves go through unchanged.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from ioprobe.instrument.clocks import now

_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
)


class Meetings:
    """Seconds inside, of the main thread."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._inside = False

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed where it is called by the main thread, outermost call only."""

        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._inside or threading.get_ident() != threading.main_thread().ident:
                return call(*args, **kwargs)
            self._inside = True
            begin = now()
            try:
                return call(*args, **kwargs)
            finally:
                self.total_s += now() - begin
                self._inside = False

        return wrapper


def time_backward(meetings: Meetings) -> None:
    """Time ``torch.autograd.backward``, which ``Tensor.backward`` calls."""
    module: Any = sys.modules["torch.autograd"]
    module.backward = meetings.timed(module.backward)


def time_collectives(meetings: Meetings) -> None:
    """Time the collectives of ``torch.distributed`` as users call them, where they are defined and where exported."""
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    exported: Any = sys.modules.get("torch.distributed")
    for name in _COLLECTIVES:
        call = getattr(module, name, None)
        if not callable(call):
            continue
        timed = meetings.timed(call)
        setattr(module, name, timed)
        if getattr(exported, name, None) is call:
            setattr(exported, name, timed)
