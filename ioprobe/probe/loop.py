"""Drive a loader, alone or coupled with the step, and write down every batch."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil

from ioprobe import stats
from ioprobe.instrument.batches import count_samples, fingerprint, size_of
from ioprobe.instrument.clocks import device_read_bytes, now, thread_cpu
from ioprobe.instrument.facts import find_dataloaders, settings_of
from ioprobe.instrument.hooks import IteratorTrace, Recorder, install
from ioprobe.instrument.meeting import Meetings
from ioprobe.instrument.stacks import DEFAULT_HZ, StackSampler, named_rows
from ioprobe.instrument.stages import Frame, classify, is_user_frame
from ioprobe.probe.enough import is_narrow, is_too_little
from ioprobe.probe.failures import blame_signal, failure_of
from ioprobe.probe.load import LoadMeter
from ioprobe.probe.loader_source import shut_down
from ioprobe.probe.pace import DevicePace
from ioprobe.probe.rows import align, busy_s, start_times, worker_batches, worker_cores, worker_memory, worker_stacks
from ioprobe.probe.segments import remove_segments
from ioprobe.probe.stacks import stack_shares
from ioprobe.probe.together import Pacer
from ioprobe.run import Failure, LoaderRun, LoaderSettings, MainBatches, SampleRepeats, Stage

Progress = Callable[[str, float, float], None]

_LOOK_EVERY_S = 0.5
_MOST_BATCHES = 100_000
"""What more batches would tell is not worth their rows: a list in memory hands over half a million a second."""
_MOST_LOOKING = 0.01
"""Of the loop's time [fraction]: with a hundred thousand batches to go through a look takes longer."""


