"""Records what the DataLoaders of one process of the job do, and writes it down about once a second."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import sys
import time
import tokenize
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ioprobe.instrument.clocks import now
from ioprobe.instrument.hooks import IteratorTrace, Recorder
from ioprobe.instrument.ring import FIELDS
from ioprobe.instrument.stacks import DEFAULT_HZ, StackSampler
from ioprobe.live.hooks.about import about_process, describe, rank_of_process
from ioprobe.live.hooks.device import DeviceIdle
from ioprobe.live.hooks.journal import SUFFIX, Journal
from ioprobe.live.hooks.meeting import Backwards, Meetings
from ioprobe.live.hooks.phases import CACHED, DONE, DRAIN, DRAIN_S, MOST_STEPS, OBSERVE, TRACE, from_options
from ioprobe.live.hooks.tidy import tidy
from ioprobe.live.hooks.trace import LiveTrace

# linecache imports it late; an import in the sampler's thread could hold a lock while the job forks.
_ = tokenize

_FIRST_FLUSH_S, _FLUSH_S = 0.05, 1.0
"""Between the first writings, and the later ones: a job that dies at once has left something."""
_STACKS_AFTER_S = 5.0
_BESIDE_WORKERS_HZ = 4.0
"""Stack samples of a main process whose workers fetch: its waits are timed, and samples only name what else it does."""


class LiveRecorder(Recorder):
    """All that is observed in this process.

    Args:
        options: ``folder``, ``steps``, ``phases``, ``trace_steps``, ``then`` and ``stacks_hz`` as ``ioprobe run`` set
            them.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(float(options.get("stacks_hz", DEFAULT_HZ)))
        self._options = options
        self.active = True
        self.meetings, self.backwards = Meetings(), Backwards()
        self._begin()

    def _begin(self) -> None:
        self.traces: list[IteratorTrace] = []
        self.phases = from_options(self._options)
        self.device = DeviceIdle()
        self.resident: Any = None
        self.rows = 0
        self.own_s = 0.0
        """Spent writing, so that it can be taken off the steps in which it fell [s]."""
        self.flushed_s = now()
        self.pause_s = _FIRST_FLUSH_S
        """Time between two writings [s]."""
        self._journal: Journal | None = None
        self._sampler: StackSampler | None = None
        self._made = 0
        self._described: dict[int, weakref.ref[Any]] = {}
        self._stacks_at = now() + _STACKS_AFTER_S
        self._stacks_pause_s = _STACKS_AFTER_S
        self._profiler: Any = None

    def after_fork(self) -> None:
        """In a forked child: what was recorded belongs to the parent."""
        self._begin()

    def framework(self) -> None:
        """The process uses a framework: from now on see where its threads stand, unless it is somebody's worker."""
        if not any("multiprocessing" in word for word in getattr(sys, "orig_argv", [])):
            self._start_sampler(self.stacks_hz)

    def _start_sampler(self, hz: float) -> None:
        if self._sampler is None and hz > 0 and self.active:
            self._sampler = StackSampler(hz)
            self._sampler.start()

    def _stop_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def open(self, loader: Any) -> IteratorTrace:
        """Begin the trace of a new iterator."""
        self._made += 1
        trace = LiveTrace(loader, self, self._made)
        if not self.active:
            return trace
        if self.phases.now in (OBSERVE, DONE) and len(self.traces) > 2:
            self._retire()
        self.traces.append(trace)
        if self._made == 1:  # imports come before the loop and are no part of it: begin anew
            self._stop_sampler()
            self._sampler = None
        rarely = trace.num_workers and trace.in_main_thread
        self._start_sampler(min(self.stacks_hz, _BESIDE_WORKERS_HZ) if rarely else self.stacks_hz)
        known = self._described.get(trace.loader_id)
        if known is None or known() is not loader:
            with contextlib.suppress(TypeError):
                self._described[trace.loader_id] = weakref.ref(loader)
            self._write({"kind": "loader", "loader": trace.loader_id, **describe(loader)})
        self._write({"kind": "iterator", "trace": trace.number, "loader": trace.loader_id, "begin_s": trace.begin_s})
        return trace

    def special(self, trace: LiveTrace, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the next batch of the loader that a phase other than observing applies to."""
        phases = self.phases
        if phases.now == CACHED:
            trace.resident(self.resident)
            if phases.spend() <= 0:
                phases.advance()
            return self.resident
        if phases.now == TRACE:
            self._trace_step(phases.left)
            if phases.spend() >= 0:
                return trace.observe(iterator, original, TRACE)
            phases.advance()
            return trace.next(iterator, original)
        self.resident = None
        if phases.now == DRAIN:
            return self._drain(trace, iterator, original)
        self._finish_observing()
        if phases.stops:
            with contextlib.suppress(OSError):
                Path(self._options["folder"], "done").touch(mode=0o600)
            raise SystemExit(0)
        return original(iterator)

    def _drain(self, trace: LiveTrace, iterator: Any, original: Callable[[Any], Any]) -> Any:
        until = now() + DRAIN_S
        while True:
            batch = trace.observe(iterator, original, DRAIN)
            if self.phases.spend() <= 0 or now() > until:
                self.phases.advance()
                return batch

    def _trace_step(self, left: int) -> None:
        """Start, step or end torch.profiler; ``left`` counts the steps that are still to trace."""
        if self._profiler is None:
            import torch

            # One step more than asked for: the profiler's own start-up falls into the first.
            steps = torch.profiler.schedule(wait=0, warmup=1, active=left - 1, repeat=1)
            self._profiler = torch.profiler.profile(schedule=steps, on_trace_ready=self._export)
            self._profiler.start()
        elif left > 0:
            self._profiler.step()
        else:
            self._profiler.step()
            profiler, self._profiler = self._profiler, None
            profiler.stop()

    def _export(self, profiler: Any) -> None:
        name = f"{os.getpid()}.trace.json"
        profiler.export_chrome_trace(os.path.join(self._options["folder"], name))  # noqa: PTH118
        self._write({"kind": "trace-file", "name": name})

    def _finish_observing(self) -> None:
        self.flush(final=True)
        self.active = False
        self._stop_sampler()
        self._sampler = None

    def finish(self) -> None:
        """The process ends: write what is left; tidy up where nobody else can."""
        if self._journal is None and self._sampler is None:
            return
        if self.active:
            self._stop_sampler()
            self.flush(final=True)
        if self._journal is not None:
            self._journal.write({"kind": "end", "time_s": now()})
            self._journal.close()
        tidy(Path(self._options["folder"]))

    def _write(self, head: dict[str, Any], columns: dict[str, list[float]] | None = None) -> None:
        if self._journal is None:
            name = f"{os.getpid()}-{time.monotonic_ns()}{SUFFIX}"
            self._journal = Journal(os.path.join(self._options["folder"], name))  # noqa: PTH118
            self._journal.write(about_process())
            # Children of multiprocessing end without atexit.
            multiprocessing.util.Finalize(None, self.finish, exitpriority=-100)
        self._journal.write(head, columns)

    def flush(self, *, final: bool = False) -> None:
        """Write the rows since the last time."""
        self.flushed_s = now()
        self.pause_s = min(_FLUSH_S, 2 * self.pause_s)
        for trace in self.traces:
            assert isinstance(trace, LiveTrace)
            self._write_rows(trace)
        self._retire()
        if self.device.idle:
            idle, self.device.idle = self.device.idle, {}
            self._write(
                {"kind": "device"}, {"number": [float(n) for n in idle], "idle_s": [float(v) for v in idle.values()]}
            )
        if final or now() >= self._stacks_at:
            self._write_stacks()
        if final:
            self._write({"kind": "rank", **rank_of_process()})
        if self.rows >= MOST_STEPS and not final:
            self._write({"kind": "full", "rows": self.rows})
            self._finish_observing()

    def _write_rows(self, trace: LiveTrace) -> None:
        marks: dict[str, Any] = {}
        for name in ("ends", "end_calls", "resets", "sizes"):
            values = getattr(trace, name)
            if values:
                marks[name] = list(values)
                values.clear()
        if trace.call_s or marks:
            head = {"kind": "batches", "trace": trace.number, "init_s": trace.init_s, "pids": trace.pids}
            head["main_thread"] = trace.in_main_thread
            self._write({**head, **marks}, trace.take_columns())
        for worker in range(trace.ring.workers):
            rows = trace.ring.drain(worker)
            if rows:
                columns = dict(zip(FIELDS, (list(c) for c in zip(*rows, strict=True)), strict=True))
                head = {"kind": "worker", "trace": trace.number, "worker": worker, "times": trace.ring.times(worker)}
                self._write(head, columns)

    def _retire(self) -> None:
        """Give back what iterators held that the job has let go."""
        for trace in [t for t in self.traces if isinstance(t, LiveTrace) and t.is_gone]:
            assert isinstance(trace, LiveTrace)
            self._write_rows(trace)
            self._write_worker_stacks(trace)
            trace.ring.close()
            self.traces.remove(trace)

    def _write_worker_stacks(self, trace: LiveTrace) -> None:
        for worker in range(trace.ring.workers):
            data = trace.ring.stacks(worker)
            if data:
                text = data.decode(errors="replace")
                self._write({"kind": "worker-stacks", "trace": trace.number, "worker": worker, "rows": text})

    def _write_stacks(self) -> None:
        begin = now()
        for trace in self.traces:
            assert isinstance(trace, LiveTrace)
            self._write_worker_stacks(trace)
        if self._sampler is not None:
            self._write({"kind": "stacks", "rows": self._sampler.encode().decode()})
        # Each time all stacks so far are named and written: ever less often.
        self._stacks_pause_s = max(2 * self._stacks_pause_s, 200 * (now() - begin))
        self._stacks_at = now() + self._stacks_pause_s


def start(options: dict[str, Any]) -> LiveRecorder:
    """Return the recorder of this process, told of forks and of the end."""
    recorder = LiveRecorder(options)
    os.register_at_fork(after_in_child=recorder.after_fork)
    # Registered before the job's own, so it runs after them: workers that they end have written their rows by then.
    atexit.register(recorder.finish)
    return recorder
