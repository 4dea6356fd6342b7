"""The accelerator's idle time between steps, from events that are polled and never waited for."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

_MOST_PENDING = 256


class DeviceIdle:
    """Call :meth:`asked` before and :meth:`got` after each request for a batch.

    Nothing happens unless the job itself has started the accelerator.
    """

    def __init__(self) -> None:
        self._torch: Any = None
        self._end: Any = None
        self._pairs: deque[tuple[Any, Any, int]] = deque()
        self._free: list[Any] = []
        self.idle: dict[int, float] = {}
        """Idle time before the step on each batch [s], by the batch's number, as soon as it is known."""

    def _event(self) -> Any:
        if self._free:
            return self._free.pop()
        return self._torch.cuda.Event(enable_timing=True)

    def _is_on(self) -> bool:
        if self._torch is None:
            torch = sys.modules.get("torch")
            cuda = getattr(torch, "cuda", None)
            if cuda is None or not cuda.is_initialized():
                return False
            self._torch = torch
        return True

    def asked(self) -> None:
        """All work of the step before is enqueued."""
        self._end = None
        if self._is_on():
            self._end = self._event()
            self._end.record()

    def got(self, number: int) -> None:
        """A batch is there; what follows in the stream is the next step."""
        if self._end is None:
            return
        start = self._event()
        start.record()
        self._pairs.append((self._end, start, number))
        self._end = None
        self.poll()

    def poll(self) -> None:
        """Take what is known by now."""
        while self._pairs and (self._pairs[0][1].query() or len(self._pairs) > _MOST_PENDING):
            end, start, number = self._pairs.popleft()
            if start.query():
                self.idle[number] = max(0.0, float(end.elapsed_time(start)) * 1e-3)
                self._free += [end, start]
