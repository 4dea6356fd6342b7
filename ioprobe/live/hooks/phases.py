"""What to do at each request for a batch: observe, hand back a resident batch, drain the loader, trace, or stop.

Phases change after counts of batches, never after times, so that the ranks of a job change together.
"""

from __future__ import annotations

from typing import Any

OBSERVE, CACHED, DRAIN, TRACE, DONE = range(5)
DEFAULT_STEPS = 200
MOST_STEPS = 200_000
_TRACE_AFTER = 12
"""Batches before a trace begins, where nothing says how many to observe."""
DRAIN_S = 10.0


class Phases:
    """The plan of one process.

    Args:
        steps: Batches to observe, None for all of them.
        phases: Of ``observe``, ``cached``, ``drain``.
        trace_steps: Steps to trace after observing, 0 for none.
        then: ``stop`` or ``continue`` once the plan is done.
    """

    def __init__(self, steps: int | None, phases: list[str], trace_steps: int, then: str) -> None:
        further = [p for p in phases if p != "observe"]
        if steps is None and (further or then == "stop"):
            steps = DEFAULT_STEPS
        self.stops = then == "stop"
        self.lead: int | None = None
        """Identity of the loader that the phases apply to: the first whose batches reached the count."""
        self._seen: dict[int, int] = {}
        self._left = 0
        self._queue: list[tuple[int, int]] = []
        first = steps if steps is not None else (_TRACE_AFTER if trace_steps else None)
        self.observed = first
        if trace_steps:
            self._queue.append((TRACE, trace_steps + 1))
        count = min(steps or DEFAULT_STEPS, DEFAULT_STEPS)
        self._queue += [(CACHED if p == "cached" else DRAIN, count) for p in further]
        if steps is not None:
            self._queue.append((DONE, 0))
        else:
            self._queue.append((OBSERVE, MOST_STEPS))
        self.now = OBSERVE
        self.keeps_batch = "cached" in further
        """Whether a batch has to be kept to hand back."""

    def count(self, loader: int, *, training: bool) -> None:
        """A batch of a loader was observed.

        Args:
            loader: Identity of the loader.
            training: Whether the loop over it trains, as far as is known.
        """
        if self.observed is None or self.lead is not None or not training:
            return
        seen = self._seen[loader] = self._seen.get(loader, 0) + 1
        if seen >= self.observed:
            self.lead = loader
            self.advance()

    def advance(self) -> None:
        """The present phase is done."""
        self.now, self._left = self._queue.pop(0) if self._queue else (DONE, 0)

    def spend(self) -> int:
        """Take one of the present phase's batches; returns how many are left after it."""
        self._left -= 1
        return self._left

    @property
    def left(self) -> int:
        """Batches left in the present phase."""
        return self._left


def from_options(options: dict[str, Any]) -> Phases:
    """Return the plan that ``ioprobe run`` asks for."""
    return Phases(
        options.get("steps"),
        list(options.get("phases", ["observe"])),
        int(options.get("trace_steps", 0)),
        str(options.get("then", "continue")),
    )
