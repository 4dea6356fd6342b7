"""The process in which the user's code runs: ``python -m ioprobe.probe.child FD_IN FD_OUT SOCKETS``.

Apart from the command line, so that a crash, a hang or a flood of output of the
user's code harms neither the report nor the terminal. Commands come in on one
pipe, events leave on another; a thread answers ``where`` and ``stop`` while the
main thread measures.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ioprobe.errors import IoprobeError, TargetError, UsageError
from ioprobe.instrument.stacks import DEFAULT_HZ
from ioprobe.probe import protocol

_PARTIAL_AFTER_S = 0.7


class Child:
    """Holds the loader and the step between commands."""

    def __init__(self, commands: BinaryIO, events: BinaryIO) -> None:
        self._commands, self._events = commands, events
        self._write_lock = threading.Lock()
        self._queue: queue.Queue[protocol.Command] = queue.Queue()
        self._stop = threading.Event()
        self._meter: Any = None
        self._answered = False
        self._source: Any = None
        self._facts: Any = None
        self._step: Callable[[Any], Any] | None = None
        self._step_source = ""
        self._batch: Any = None
        self._batch_samples: int | None = None
        self._stacks_hz = DEFAULT_HZ
        self._team: protocol.Team | None = None
        self._store: Any = None
        self._meetings: Any = None
        self._paced = 0

    def send(self, kind: str, **fields: Any) -> None:
        """Send one event."""
        data = fields.pop("data", None)
        raw = msgspec.Raw(msgspec.json.encode(data))
        line = msgspec.json.encode(protocol.Event(kind=kind, data=raw, **fields))
        try:
            with self._write_lock:
                self._events.write(line + b"\n")
                self._events.flush()
        except (BrokenPipeError, ValueError):
            os._exit(1)  # the supervisor is gone

    def serve(self) -> None:
        """Do what is asked until told to quit or the supervisor goes away."""
        threading.Thread(target=self._listen, name="ioprobe-control", daemon=True).start()
        self.send("ready")
        while True:
            command = self._queue.get()
            self._stop.clear()
            self._answered = False
            try:
                if isinstance(command, protocol.Load):
                    self._do_load(command)
                elif isinstance(command, protocol.Measure):
                    self._do_measure(command)
                elif isinstance(command, protocol.Step):
                    self._do_step(command)
                else:
                    return
            except IoprobeError as error:
                self.send("error", text=error.message, hint=error.hint)
            except BaseException as error:
                traceback.print_exc()
                self.send("error", text=f"{type(error).__name__}: {error}".rstrip(": "))

    def _listen(self) -> None:
        decode = msgspec.json.Decoder(protocol.Command).decode
        for line in self._commands:
            command = decode(line)
            if isinstance(command, protocol.Where):
                meter = self._meter
                self.send(
                    "where",
                    text=main_thread_line(),
                    workers=meter.worker_places() if meter is not None else [],
                    batches=len(meter.rows.call_s) if meter is not None else 0,
                    in_step=meter is not None and meter.in_step,
                )
            elif isinstance(command, protocol.Stop):
                self._stop.set()
                threading.Thread(target=self._partial, name="ioprobe-partial", daemon=True).start()
            else:
                self._queue.put(command)
        os._exit(0)  # the supervisor closed the pipe or died

    def _partial(self) -> None:
        """Hand over what there is if the main thread does not get to it (it waits for a batch)."""
        time.sleep(_PARTIAL_AFTER_S)
        if self._answered:
            return
        self._answered = True
        meter = self._meter
        if meter is None:
            self.send("nothing")
            return
        meter._stopped_because = "interrupted"
        self.send("measured", data=meter.result())

    def _progress(self, text: str, done_s: float, of_s: float) -> None:
        self.send("progress", text=text, done_s=done_s, of_s=of_s)

    def _do_load(self, command: protocol.Load) -> None:
        from ioprobe.probe.loader_source import LoaderSource

        self._batch_samples = command.batch_samples
        self._stacks_hz = command.stacks_hz
        if command.team is not None:
            from ioprobe.probe.together import time_meetings

            self._team, self._meetings = command.team, time_meetings()
        self._source = LoaderSource(command.target, command.loader_options)
        self._facts = self._source.facts
        step_s = command.step_s
        if command.step_s_per_sample is not None:
            step_s = command.step_s_per_sample * self._samples_per_batch()
        if step_s is not None:
            from ioprobe.probe.step import EmulatedStep

            self._step = EmulatedStep(step_s)
        elif command.step is not None:
            from ioprobe.probe.step_target import load_step

            self._step = load_step(command.step)
        self._step_source = command.step_source or command.step or ""
        self.send("loaded", data=self._facts)

    def _samples_per_batch(self) -> int:
        size = self._batch_samples or (self._facts.settings.batch_size if self._facts.settings else None)
        if size is None:
            raise UsageError("the loader does not tell its batch size", hint="pass --batch-samples")
        return int(size)

    def _together(self) -> bool:
        """Whether the step communicates with other ranks, so that all must run it as often."""
        if self._team is None or self._step is None:
            return False
        from ioprobe.probe.together import communicates, connect

        if communicates() and self._store is None:
            self._store = connect(self._team)
        return self._store is not None

    def _pacer(self, seconds: float) -> Any:
        if not self._together():
            return None
        from ioprobe.probe.together import Pacer

        assert self._team is not None
        self._paced += 1
        return Pacer(self._store, self._team.rank, f"loop-{self._paced}", seconds)

    def _do_measure(self, command: protocol.Measure) -> None:
        from ioprobe.probe.loader_source import Spoiled
        from ioprobe.probe.loop import LoopMeter

        try:
            loader, settings = self._source.at(command.changes)
        except Spoiled:
            if self._team is None:
                self.send("spoiled")
                return
            loader, settings = self._source.at(command.changes)  # other ranks count on this process
        self._meter = LoopMeter(
            loader,
            self._step if command.coupled else None,
            settings=settings,
            seconds=command.seconds,
            purpose=command.purpose,
            precision=command.precision,
            least_s=command.least_s,
            batch_samples=self._batch_samples,
            repeats=command.repeats,
            stacks_hz=self._stacks_hz,
            stop=self._stop,
            progress=self._progress,
            pacer=self._pacer(command.seconds) if command.coupled else None,
            meetings=self._meetings if command.coupled and self._together() else None,
        )
        result = self._meter.run()
        if self._meter.last_batch is not None:
            self._batch = self._meter.last_batch
        self._meter = None
        if not self._answered:
            self._answered = True
            self.send("measured", data=result)

    def _do_step(self, command: protocol.Step) -> None:
        from ioprobe.instrument.batches import count_samples
        from ioprobe.probe.step import measure_step

        if self._step is None:
            raise UsageError("no step was given")
        if self._batch is None:
            self._batch = self._first_batch()
        size = self._facts.settings.batch_size if self._facts.settings else None
        samples = self._batch_samples or count_samples(self._batch, size)
        common: dict[str, Any] = {
            "seconds": command.seconds,
            "samples": samples,
            "tokens": samples * command.tokens_per_sample if command.tokens_per_sample else None,
            "source": self._step_source,
            "progress": self._progress,
        }
        if self._together():
            from ioprobe.probe.step import rotation
            from ioprobe.probe.together import measure_step_together

            assert self._team is not None
            result = measure_step_together(
                self._step, rotation([self._batch]), store=self._store, rank=self._team.rank, **common
            )
        else:
            result = measure_step(self._step, self._batch, **common)
        if not self._answered:
            self._answered = True
            self.send("step", data=result)

    def _first_batch(self) -> Any:
        from ioprobe.probe.loader_source import shut_down

        loader, _ = self._source.at({})
        try:
            return next(iter(loader))
        except StopIteration:
            raise TargetError("the loader delivered no batch at all", hint="check the dataset and its filter") from None
        finally:
            shut_down(loader)


def main_thread_line() -> str:
    """Return ``file:line in function`` where the main thread stands, the user's own code if there is any."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    own = str(Path(__file__).parents[1])
    innermost = ""
    while frame is not None:
        file = frame.f_code.co_filename
        place = f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
        innermost = innermost or place
        if not file.startswith((own, "<")) and "site-packages" not in file and "lib/python" not in file:
            return place
        frame = frame.f_back
    return innermost


def _die_with_parent() -> None:
    """Ask the kernel to end this process when the supervisor ends, however it ends."""
    try:
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux: the closed pipe ends us as well, only later
        pass


def _share_sockets(folder: str) -> None:
    """Let this process and its forked workers put multiprocessing's sockets into one folder.

    Each would make a folder of its own, and leave it behind where it is killed; this one the supervisor removes.
    """
    from multiprocessing import util

    util.get_temp_dir = lambda: folder


def serve(fd_in: int, fd_out: int, sockets: str) -> None:
    """Serve until told to quit."""
    _die_with_parent()
    _share_sockets(sockets)
    Child(os.fdopen(fd_in, "rb"), os.fdopen(fd_out, "wb")).serve()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