class LoopMeter:
    """One measurement of a loader; :meth:`run` does it, :meth:`result` may be asked at any time.

    Args:
        loader: A DataLoader or any iterable of batches.
        step: Called with each batch; None to drain the loader alone.
        settings: The loader's settings, None where it has none.
        seconds: Longest measurement, warm-up included [s].
        precision: Stop early once the 95% interval of the throughput is this narrow (half-width over value) and
            that of the stall share is within this many points [fraction].
        batch_samples: Samples per batch where they cannot be counted.
        stop: Set it to end the measurement after the batch in hand.
        pacer: Decides instead of time and precision when it is over, with several ranks whose steps communicate.
        meetings: Time in backward passes and collectives, with several ranks.
    """

    def __init__(
        self,
        loader: Any,
        step: Callable[[Any], Any] | None,
        *,
        settings: LoaderSettings | None,
        seconds: float,
        purpose: str = "baseline",
        precision: float = 0.02,
        least_s: float = 3.0,
        batch_samples: int | None = None,
        repeats: bool = False,
        stacks_hz: float = DEFAULT_HZ,
        stop: threading.Event | None = None,
        progress: Progress | None = None,
        pacer: Pacer | None = None,
        meetings: Meetings | None = None,
    ) -> None:
        self._pacer, self._meetings = pacer, meetings
        self.in_step = self.in_loader = False
        self.loader, self.step, self.settings = loader, step, settings
        self.seconds, self.precision, self.least_s = seconds, precision, least_s
        self.purpose = purpose
        self.batch_samples = batch_samples
        self.stop = stop or threading.Event()
        self.progress = progress
        self.rows = MainBatches()
        self.last_batch: Any = None
        self._recorder = Recorder(stacks_hz)
        self._sampler = StackSampler(stacks_hz, in_loader=lambda: self.in_loader) if stacks_hz > 0 else None
        self._fingerprints: list[int] = []
        self._most_fingerprints = 12 * max(1, settings.num_workers if settings else 1) if repeats else 0
        self._edges: list[float] = []
        self._epochs_ended = 0
        self._first_batch_s: float | None = None
        self._failure: Failure | None = None
        self._stopped_because = "seconds"
        self._begin = now()
        self._sizes: list[tuple[int, int]] = []
        self._memory: list[int] = []
        self._worker_cores: int | None = None
        self._aside: threading.Thread | None = None
        self._load = LoadMeter()
        self._device_before: int | None = None
        self._workers = worker_batches([], 0.0)
        self._next_look_s = _LOOK_EVERY_S
        self._pace = DevicePace()
        self._result: LoaderRun | None = None

    @property
    def depth(self) -> int:
        """Batches in flight at most; those that lie ready before the loop begins are no measure of the loader."""
        return self.settings.depth if self.settings else 2

    def run(self) -> LoaderRun:
        """Measure; a failure of the loader or the step ends it and is part of the result."""
        uninstall = install(self._recorder)
        stats.prepare()
        # What the factory made must not be collected (and unmapped) in the middle of a batch.
        gc.collect()
        self._load.start(os.getpid())
        self._device_before = device_read_bytes([os.getpid()])
        if self._sampler:
            self._sampler.skip |= {t.ident for t in threading.enumerate() if t.name.startswith("ioprobe") and t.ident}
            self._sampler.start()
        self._begin = now()
        try:
            self._drive()
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            phase = "step" if getattr(error, "_ioprobe_in_step", False) else ("loop" if self.step else "loader")
            self._failure = blame_signal(failure_of(error, phase), self._exit_codes())
            self._stopped_because = "failed"
        finally:
            if self._aside is not None:
                self._aside.join()
            if self._sampler:
                self._sampler.stop()
            result = self.result()
            uninstall()
            shut_down(self.loader)
            # A worker that finds no room leaves the segment's name behind; nobody else knows its process id.
            workers = (pid for trace in self._recorder.traces for pid in trace.pids)
            remove_segments(pid for pid in workers if not psutil.pid_exists(pid))
            self._recorder.forget()
        self._result = result
        return result

    def _drive(self) -> None:
        rows, iterator, pending, epoch, in_epoch = self.rows, None, 0.0, 0, 0
        batch: Any = None
        batch_size = self.settings.batch_size if self.settings else None
        while True:
            call, cpu = now(), thread_cpu()
            self.in_loader = True
            if iterator is None:
                iterator = iter(self.loader)
            try:
                batch = next(iterator)
            except StopIteration:
                iterator = None
                pending += now() - call
                if not in_epoch:
                    self._note_empty(epoch)
                    return
                epoch, in_epoch = epoch + 1, 0
                self._epochs_ended = epoch
                if self._is_over():
                    return
                continue
            finally:
                self.in_loader = False
            got = now()
            rows.call_s.append(call - pending - self._begin)
            rows.wait_s.append(got - call + pending)
            rows.wait_cpu_s.append(thread_cpu() - cpu)
            rows.epoch.append(epoch)
            rows.samples.append(self.batch_samples or count_samples(batch, batch_size))
            if epoch and not in_epoch:
                self._edges.append(got - call + pending)
            if self._first_batch_s is None:
                self._first_batch_s = got - self._begin
            self._look_at(batch)
            pending, in_epoch = 0.0, in_epoch + 1
            freed = now()
            self.last_batch = batch  # frees the batch before
            released = now()
            rows.release_s.append(released - freed)
            if self.step is not None:
                self._do_step(batch, rows)
            if self._is_over():
                return

    def _do_step(self, batch: Any, rows: MainBatches) -> None:
        assert self.step is not None
        start, met_s = now(), self._meetings.total_s if self._meetings else 0.0
        self._pace.before()
        self.in_step = True
        try:
            self.step(batch)
        except Exception as error:
            error._ioprobe_in_step = True  # type: ignore[attr-defined]
            raise
        finally:
            self.in_step = False
        idle = self._pace.after()
        rows.step_s.append(now() - start)
        if self._meetings is not None:
            rows.meeting_s.append(self._meetings.total_s - met_s)
        if idle is not None:
            rows.device_idle_s.append(idle)

    def _look_at(self, batch: Any) -> None:
        seen = len(self.rows.call_s)
        if seen <= 8 or seen % 64 == 0:
            self._sizes.append(size_of(batch))
        if seen <= self._most_fingerprints:
            self._fingerprints.append(fingerprint(batch))

    def _note_empty(self, epoch: int) -> None:
        if not epoch:
            self._failure = Failure(
                phase="loop" if self.step else "loader",
                kind="empty",
                message="the loader delivered no batch at all",
                hint="check the dataset's length, the filter, and drop_last with few samples",
            )
            self._stopped_because = "failed"
        else:
            self._stopped_because = "exhausted"

    def _is_over(self) -> bool:
        elapsed = now() - self._begin
        if self.stop.is_set():
            self._stopped_because = "interrupted"
            return True
        if self._pacer is not None and self._pacer.is_over(len(self.rows.call_s), elapsed):
            self._note_memory()
            return True
        if len(self.rows.call_s) >= _MOST_BATCHES and self._pacer is None:
            self._stopped_because = "interval"
            self._note_memory()
            return True
        if elapsed < self._next_look_s:
            return False
        over = self._look(elapsed)
        spent_s = now() - self._begin - elapsed
        self._next_look_s = max(elapsed + _LOOK_EVERY_S, min(elapsed + spent_s / _MOST_LOOKING, self.seconds))
        return over

    def _look(self, elapsed: float) -> bool:
        """Tell the progress, and whether enough was measured."""
        if self.progress:
            self.progress("loop" if self.step else "loader", elapsed, self.seconds)
        if elapsed >= self.seconds and self._pacer is None and not self._needs_more(elapsed):
            self._note_memory()
            return True
        if elapsed >= self.least_s and self._aside is None:
            self._aside = threading.Thread(target=self._look_aside, name="ioprobe-aside", daemon=True)
            self._aside.start()
        if elapsed < self.least_s or self._pacer is not None or self._edge_is_near(elapsed):
            return False
        narrow = is_narrow(self.rows, self._epochs_ended, self._ready(), self.depth, self.precision)
        if narrow:
            self._stopped_because = "interval"
        return narrow

    def _note_memory(self) -> None:
        if self._aside is not None:
            self._aside.join()
        if not self._memory:
            self._memory = worker_memory(self._pids())
            self._worker_cores = worker_cores(self._pids())

    def _look_aside(self) -> None:
        """Look at the workers' memory and the host's load beside the loop: it takes 30 ms, which belong to no batch."""
        if self._sampler:
            self._sampler.skip.add(threading.get_ident())
        self._memory = worker_memory(self._pids())
        self._worker_cores = worker_cores(self._pids())
        self._load.sample()

    def _needs_more(self, elapsed: float) -> bool:
        """Whether what was seen is too little for the budget: then it may take up to twice as long."""
        count = len(self.rows.call_s)
        return elapsed < 2 * self.seconds and is_too_little(count, self._epochs_ended, self._ready(), self.depth)

    def _edge_is_near(self, elapsed: float) -> bool:
        """Whether the first epoch will end within the budget: what its edge costs is then part of the answer."""
        count = len(self.rows.call_s)
        try:
            left = len(self.loader) - count
        except Exception:  # a stream has no length, and a user's own __len__ may raise what it likes
            return False
        pace_s = (elapsed - (self._first_batch_s or 0.0)) / max(1, count)
        return self._epochs_ended == 0 and 0 <= left * pace_s <= self.seconds - elapsed

    def _ready(self) -> list[int]:
        return [r for trace in self._recorder.traces for r in trace.ready if r >= 0]

    def _pids(self) -> list[int]:
        return [pid for trace in self._recorder.traces[-4:] for pid in trace.pids]

    def _exit_codes(self) -> list[int]:
        """Return the exit codes of workers that ended; negative ones are signals."""
        time.sleep(0.05)  # the kernel may still be busy with burying them
        codes = [p.exitcode for trace in self._recorder.traces for p in trace.processes]
        return [code for code in codes if code is not None]

    def _traces(self) -> list[IteratorTrace]:
        """Return the traces of the DataLoaders that the loader is or holds; of all there are where it holds none."""
        ids = {id(inner) for inner in find_dataloaders(self.loader)}
        return [t for t in self._recorder.traces if not ids or t.loader_id in ids]

    def _busiest(self) -> tuple[list[IteratorTrace], list[dict[str, float]], LoaderSettings | None]:
        """Return traces, new rows and settings of the DataLoader whose workers idle least.

        Of several that are zipped or chained the loop waits for that one, in the end; what the others make lies ready.
        """
        rows: dict[int, list[dict[str, float]]] = {}
        for trace in self._traces():
            rows.setdefault(trace.loader_id, []).extend(trace.worker_rows())
        crews = {trace.loader_id: max(1, trace.num_workers) for trace in self._traces()}
        settings = self.settings
        if not rows:
            return [], [], settings
        busiest = max(rows, key=lambda loader: busy_s(rows[loader]) / crews[loader])
        inner = find_dataloaders(self.loader)
        if inner and id(inner[0]) != busiest:
            settings = settings_of(next(loader for loader in inner if id(loader) == busiest))
        return [t for t in self._traces() if t.loader_id == busiest], rows[busiest], settings

    def worker_places(self) -> list[str]:
        """Return where the workers' main threads were seen most, the user's own code if there is any."""
        places: Counter[str] = Counter()
        for main, count, raw in worker_stacks(self._traces()):
            frames = [Frame(*frame) for frame in raw]
            if main and frames and classify(frames, "worker").stage is not Stage.WAIT:
                frame = next((f for f in frames if is_user_frame(f)), frames[0])
                call = f" ({frame.call})" if frame.call else ""
                places[f"{frame.file}:{frame.line} in {frame.function}{call}"] += count
        return [place for place, _ in places.most_common(4)]

    def result(self) -> LoaderRun:
        """Return what was measured so far."""
        if self._result is not None:
            return self._result
        traces, raw, settings = self._busiest()
        workers = worker_batches(raw, self._begin)
        align(self.rows, traces)
        load = self._load.stop() if self._begin else None
        starts, inits = start_times(traces)
        sizes = sorted(self._sizes) or [(0, 0)]
        before, after = self._device_before, device_read_bytes([os.getpid(), *self._pids()])
        repeats = self._repeats(len(set(workers.worker)))
        return LoaderRun(
            coupled=self.step is not None,
            purpose=self.purpose,
            settings=settings,
            main=self.rows,
            workers=workers if workers.worker else None,
            warmup_batches=min(len(self.rows.call_s), max(self.depth, len(self._fingerprints))),
            stopped_because=self._stopped_because,
            wall_s=now() - self._begin,
            time_to_first_batch_s=self._first_batch_s,
            epoch_edges_s=self._edges,
            worker_start_s=starts,
            worker_init_s=inits,
            worker_pss_bytes=self._memory,
            worker_cores=self._worker_cores,
            batch_bytes=sizes[len(sizes) // 2][0] or None,
            batch_tensors=sizes[len(sizes) // 2][1],
            stacks=stack_shares(worker_stacks(traces), named_rows(self._sampler.encode()) if self._sampler else []),
            load=load,
            repeats=repeats,
            device_read_bytes=None if before is None or after is None else max(0, after - before),
            failure=self._failure,
        )

    def _repeats(self, delivering: int) -> SampleRepeats | None:
        seen = self._fingerprints
        crew = self.settings.num_workers if self.settings else 0
        if not seen or crew < 1:
            return None
        rounds = [seen[k : k + crew] for k in range(0, len(seen) - crew + 1, crew)]
        return SampleRepeats(
            batches=len(seen),
            distinct=len(set(seen)),
            workers_delivering=delivering,
            rounds=len(rounds),
            equal_rounds=sum(len(set(prints)) == 1 for prints in rounds),
        )
