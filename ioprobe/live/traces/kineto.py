"""PyTorch's profiler traces (Kineto, Chrome-trace JSON) as timelines."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ioprobe.errors import RunFileError
from ioprobe.live.traces.events import CHUNK_BYTES, Event, EventReader
from ioprobe.live.traces.timeline import (
    DeviceWork,
    Kind,
    Spans,
    Timeline,
    is_collective_kernel,
    is_collective_operator,
    is_collective_range,
    is_host_to_device,
    is_step_range,
    loader_range,
    match_launches,
    spans,
)
from ioprobe.run import Caveat

# Event categories, old (before 2022) and new names; the rest does not matter here.
_KERNEL, _COPY, _FILL, _RUNTIME, _OPERATOR, _RANGE, _PYTHON = range(7)
_CATEGORIES = {
    "kernel": _KERNEL,
    "hpu_op": _KERNEL,
    "privateuse1_kernel": _KERNEL,
    "gpu_memcpy": _COPY,
    "memcpy": _COPY,
    "privateuse1_memcpy": _COPY,
    "gpu_memset": _FILL,
    "memset": _FILL,
    "cuda_runtime": _RUNTIME,
    "cuda_driver": _RUNTIME,
    "runtime": _RUNTIME,
    "driver": _RUNTIME,
    "xpu_runtime": _RUNTIME,
    "xpu_driver": _RUNTIME,
    "privateuse1_runtime": _RUNTIME,
    "privateuse1_driver": _RUNTIME,
    "hip_runtime": _RUNTIME,
    "cpu_op": _OPERATOR,
    "operator": _OPERATOR,
    "user_annotation": _RANGE,
    "python_function": _PYTHON,
}
_CATEGORIES |= {name.title(): code for name, code in _CATEGORIES.items()}
# Absolute times of this size can only be nanoseconds: as microseconds they would lie in the year 5000 and later.
_NANOSECONDS_FROM = 1e17
_PYTHON_NEXT = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __next__$")


class _Device:
    __slots__ = ("correlations", "ends", "kinds", "pageable", "pageable_bytes", "starts")

    def __init__(self) -> None:
        self.starts, self.ends = array("d"), array("d")
        self.kinds, self.correlations = array("b"), array("q")
        self.pageable: list[float] = []
        self.pageable_bytes: float | None = None


class _Collector:
    """Sorts events into columns; one pass, nothing kept that is not needed."""

    def __init__(self) -> None:
        self.devices: dict[str, _Device] = {}
        self.launch_ids, self.launch_times = array("q"), array("d")
        self.ops: tuple[array[float], array[float]] = (array("d"), array("d"))
        self.steps: list[tuple[float, float]] = []
        self.other_steps: list[tuple[float, float]] = []
        self.loader: list[tuple[float, float]] = []
        self.python_loader: list[tuple[float, float]] = []
        self.loader_kind = ""
        self.host_collectives: list[tuple[float, float, str]] = []
        self.collectives: list[tuple[float, float, str]] = []
        self.events = 0
        self._kinds: dict[str, Kind] = {}

    def add(self, batch: Iterable[Event]) -> None:
        """Take in events; this loop is what a large trace's time goes to."""
        categories, op_starts, op_ends = _CATEGORIES, *self.ops
        launch_ids, launch_times = self.launch_ids, self.launch_times
        for event in batch:
            self.events += 1
            code = categories.get(event.cat)
            if code is None or event.dur is None:
                continue
            if code == _OPERATOR:
                if is_collective_range(event.name):
                    self._collective(event)
                elif not is_collective_operator(event.name):
                    op_starts.append(event.ts)
                    op_ends.append(event.ts + event.dur)
            elif code == _RUNTIME:
                if event.args is not None and event.args.correlation is not None:
                    launch_ids.append(event.args.correlation)
                    launch_times.append(event.ts)
            elif code <= _FILL:
                self._device(event, code)
            elif code == _RANGE:
                self._range(event)
            elif event.name.endswith("__next__") and _PYTHON_NEXT.search(event.name):
                self.python_loader.append((event.ts, event.ts + event.dur))

    def _collective(self, event: Event) -> None:
        self.host_collectives.append((event.ts, event.ts + (event.dur or 0.0), event.name))

    def _range(self, event: Event) -> None:
        span = (event.ts, event.ts + (event.dur or 0.0))
        if event.name.startswith("ProfilerStep#"):
            self.steps.append(span)
        elif (kind := loader_range(event.name)) is not None:
            self.loader.append(span)
            self.loader_kind = self.loader_kind or kind
        elif is_collective_range(event.name):
            self._collective(event)
        elif is_step_range(event.name):
            self.other_steps.append(span)

    def _device(self, event: Event, code: int) -> None:
        args, duration = event.args, event.dur or 0.0
        name = event.pid if args is None or args.device is None else args.device
        device = self.devices.setdefault(str(name), _Device())
        kind = self._kind(event.name, code)
        device.starts.append(event.ts)
        device.ends.append(event.ts + duration)
        device.kinds.append(kind)
        device.correlations.append(-1 if args is None or args.correlation is None else args.correlation)
        if kind == Kind.COMMUNICATION:
            label = event.name.split("(")[0] if args is None or not args.collective else args.collective
            group = (args.group or "") if args is not None else ""
            self.collectives.append((event.ts, duration, f"{label} {group}".strip()))
        if kind == Kind.TRANSFER and "Pageable" in event.name:
            device.pageable.append(duration)
            if args is not None and isinstance(args.nbytes, (int, float)) and math.isfinite(args.nbytes):
                device.pageable_bytes = (device.pageable_bytes or 0.0) + args.nbytes

    def _kind(self, name: str, code: int) -> Kind:
        kind = self._kinds.get(name)
        if kind is None:
            if code == _KERNEL:
                kind = Kind.COMMUNICATION if is_collective_kernel(name) else Kind.COMPUTE
            else:
                kind = Kind.TRANSFER if code == _COPY and is_host_to_device(name) else Kind.COPY
            if len(self._kinds) < 100_000:
                self._kinds[name] = kind
        return kind


