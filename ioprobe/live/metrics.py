"""The figures of a launched job while it runs, as OpenMetrics text, from what its processes wrote down so far.

The job itself has no part in it: the process that waits for it reads the journals every few seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ioprobe.errors import OutputError
from ioprobe.live.hooks.journal import SUFFIX, Record, read_records, whole_length
from ioprobe.live.hooks.phases import OBSERVE
from ioprobe.run import Stage
from ioprobe.watching.metrics import Reading, openmetrics, replace_text
from ioprobe.watching.stages import StackCounts, stage_shares, worker_seconds

EVERY_S = 5.0


@dataclass
class Sums:
    """Of one loader of one process, since its loop began."""

    steps: int = 0
    training: float = 0.0
    """Steps under gradient."""
    trains: bool = False
    """Whether a backward pass came between two of its batches."""
    wait_s: float = 0.0
    loop_s: float = 0.0
    """Waiting and steps; validation inside an epoch is in the step."""
    workers_s: dict[str, float] = field(default_factory=dict)
    """What its workers did [s], as :func:`ioprobe.watching.stages.worker_seconds` names it."""
    stacks: Counter[Stage] = field(default_factory=Counter)

    def add_wait(self, seconds: float) -> None:
        """Add waiting, which is part of the loop's time."""
        self.wait_s += seconds
        self.loop_s += seconds


@dataclass
class _Iterator:
    loader: int
    returned_s: float | None = None
    """When the batch came that the loop works on; None outside the loop."""
    backwards: float | None = None
    """Backward passes of the process, at the batch before."""
    init_s: float = 0.0
    """Of making the iterator, as far as it is counted."""


class Followed:
    """One process's journal, read on from where it was read last.

    Args:
        path: The journal.
        judge: Tells the stages of stacks.
    """

    def __init__(self, path: Path, judge: StackCounts) -> None:
        self._path, self._judge, self._at = path, judge, 0
        self.rank = 0
        self.loaders: dict[int, Sums] = {}
        self.before: dict[int, Sums] = {}
        """As they were at the reading before."""
        self._iterators: dict[int, _Iterator] = {}
        self._stacks: dict[tuple[int, int], Counter[Stage]] = {}

    def read(self) -> None:
        """Take in what is new.

        Raises:
            OSError: it has gone.
        """
        self.before = {key: replace(sums, workers_s=sums.workers_s.copy()) for key, sums in self.loaders.items()}
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        length = whole_length(data)
        self._at += length
        for record in read_records(data[:length]):
            self._take(record)

    def _take(self, record: Record) -> None:
        head, kind = record.head, record.head.get("kind")
        if kind in ("process", "rank"):
            self.rank = int(head.get("rank", self.rank))
        elif kind == "iterator":
            self._iterators[int(head["trace"])] = _Iterator(int(head["loader"]))
        iterator = self._iterators.get(int(head.get("trace", -1)))
        if iterator is None:
            return
        sums = self.loaders.setdefault(iterator.loader, Sums())
        if kind == "batches":
            _add_batches(sums, iterator, head, record.columns)
        elif kind == "worker":
            names = list(record.columns)
            rows = (dict(zip(names, row, strict=True)) for row in zip(*record.columns.values(), strict=True))
            sums.workers_s.update(worker_seconds(rows))
        elif kind == "worker-stacks":
            self._add_stacks(iterator.loader, int(head["trace"]), int(head["worker"]), str(head["rows"]))

    def _add_stacks(self, loader: int, trace: int, worker: int, rows: str) -> None:
        with contextlib.suppress(ValueError):  # the worker was ended while it wrote
            self._stacks[trace, worker] = self._judge.of(rows.encode())
        total: Counter[Stage] = Counter()
        for (one, _), found in self._stacks.items():
            if self._iterators[one].loader == loader:
                total += found
        self.loaders[loader].stacks = total


