"""What the measuring child and its supervisor say to each other: one JSON object a line."""

from __future__ import annotations

from typing import Any

import msgspec

from ioprobe.instrument.stacks import DEFAULT_HZ


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """The other ranks of the same job, and the key-value store where they meet."""

    rank: int
    address: str
    port: int
    prefix: str
    """In front of every key."""
    patience_s: float = 60.0
    """How long to wait for an entry of another rank [s]."""


class Load(msgspec.Struct, tag="load", frozen=True, kw_only=True):
    """Make the loader and the step."""

    target: str
    """Factory (``file.py:function``, ``module:function``) or dataset URL."""
    step: str | None = None
    """Factory of the step; None where it is emulated or not wanted."""
    step_s: float | None = None
    """Emulated step: a constant sleep [s]."""
    step_s_per_sample: float | None = None
    """Emulated step: a sleep in proportion to the loader's batch size [s]."""
    step_source: str = ""
    loader_options: dict[str, Any] = {}
    """Keywords for the factory, or settings of the built-in loader."""
    batch_samples: int | None = None
    stacks_hz: float = DEFAULT_HZ
    team: Team | None = None
    """Given with several ranks."""


class Measure(msgspec.Struct, tag="measure", frozen=True, kw_only=True):
    """Drive the loader, alone or coupled with the step."""

    coupled: bool
    purpose: str = "baseline"
    seconds: float
    least_s: float = 3.0
    precision: float = 0.02
    changes: dict[str, Any] = {}
    """DataLoader settings that differ from the user's."""
    repeats: bool = False


class Step(msgspec.Struct, tag="step", frozen=True, kw_only=True):
    """Run the step on a resident batch."""

    seconds: float
    tokens_per_sample: int | None = None


class Where(msgspec.Struct, tag="where", frozen=True):
    """Say where the main thread and the workers stand; answered by another thread, also during a measurement."""


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """End the measurement after the batch in hand and hand over what there is."""


class Quit(msgspec.Struct, tag="quit", frozen=True):
    """End the process."""


Command = Load | Measure | Step | Where | Stop | Quit
"""Anything that the supervisor may ask."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Anything that the child answers; exactly one of the fields beside ``kind`` is meant."""

    kind: str
    """``ready``, ``progress``, ``loaded``, ``measured``, ``step``, ``where``, ``error``, ``nothing``, or
    ``spoiled``: what the main process read should go to no worker, a new process is needed."""
    text: str = ""
    done_s: float = 0.0
    of_s: float = 0.0
    hint: str = ""
    workers: list[str] = []
    """Where workers stand, as ``file:line in function (call)``."""
    batches: int = 0
    """Batches delivered so far."""
    in_step: bool = False
    """Whether the main thread is in the step, not waiting for a batch."""
    data: msgspec.Raw = msgspec.Raw(b"null")
    """The result, in its own type."""