def read_kineto(path: str | Path, chunk_bytes: int = CHUNK_BYTES) -> Timeline:
    """Return the timeline of one rank's Kineto trace (.json, .json.gz, list form too).

    Reads in one pass; memory holds a few columns of numbers for each device event, not the file.

    Raises:
        RunFileError: the file cannot be read, or is no trace, or holds no event that says where time went.
    """
    reader = EventReader(path, chunk_bytes)
    seen = _Collector()
    for batch in reader.batches():
        seen.add(batch)
    return _timeline(path, reader, seen)


def _timeline(path: str | Path, reader: EventReader, seen: _Collector) -> Timeline:
    if not (seen.devices or seen.ops[0] or seen.loader or seen.steps):
        raise RunFileError(
            f"trace '{path}' has {seen.events} events, none of which is an operator, a kernel or a step",
            hint="record training steps with torch.profiler, schedule(wait=1, warmup=1, active=5, repeat=1)",
        )
    scale, origin = _clock(seen)
    steps = seen.steps or seen.other_steps
    loader = seen.loader or seen.python_loader
    rank, world = _rank(path, reader.header)
    timeline = Timeline(
        source=str(path),
        rank=rank,
        world_size=world,
        steps=_spans(steps, scale, origin),
        loader=_spans(loader, scale, origin),
        host_compute=_columns(*seen.ops, scale, origin),
        host_communication=_spans([(s, e) for s, e, _ in seen.host_collectives], scale, origin),
        devices=_devices(seen, scale, origin),
        loader_kind=seen.loader_kind,
        events=seen.events,
    )
    calls = [(s, d, n) for s, d, n in seen.collectives] or [(s, e - s, n) for s, e, n in seen.host_collectives]
    by_name: dict[str, list[float]] = {}
    for _, duration, name in sorted(calls):
        by_name.setdefault(name, []).append(duration * scale)
    timeline.collectives = {name: np.asarray(values) for name, values in by_name.items()}
    timeline.caveats += _damage(path, reader)
    return timeline


def _clock(seen: _Collector) -> tuple[float, float]:
    """Return seconds per unit of the file's times, and a time near them all to count from.

    The unit is the microsecond, or the nanosecond where nothing else can be meant.
    """
    firsts = [d.starts[0] for d in seen.devices.values()] + [c[0] for c in (seen.ops[0],) if c]
    firsts += [pairs[0][0] for pairs in (seen.steps, seen.other_steps, seen.loader, seen.python_loader) if pairs]
    origin = next((t for t in firsts if math.isfinite(t)), 0.0)
    return (1e-9 if abs(origin) >= _NANOSECONDS_FROM else 1e-6), origin


def _columns(starts: array[float], ends: array[float], scale: float, origin: float) -> Spans:
    return spans(np.frombuffer(starts), np.frombuffer(ends), scale, origin) if starts else Spans()


def _spans(pairs: list[tuple[float, float]], scale: float, origin: float) -> Spans:
    return spans([s for s, _ in pairs], [e for _, e in pairs], scale, origin)


def _devices(seen: _Collector, scale: float, origin: float) -> list[DeviceWork]:
    ids = np.frombuffer(seen.launch_ids, dtype=np.int64) if seen.launch_ids else np.empty(0, dtype=np.int64)
    times = np.frombuffer(seen.launch_times) if seen.launch_times else np.empty(0)
    order = np.argsort(ids, kind="stable")
    ids, times = ids[order], (times[order] - origin) * scale
    found = []
    for name, device in sorted(seen.devices.items()):
        starts = (np.frombuffer(device.starts) - origin) * scale
        ends = (np.frombuffer(device.ends) - origin) * scale
        keep = np.isfinite(starts) & np.isfinite(ends) & (ends >= starts)
        found.append(
            DeviceWork(
                device=name,
                spans=Spans(starts[keep], ends[keep]),
                kinds=np.frombuffer(device.kinds, dtype=np.int8)[keep],
                launched=match_launches(np.frombuffer(device.correlations, dtype=np.int64), ids, times)[keep],
                pageable_s=sum(device.pageable) * scale,
                pageable_copies=len(device.pageable),
                pageable_bytes=None if device.pageable_bytes is None else int(device.pageable_bytes),
            )
        )
    return found


def _rank(path: str | Path, header: dict[str, object]) -> tuple[int | None, int | None]:
    info = header.get("distributedInfo")
    if isinstance(info, dict):
        rank, world = info.get("rank"), info.get("world_size")
        if isinstance(rank, int):
            return rank, world if isinstance(world, int) else None
    named = re.search(r"rank[_\-.]?(\d+)", Path(path).name, re.IGNORECASE)
    return (int(named.group(1)) if named else None), None


def _damage(path: str | Path, reader: EventReader) -> list[Caveat]:
    found = []
    if reader.truncated:
        found.append(
            Caveat(
                "trace-truncated",
                f"'{Path(path).name}' ends within its list of events: its last steps are missing",
                "export the trace again, or copy it once more",
            )
        )
    if reader.damaged or reader.mended:
        found.append(
            Caveat(
                "trace-damaged",
                f"'{Path(path).name}' has {reader.damaged} events that cannot be read and {reader.mended} mended ones",
                "export the trace again without with_stack",
            )
        )
    return found