def _add_batches(sums: Sums, iterator: _Iterator, head: dict[str, Any], columns: dict[str, list[float]]) -> None:
    """Add what one record says of an iterator's batches, ends of epochs and rewinds."""
    sums.add_wait(max(0.0, float(head.get("init_s", 0.0)) - iterator.init_s))
    iterator.init_s = max(iterator.init_s, float(head.get("init_s", 0.0)))
    for count in columns.get("backwards", []):
        sums.trains |= iterator.backwards is not None and count > iterator.backwards
        iterator.backwards = count
    for begin, end in head.get("resets", []):
        sums.add_wait(float(end) - float(begin))
    ends = zip(head.get("end_calls", []), head.get("ends", []), strict=True)
    events: list[tuple[float, float, float | None]] = [(float(call), float(done), None) for call, done in ends]
    names = ("call_s", "return_s", "training", "phase")
    events += [
        (call, done, under_gradient)
        for call, done, under_gradient, phase in zip(*(columns.get(name, []) for name in names), strict=True)
        if int(phase) == OBSERVE
    ]
    for call, done, training in sorted(events, key=lambda event: event[0]):
        if iterator.returned_s is not None:
            sums.loop_s += max(0.0, call - iterator.returned_s)
        sums.add_wait(done - call)
        iterator.returned_s = done if training is not None else None
        sums.steps += training is not None
        sums.training += training or 0.0


class MetricsFile:
    """Writes the figures of a job every few seconds.

    Args:
        path: The file, replaced as a whole.
        folder: Where the job's processes write their journals.
        every_s: Time between two readings [s].
        clock: Monotonic clock [s].

    Raises:
        OutputError: the file cannot be written.
    """

    def __init__(
        self, path: Path, folder: Path, *, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._folder, self._every_s, self._clock = path, folder, every_s, clock
        self._due_s = clock() + every_s
        self._judge = StackCounts()
        self._followed: dict[Path, Followed] = {}
        self.error = ""
        """Why it could not be written the last time; empty where it could."""
        try:
            replace_text(path, openmetrics([]))
        except OSError as error:
            raise OutputError(
                f"cannot write '{path}': {error.strerror}", hint="choose another --metrics-file"
            ) from None

    def look(self, *, final: bool = False) -> None:
        """Write a reading where one is due; the final one holds totals only, for nothing goes on any more."""
        if self._clock() < self._due_s and not final:
            return
        self._due_s = self._clock() + self._every_s
        for path in self._folder.glob(f"*{SUFFIX}"):
            self._followed.setdefault(path, Followed(path, self._judge))
        for followed in self._followed.values():
            with contextlib.suppress(OSError):
                followed.read()
        try:
            replace_text(self._path, openmetrics(readings(list(self._followed.values()), final=final)))
            self.error = ""
        except OSError as error:
            self.error = error.strerror or str(error)


def readings(processes: list[Followed], *, final: bool) -> list[Reading]:
    """Return one reading for each loader of each process that has made a step.

    Loaders are named as in the report: ``train``, ``validation``, with a number where there are several.
    """
    found = []
    names: Counter[tuple[int, str]] = Counter()
    for process in processes:
        backward = any(sums.trains for sums in process.loaders.values())
        order = sorted(process.loaders.items(), key=lambda item: (-item[1].trains, -item[1].training))
        for key, sums in order:
            if not sums.steps:
                continue
            role = "train" if (sums.trains if backward else sums.training > sums.steps / 2) else "validation"
            names[process.rank, role] += 1
            number = names[process.rank, role]
            name = role if number == 1 else f"{role}-{number}"
            found.append(_reading(name, process.rank, sums, process.before.get(key, Sums()), final=final))
    return found


def _reading(name: str, rank: int, sums: Sums, before: Sums, *, final: bool) -> Reading:
    whole = Reading(name, rank, sums.steps, wait_s=sums.wait_s, loop_s=sums.loop_s)
    loop_s = sums.loop_s - before.loop_s
    if final or loop_s <= 0:
        return whole
    return whole._replace(
        stall_share=(sums.wait_s - before.wait_s) / loop_s,
        steps_per_s=(sums.steps - before.steps) / loop_s,
        stages=stage_shares({k: v - before.workers_s.get(k, 0.0) for k, v in sums.workers_s.items()}, sums.stacks),
    )
