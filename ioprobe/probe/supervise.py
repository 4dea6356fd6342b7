"""Start, watch and end the measuring child."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ioprobe.errors import MeasureError, TargetError
from ioprobe.probe import protocol
from ioprobe.probe.ending import end_family, family
from ioprobe.probe.locked_folder import LockedFolder, make_folder, sweep
from ioprobe.probe.losses import ChildGone, ChildHangs, at, death, hang, last_line
from ioprobe.probe.undisturbed import undisturbed
from ioprobe.run import Failure, LoaderFacts, LoaderRun, MainBatches, StepRun
from ioprobe.secrets import hide, hide_in_file

T = TypeVar("T")
Progress = Callable[[str, float, float], None]

_START_S = 60.0
_SOCKETS = "ioprobe-"
_LONGEST_PLACE = 68
"""Characters of a folder in which ours leaves room for a socket's name: the kernel takes 103 in all on every Unix."""


class _Spoiled(Exception):
    """The child's dataset was read in its main process, and its factory makes no other."""


class Supervisor:
    """One measuring child at a time; starts another where the last one died.

    Args:
        log: File that takes what the user's code prints; None to drop it.
        progress: Called with what is measured now, the seconds spent and the seconds it may take.
        hang_s: How long a factory, or the wait for a batch, may take before it counts as a hang [s].
        env: Further environment for the child.
        watch: Called about twice a second while an answer is awaited; what it raises ends the waiting.
    """

    def __init__(
        self,
        *,
        log: Path | None = None,
        progress: Progress | None = None,
        hang_s: float = 60.0,
        env: dict[str, str] | None = None,
        watch: Callable[[], None] | None = None,
    ) -> None:
        self.watch = watch
        self._log, self._progress, self._hang_s, self._env = log, progress, hang_s, env or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._commands: Any = None
        self._events_fd = -1
        self._buffer = b""
        self._load: protocol.Load | None = None
        self._phase = ""
        self._sockets: LockedFolder | None = None

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start a fresh child."""
        self.end()
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        sink: Any = subprocess.DEVNULL
        try:
            if self._log is not None:
                # The child keeps it, we close ours below. It is the user's own: what code prints may be secret.
                sink = open(self._log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
            with undisturbed():  # a child that nobody remembers would not be ended
                self._sockets = _socket_folder()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "ioprobe.probe.child", str(in_read), str(out_write), self._sockets.path],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    pass_fds=(in_read, out_write),
                    # A session of its own: Ctrl-C reaches us alone, and the whole group can be ended at once.
                    start_new_session=True,
                    env={**os.environ, **self._env},
                )
        finally:
            os.close(in_read)
            os.close(out_write)
            if sink is not subprocess.DEVNULL:
                sink.close()
        self._commands = os.fdopen(in_write, "wb")
        self._events_fd, self._buffer = out_read, b""
        self._phase = "factory"
        self._expect("ready", _START_S)

    def load(self, command: protocol.Load) -> LoaderFacts:
        """Make the loader and the step in the child.

        Raises:
            TargetError: the factory raised, returned no loader, or hangs (its line is named).
        """
        self._load = command
        if self._process is None:
            self.start()
        self._phase = "factory"
        self._send(command)
        try:
            facts: LoaderFacts = self._expect("loaded", self._hang_s, LoaderFacts)
            return facts
        except ChildHangs as error:
            raise TargetError(
                f"the factory '{command.target}' did not return within {self._hang_s:.0f} s{at(error.failure.where)}",
                hint="raise --timeout if it may take that long",
            ) from None
        except ChildGone as error:
            raise TargetError(error.message, hint=error.hint) from None

    def measure(self, command: protocol.Measure) -> LoaderRun:
        """Run one measurement of the loader.

        A child that dies or hangs is evidence, too: the run then holds a failure and no batches.
        """
        phase = "loop" if command.coupled else "loader"
        self._ask(command, phase)
        try:
            try:
                found: LoaderRun = self._expect("measured", self._hang_s, LoaderRun)
            except _Spoiled:
                self.end()
                self._ask(command, phase)
                found = self._expect("measured", self._hang_s, LoaderRun)
            found.failure = self._cleaned(found.failure)
            return found
        except ChildGone as gone:
            return LoaderRun(
                coupled=command.coupled,
                purpose=command.purpose,
                settings=None,
                main=MainBatches(),
                stopped_because="failed",
                failure=gone.failure,
            )

    def step(self, command: protocol.Step) -> StepRun:
        """Run the step on a resident batch."""
        self._revive()
        self._phase = "step"
        self._send(command)
        try:
            found: StepRun = self._expect("step", self._hang_s + command.seconds, StepRun)
            found.failure = self._cleaned(found.failure)
            return found
        except ChildGone as gone:
            return StepRun(durations_s=[], failure=gone.failure)

    def stop(self) -> LoaderRun | StepRun | None:
        """End the measurement in hand within about a second and return what there is."""
        if self._process is None or self._phase not in ("loop", "loader"):
            return None
        self._send(protocol.Stop())
        try:
            for event in self._events(1.3):
                if event.kind == "measured":
                    return msgspec.json.decode(event.data, type=LoaderRun)
                if event.kind in ("nothing", "error"):
                    return None
        except ChildGone:
            return None
        return None

    @property
    def pid(self) -> int | None:
        """Process id of the child."""
        return self._process.pid if self._process else None

    def end(self) -> None:
        """End the child and everything that it started, and remove its shared memory."""
        with undisturbed():
            process, self._process = self._process, None
            if process is not None:
                self._end(process)
            sockets, self._sockets = self._sockets, None
            if sockets is not None:
                sockets.remove()

    def retire(self) -> None:
        """End for good, and let go of whoever is called back: it holds this object, and its measurements."""
        self.end()
        self.watch = self._progress = None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        pids = family(process.pid)
        with contextlib.suppress(OSError):
            self._commands.close()
        with contextlib.suppress(OSError):
            os.close(self._events_fd)
        end_family(process, pids)
        if self._log is not None:
            hide_in_file(self._log, *self._named())
            with contextlib.suppress(OSError):
                if not self._log.stat().st_size:
                    self._log.unlink()

    def _named(self) -> tuple[dict[str, Any], ...]:
        """What holds credentials that the user's code may print: its variables, and the options of its factory."""
        return {**os.environ, **self._env}, self._load.loader_options if self._load else {}

    def _hidden(self, text: str) -> str:
        return hide(text, *self._named())

    def _cleaned(self, failure: Failure | None) -> Failure | None:
        return failure and msgspec.structs.replace(failure, message=self._hidden(failure.message))

    def _revive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            if self._load is None:
                raise MeasureError("nothing was loaded yet")
            self.start()
            self.load(self._load)

    def _ask(self, command: protocol.Command, phase: str) -> None:
        self._revive()
        self._phase = phase
        self._send(command)

    def _send(self, command: protocol.Command) -> None:
        try:
            self._commands.write(msgspec.json.encode(command) + b"\n")
            self._commands.flush()
        except (BrokenPipeError, OSError):
            pass  # the child's end shows when its answer is awaited

    def _expect(self, kind: str, silence_s: float, type_: type[T] | None = None) -> Any:
        """Return the answer of a kind; ``silence_s`` is the longest time without any event."""
        for event in self._events(silence_s):
            if event.kind == "progress":
                if self._progress:
                    self._progress(event.text, event.done_s, event.of_s)
            elif event.kind == "error":
                error = TargetError if self._phase == "factory" else MeasureError
                raise error(self._hidden(event.text), hint=event.hint)
            elif event.kind == "spoiled":
                raise _Spoiled
            elif event.kind == kind:
                return None if type_ is None else msgspec.json.decode(event.data, type=type_)
        raise self._gone()

    def _events(self, silence_s: float) -> Iterator[protocol.Event]:
        decode = msgspec.json.Decoder(protocol.Event).decode
        deadline = time.monotonic() + silence_s
        while True:
            while b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                deadline = time.monotonic() + silence_s
                yield decode(line)
            if self.watch is not None:
                self.watch()
            ready, _, _ = select.select([self._events_fd], [], [], max(0.0, min(0.5, deadline - time.monotonic())))
            if ready:
                data = os.read(self._events_fd, 1 << 20)
                if not data:
                    raise self._gone()
                self._buffer += data
            elif time.monotonic() >= deadline:
                raise self._hangs(silence_s)

    def _gone(self) -> ChildGone:
        process = self._process
        code = None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(2.0)
        line = last_line(self._log)
        self.end()
        failure = death(self._phase, code, line)
        return ChildGone(msgspec.structs.replace(failure, message=self._hidden(failure.message)))

    def _hangs(self, silence_s: float) -> ChildHangs:
        found = self._where()
        self.end()
        return ChildHangs(hang(self._phase, silence_s, found))

    def _where(self) -> protocol.Event | None:
        """Ask where the child's threads stand; None where not even its control thread answers."""
        self._send(protocol.Where())
        decode = msgspec.json.Decoder(protocol.Event).decode
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            ready, _, _ = select.select([self._events_fd], [], [], 0.2)
            if ready:
                self._buffer += os.read(self._events_fd, 1 << 20)
            while b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                event = decode(line)
                if event.kind == "where":
                    return event
        return None


def _socket_folder() -> LockedFolder:
    place = Path(tempfile.gettempdir())
    if len(os.fsencode(place)) > _LONGEST_PLACE:
        place = Path("/tmp")
    sweep(place, _SOCKETS)
    return make_folder(place, _SOCKETS)
