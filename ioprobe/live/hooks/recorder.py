"""Records what the DataLoaders of one process of the job do, and writes it down about once a second."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import multiprocessing.util
import os
import socket
import sys
import threading
import time
import tokenize
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ioprobe.instrument.batches import count_samples, size_of
from ioprobe.instrument.clocks import now, thread_cpu
from ioprobe.instrument.hooks import IteratorTrace, Recorder, ready_batches
from ioprobe.instrument.ring import FIELDS
from ioprobe.instrument.stacks import DEFAULT_HZ, StackSampler
from ioprobe.live.hooks.device import DeviceIdle
from ioprobe.live.hooks.journal import SUFFIX, Journal
from ioprobe.live.hooks.meeting import Backwards, Meetings
from ioprobe.live.hooks.naming import iterated_name
from ioprobe.live.hooks.phases import CACHED, DONE, DRAIN, DRAIN_S, MOST_STEPS, OBSERVE, TRACE, from_options

# linecache imports it late; an import in the sampler's thread could hold a lock while the job forks.
_ = tokenize

_FIRST_FLUSH_S, _FLUSH_S = 0.05, 1.0
"""Between the first writings, and the later ones: a job that dies at once has left something."""
_STACKS_AFTER_S = 5.0
_BESIDE_WORKERS_HZ = 4.0
"""Stack samples of a main process whose workers fetch: its waits are timed, and samples only name what else it does."""
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
            self._sampler.stop(wait=False)  # the job does not wait for a thread of ours

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


def describe(loader: Any) -> dict[str, Any]:
    """Return what is known of a loader, as JSON; little where the job's environment lacks ioprobe's own packages."""
    found: dict[str, Any] = {"name": iterated_name(), "facts": None}
    # len() of a loader over an iterable dataset leaves a mark on it, on which later warnings depend.
    mark = getattr(loader, "_IterableDataset_len_called", None)
    try:
        import msgspec

        from ioprobe.instrument.facts import loader_facts

        found["facts"] = msgspec.to_builtins(loader_facts(loader, pickle_dataset=False))
    except Exception:  # no msgspec there, or a loader of an unusual make
        found["num_workers"] = int(getattr(loader, "num_workers", 0))
        found["prefetch_factor"] = getattr(loader, "prefetch_factor", None)
        found["batch_size"] = getattr(loader, "batch_size", None)
    finally:
        with contextlib.suppress(Exception):
            loader._IterableDataset_len_called = mark
    return found


def about_process() -> dict[str, Any]:
    """Return the facts of this process."""
    torch = sys.modules.get("torch")
    return {
        "kind": "process",
        "pid": os.getpid(),
        "parent": os.getppid(),
        "argv": list(getattr(sys, "orig_argv", sys.argv)),
        "python": sys.version.split()[0],
        "torch": getattr(torch, "__version__", None),
        "host": socket.gethostname(),
        "begin_s": now(),
        **rank_of_process(),
    }


def rank_of_process() -> dict[str, Any]:
    """Return rank and world size, from torch.distributed where it is initialised, else from the environment."""
    found: dict[str, Any] = {}
    for key, names in (("rank", ("RANK", "SLURM_PROCID")), ("world_size", ("WORLD_SIZE", "SLURM_NTASKS"))):
        for name in names:
            if os.environ.get(name, "").isdecimal():
                found[key] = int(os.environ[name])
                break
    distributed = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            found |= {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with contextlib.suppress(Exception):
        found["device"] = "cuda" if cuda is not None and cuda.is_initialized() else "cpu"
    return found


def tidy(folder: Path) -> None:
    """Remove the folder if ``ioprobe run`` is gone (its lock is free) and no other process of the job writes there."""
    try:
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if any(_is_alive(int(p.name.partition("-")[0])) for p in folder.glob(f"*-*{SUFFIX}")):
            return
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
    except (OSError, ValueError):
        pass  # ioprobe lives, and tidies up itself
    finally:
        os.close(lock)


def _is_alive(pid: int) -> bool:
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()
