"""Where a step's time goes: compute, communication, transfer, checkpoint, idle, from a short trace of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ioprobe.probe.step_clock import Clock

Interval = tuple[float, float]

_COMMUNICATION = re.compile(
    r"^(nccl|gloo|mpi|ucc|hccl|rccl|xccl|oneccl)[:_]|^c10d::|^(nccl|rccl)(Dev)?Kernel|^hccl|^all_?(reduce|gather|to_all)\b"
    r"|^reduce_?scatter\b|^broadcast\b",
)
_CHECKPOINT = re.compile(r"^(save_?|write_?|async_?)?(checkpoint|ckpt)(ing|_?sav(e|ing))?\b(?!Function)|^save_state\b")
_TRANSFER = re.compile(
    r"^memcpy (htod|h2d|m2d|dtoh|d2h|d2m)|^(h2d|host_?to_?device|to_device|transfer)\b", re.IGNORECASE
)
_PRODUCT = re.compile(r"aten::(mm|addmm|bmm|linear|conv|_scaled)")
_MARK = "ioprobe.step"


class Shares(msgspec.Struct):
    """Traced seconds; they sum to the window."""

    seconds: dict[str, float]
    window_s: float
    steps: int
    products: bool = False
    """Whether matrix products or convolutions of torch were seen."""

    def seconds_per_step(self, step_s: float) -> dict[str, float]:
        """Return the parts of one step of a given length: a profiler slows what it watches, shares hold better."""
        return {name: part / self.window_s * step_s for name, part in self.seconds.items()}


class Event(msgspec.Struct, frozen=True):
    """One entry of a trace, as far as it matters here."""

    name: str
    start_s: float
    end_s: float
    thread: int = 0
    on_device: bool = False
    annotation: bool = False
    """Marked by the user (``record_function``) rather than an operator."""


def trace(
    step: Callable[[Any], Any],
    following: Callable[[], Any],
    clock: Clock,
    steps: int,
    ready: Callable[[], object] | None = None,
) -> Shares | None:
    """Run steps under ``torch.profiler`` and divide their time; None where the profiler cannot run.

    ``ready`` is called once the profiler is on: ranks whose profilers start at different speeds wait there for each
    other, so that this does not count as communication.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    kinds = ["CPU"] if clock.device_name == "cpu" else ["CPU", "CUDA", "XPU", "PrivateUse1"]
    wanted = [getattr(ProfilerActivity, kind) for kind in kinds if hasattr(ProfilerActivity, kind)]
    clock.finish()
    batches = [following() for _ in range(steps)]
    with _quiet_profiler():
        profiler: Any = profile(activities=wanted)
        try:
            profiler.__enter__()
        except RuntimeError:  # the step, or someone around it, is being profiled already
            return None
        try:
            if ready is not None:
                ready()
            with record_function(_MARK):
                for batch in batches:
                    step(batch)
                clock.finish()
        finally:
            profiler.__exit__(None, None, None)
    return divide(events_of(profiler), steps)


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Keep the profiler's own notes off the user's stderr."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = before or "6"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def events_of(profiler: Any) -> list[Event]:
    """Return what a finished profiler saw."""
    found = []
    for event in profiler.events():
        start, end = event.time_range.start * 1e-6, event.time_range.end * 1e-6
        device = "CPU" not in str(event.device_type)
        annotation = bool(getattr(event, "is_user_annotation", "::" not in event.name)) or event.name == _MARK
        found.append(Event(event.name, start, end, int(event.thread or 0), device, annotation))
    return found


def divide(events: Sequence[Event], steps: int) -> Shares | None:
    """Divide the marked window among its parts, each second counted once.

    On a device: kernels are compute; communication, copies and checkpoint
    count only where no kernel runs (exposed); the rest is idle. On the CPU an
    operator that runs on any thread hides communication; time that no mark
    claims is compute, because a trace cannot tell Python's own work from idling.
    """
    marks = [e for e in events if e.name == _MARK and not e.on_device]
    if not marks:
        return None
    window = (marks[0].start_s, max(m.end_s for m in marks))
    if window[1] <= window[0]:
        return None
    device = [e for e in events if e.on_device and not e.annotation]
    if device:
        busy, communication, transfer = _on_device(device)
        communication += _spans(e for e in events if not e.on_device and _COMMUNICATION.search(e.name))
    else:
        busy, communication, transfer = _on_cpu(events)
    checkpoint = _spans(e for e in events if not e.on_device and e.annotation and _CHECKPOINT.search(e.name))
    # On the CPU a marked checkpoint or copy is itself made of operators; on a device they run beside the kernels.
    order = [("compute", busy), ("communication", communication), ("transfer", transfer), ("checkpoint", checkpoint)]
    if not device:
        order = [order[3], order[2], order[0], order[1]]
    seconds, claimed = {}, list[Interval]()
    for name, spans in order:
        both = union([*claimed, *spans], window)
        seconds[name] = _length(both) - _length(claimed)
        claimed = both
    rest = window[1] - window[0] - _length(claimed)
    if device:
        seconds["idle"] = rest
    else:
        seconds["compute"] += rest
    products = any(_PRODUCT.match(e.name) for e in events)
    return Shares(seconds, window[1] - window[0], steps, products)


def _on_device(device: Sequence[Event]) -> tuple[list[Interval], list[Interval], list[Interval]]:
    communication = [e for e in device if _COMMUNICATION.search(e.name)]
    transfer = [e for e in device if _TRANSFER.search(e.name)]
    apart = {id(e) for e in [*communication, *transfer]}
    return _spans(e for e in device if id(e) not in apart), _spans(communication), _spans(transfer)


def _on_cpu(events: Sequence[Event]) -> tuple[list[Interval], list[Interval], list[Interval]]:
    busy: list[Interval] = []
    communication: list[Interval] = []
    for thread in {e.thread for e in events}:
        mine = [e for e in events if e.thread == thread]
        claimed = union(_spans(e for e in mine if _COMMUNICATION.search(e.name)))
        operators = union(_spans(e for e in mine if not e.annotation and not _COMMUNICATION.search(e.name)))
        communication += claimed
        busy += subtract(operators, claimed)
    return busy, communication, _spans(e for e in events if e.annotation and _TRANSFER.search(e.name))


def _spans(events: Iterable[Event]) -> list[Interval]:
    return [(e.start_s, e.end_s) for e in events]


def union(spans: Iterable[Interval], window: Interval | None = None) -> list[Interval]:
    """Return intervals merged where they touch, in order, and clipped to a window.

    >>> union([(3, 5), (0, 1), (4, 6)], (0.5, 5.5))
    [(0.5, 1), (3, 5.5)]
    """
    merged: list[Interval] = []
    for start, end in sorted(spans):
        if window is not None:
            start, end = max(start, window[0]), min(end, window[1])
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def subtract(spans: Sequence[Interval], holes: Sequence[Interval]) -> list[Interval]:
    """Return what is left of merged, ordered intervals outside merged, ordered holes.

    >>> subtract([(0, 4), (5, 6)], [(1, 2), (3, 5.5)])
    [(0, 1), (2, 3), (5.5, 6)]
    """
    left: list[Interval] = []
    first = 0
    for start, end in spans:
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        at = first
        while at < len(holes) and holes[at][0] < end:
            if holes[at][0] > start:
                left.append((start, holes[at][0]))
            start = max(start, holes[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return left


def _length(spans: Iterable[Interval]) -> float:
    return sum(end - start for start, end in spans)
