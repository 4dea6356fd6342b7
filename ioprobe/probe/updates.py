"""Count optimizer steps, by torch's own hook: with gradient accumulation there are fewer of them than calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Updates:
    """Calls of a step, and the optimizer steps within them.

    Args:
        following: Returns the next batch; called once for each call of the step.
    """

    def __init__(self, following: Callable[[], Any]) -> None:
        self._following = following
        self._calls = 0
        self._at: dict[int, list[int]] = {}

    def following(self) -> Any:
        """Return the next batch."""
        self._calls += 1
        return self._following()

    def note(self, optimizer: Any) -> None:
        """Take down one step of an optimizer."""
        self._at.setdefault(id(optimizer), []).append(self._calls)

    def per_call(self) -> float | None:
        """Return optimizer steps per call of the step, of the busiest optimizer; None where none was seen.

        >>> seen = Updates(int)
        >>> for call in range(1, 11):
        ...     batch = seen.following()
        ...     if call % 4 == 0:
        ...         seen.note("optimizer")
        >>> seen.per_call()
        0.25
        """
        if not self._calls or not self._at:
            return None
        calls = max(self._at.values(), key=len)
        if len(calls) > 1 and calls[-1] > calls[0]:
            return (len(calls) - 1) / (calls[-1] - calls[0])
        return len(calls) / self._calls


@contextmanager
def counted_updates(following: Callable[[], Any]) -> Iterator[Updates]:
    """Count optimizer steps within; where torch was never imported there are none."""
    found = Updates(following)
    module: Any = sys.modules.get("torch.optim.optimizer")
    if module is None:
        yield found
        return
    handle = module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: found.note(optimizer))
    try:
        yield found
    finally:
        handle.remove()
