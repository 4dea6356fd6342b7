"""What was seen of one DataLoader iterator of the job, row by row."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ioprobe.instrument.batches import count_samples, size_of
from ioprobe.instrument.clocks import now, thread_cpu
from ioprobe.instrument.hooks import IteratorTrace, ready_batches
from ioprobe.live.hooks.phases import CACHED, OBSERVE

if TYPE_CHECKING:
    from ioprobe.live.hooks.recorder import LiveRecorder

_COLUMNS = (
    "call_s",
    "return_s",
    "cpu_s",
    "sampler_s",
    "transport_s",
    "ready",
    "samples",
    "training",
    "phase",
    "meeting_s",
    "number",
    "own_s",
    "backwards",
)


class LiveTrace(IteratorTrace):
    """One iterator of the job."""

    def __init__(self, loader: Any, recorder: LiveRecorder, number: int) -> None:
        super().__init__(loader, recorder.stacks_hz)
        self.number = number
        self.batch_size = getattr(loader, "batch_size", None)
        self.samples: list[float] = []
        self.training: list[float] = []
        self.phase: list[float] = []
        self.meeting_s: list[float] = []
        self.numbers: list[float] = []
        self.own_s: list[float] = []
        self.backwards: list[float] = []
        self.trains = False
        """Whether a backward pass came between two of its batches."""
        self.sizes: list[tuple[int, int]] = []
        self.stacks_written = False
        self._recorder = recorder
        self._iterator: weakref.ref[Any] | None = None
        self._backwards: int | None = None
        self._grad: Callable[[], bool] = sys.modules["torch"].is_grad_enabled

    @property
    def in_main_thread(self) -> bool:
        """Whether the job's main thread made it."""
        return self.thread == threading.main_thread().ident

    @property
    def is_gone(self) -> bool:
        """Whether the job has let the iterator go."""
        return self._iterator is not None and self._iterator() is None

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the next batch, by the phase that the job is in."""
        recorder = self._recorder
        if not recorder.active:
            return original(iterator)
        if self._iterator is None:
            self._iterator = weakref.ref(iterator)
        phases = recorder.phases
        if phases.lead == self.loader_id and phases.now != OBSERVE:
            return recorder.special(self, iterator, original)
        batch = self.observe(iterator, original, OBSERVE)
        trains = self.trains or (recorder.backwards.count == 0 and bool(self.training and self.training[-1]))
        phases.count(self.loader_id, training=trains)
        if phases.keeps_batch and phases.lead == self.loader_id:
            recorder.resident = batch
        if self.return_s and self.return_s[-1] - recorder.flushed_s > recorder.pause_s:
            recorder.flush()
            recorder.own_s += now() - recorder.flushed_s
        return batch

    def observe(self, iterator: Any, original: Callable[[Any], Any], phase: int) -> Any:
        """Return the next batch, timed."""
        recorder = self._recorder
        ready = ready_batches(iterator)
        device = recorder.device
        call = now()
        device.asked()
        cpu = thread_cpu()
        try:
            batch = original(iterator)
        except StopIteration:
            self.ends.append(now())
            self.end_calls.append(call)
            raise
        done = now()
        self._note(call, done, thread_cpu() - cpu, ready, phase, batch)
        device.got(int(self.numbers[-1]))
        return batch

    def _note(self, call: float, done: float, cpu: float, ready: int, phase: int, batch: Any) -> None:
        recorder = self._recorder
        self.add_next(call, done, cpu, ready)
        recorder.rows += 1
        self.samples.append(self._count(batch))
        self.training.append(float(self._grad()))
        self.phase.append(float(phase))
        self.meeting_s.append(recorder.meetings.total_s)
        self.numbers.append(float(recorder.rows))
        self.own_s.append(recorder.own_s)
        backwards = recorder.backwards.count
        self.trains = self.trains or (self._backwards is not None and backwards > self._backwards)
        self.backwards.append(backwards)
        self._backwards = backwards
        if recorder.rows <= 4 or recorder.rows % 64 == 0:
            self.sizes.append(size_of(batch))

    def _count(self, batch: Any) -> float:
        """Return the samples in a batch; at once where its first tensor has the size that was asked for."""
        kind = type(batch)
        first = (
            batch[0] if kind in (list, tuple) and batch else next(iter(batch.values()), None) if kind is dict else batch
        )
        shape = getattr(first, "shape", None)
        if shape and shape[0] == self.batch_size:
            return float(shape[0])
        return float(count_samples(batch, self.batch_size))

    def resident(self, batch: Any) -> None:
        """A resident batch was handed back."""
        call = now()
        self._note(call, call, 0.0, -1, CACHED, batch)

    def take_columns(self) -> dict[str, list[float]]:
        """Return the rows since the last call."""
        columns = (
            self.call_s,
            self.return_s,
            self.cpu_s,
            self.sampler_s,
            self.transport_s,
            self.ready,
            self.samples,
            self.training,
            self.phase,
            self.meeting_s,
            self.numbers,
            self.own_s,
            self.backwards,
        )
        taken: dict[str, list[float]] = {}
        lists: Any = columns
        for name, column in zip(_COLUMNS, lists, strict=True):
            taken[name] = [float(value) for value in column]
            column.clear()
        return taken
