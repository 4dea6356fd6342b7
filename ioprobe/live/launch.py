"""Start the user's own command with the hooks in its environment, wait for it, and collect what they saw.

The job keeps its terminal, its streams and its exit code; signals that this process gets are passed on. Everything goes
through a private folder. If this process dies, the job goes on and its last process removes the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from ioprobe.errors import TargetError, UsageError
from ioprobe.instrument.stacks import DEFAULT_HZ
from ioprobe.live.gather import gather
from ioprobe.live.hooks.journal import SUFFIX
from ioprobe.live.journals import read_folder
from ioprobe.live.metrics import MetricsFile
from ioprobe.probe.host import measure_host
from ioprobe.probe.load import LoadMeter
from ioprobe.probe.locked_folder import make_folder, sweep
from ioprobe.probe.rows import worker_cores, worker_memory
from ioprobe.run import Caveat, Failure, HostLoad, Run, Workload

PHASES = ("observe", "cached", "drain")
_PREFIX = "ioprobe-run-"
_SITE = Path(__file__).parent / "hooks" / "site"
_PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGWINCH")
    if hasattr(signal, name)
)
_FROM_KERNEL = 0x80
"""``si_code`` of a signal that the terminal sent; the job got it as well."""
_GRACE_S = 30.0
_FIRST_LOOK_S = 2.0


@dataclass(frozen=True)
class Launch:
    """A job to start."""

    command: tuple[str, ...]
    """Program and arguments."""
    phases: tuple[str, ...] = ("observe",)
    steps: int | None = None
    """Batches of the training loader to observe; None for all."""
    then: str = "continue"
    """What the job does afterwards: ``stop`` or ``continue``."""
    trace_steps: int = 0
    """Steps to record with torch.profiler; 0 for none."""
    stacks_hz: float = DEFAULT_HZ
    """Stack samples per second in the workers, and in the training process where it has none; 0 for none."""
    metrics_file: Path | None = None
    """Where the figures go every few seconds while the job runs, as OpenMetrics text; None for nowhere."""
    command_line: str = ""
    """Ours, for the run file."""
    target: str = ""
    """The job as the run file names it, without credentials; the command where empty."""

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError("no command was given", hint="write it after --: ioprobe run -- python train.py")
        unknown = [p for p in self.phases if p not in PHASES]
        if unknown:
            raise UsageError(f"no such phase '{unknown[0]}'", hint=f"choose from {', '.join(PHASES)}")
        if "observe" not in self.phases:
            raise UsageError("the phases lack 'observe'", hint="the others are only meaningful beside it")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"--steps is {self.steps}; it must be at least 1")
        if self.trace_steps < 0:
            raise UsageError(f"--trace-steps is {self.trace_steps}; it must not be negative")
        if self.then not in ("stop", "continue"):
            raise UsageError(f"--then is '{self.then}'; expected 'stop' or 'continue'")


class Launched(NamedTuple):
    """A job that has ended."""

    run: Run
    exit_code: int
    """Of the job; 128 plus the signal's number where a signal ended it."""


def launch(request: Launch) -> Launched:
    """Run a job to its end under the probe.

    Raises:
        TargetError: the command cannot be started.
        OutputError: the metrics file cannot be written, or there is no room for the private folder.
    """
    created_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with private_folder() as folder:
        waiter = _Waiter(request, folder)
        returncode = waiter.run()
        processes = read_folder(folder)
        workload = Workload(target=request.target or " ".join(request.command), command=request.command_line)
        run = gather(processes, folder, measure_host(), workload, created_at)
    for loader in run.loaders:
        loader.load = waiter.load
        loader.worker_pss_bytes = waiter.memory if loader.purpose == "baseline" else []
        loader.worker_cores = waiter.worker_cores if loader.purpose == "baseline" else None
    if waiter.metrics is not None and waiter.metrics.error:
        text = f"the metrics file '{request.metrics_file}' could not be written to the end: {waiter.metrics.error}"
        run.caveats.append(Caveat("metrics-unwritten", text))
    if request.phases != ("observe",):
        run.caveats += _missing(run, request)
    code = returncode if returncode >= 0 else 128 - returncode
    if waiter.stopped:
        code = 0
    elif code:
        run.complete = False
        how = f"was ended by {signal.Signals(-returncode).name}" if returncode < 0 else f"ended with exit code {code}"
        run.failures.append(Failure(phase="loop", kind="ended", message=f"the job {how}"))
    return Launched(run, code)


def _missing(run: Run, request: Launch) -> list[Caveat]:
    found = []
    if "cached" in request.phases and (run.step is None or run.step.coupled):
        found.append("cached")
    if "drain" in request.phases and run.loader_alone() is None:
        found.append("drain")
    if not found:
        return []
    text = f"the job ended before the phase{'s' if len(found) > 1 else ''} {' and '.join(found)}"
    return [Caveat("phases-missed", text, "observe fewer batches: --steps")]


class _Waiter:
    """Starts the job, passes signals on, looks at its load now and then, and ends it where it was asked to stop."""

    def __init__(self, request: Launch, folder: Path) -> None:
        self.request, self.folder = request, folder
        self.load: HostLoad | None = None
        self.memory: list[int] = []
        self.worker_cores: int | None = None
        self.stopped = False
        self.metrics = MetricsFile(request.metrics_file, folder) if request.metrics_file is not None else None
        self._done_since: float | None = None

    def run(self) -> int:
        """Return the job's return code, negative for a signal."""
        watched = {*_PASSED_ON, signal.SIGCHLD}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        try:
            process = self._start(before)
            meter = LoadMeter().start(process.pid)
            look_s, began = _FIRST_LOOK_S, time.monotonic()
            while process.poll() is None:
                info = signal.sigtimedwait(watched, 0.5)
                if info is not None and info.si_signo != signal.SIGCHLD and info.si_code != _FROM_KERNEL:
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(info.si_signo)
                if time.monotonic() - began > look_s:
                    look_s *= 2  # a look at all processes costs the job something: ever less often
                    meter.sample()
                    self._look()
                if self.metrics is not None:
                    self.metrics.look()
                self._end_if_asked(process)
            self.load = meter.stop()
            if self.metrics is not None:
                self.metrics.look(final=True)
            return process.returncode
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start(self, mask: set[signal.Signals | int]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self.request.command,
                env=environment(self.request, self.folder),
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
            )
        except OSError as error:
            raise TargetError(
                f"cannot start '{self.request.command[0]}': {error.strerror}",
                hint="write the command as in a shell, after --",
            ) from None

    def _look(self) -> None:
        """Take the workers' memory once, when they are at work."""
        if not self.memory:
            iterators = [i for p in read_folder(self.folder) for i in p.iterators.values() if i.pids]
            if iterators:
                self.memory = worker_memory(iterators[-1].pids)
                self.worker_cores = worker_cores(iterators[-1].pids)

    def _end_if_asked(self, process: subprocess.Popen[bytes]) -> None:
        """A job that was told to stop and does not, is ended."""
        if self.request.then != "stop" or self.stopped:
            return
        if self._done_since is None:
            if (self.folder / "done").exists():
                self._done_since = time.monotonic()
        elif time.monotonic() - self._done_since > _GRACE_S:
            self.stopped = True
            process.terminate()


def environment(request: Launch, folder: Path) -> dict[str, str]:
    """Return the job's environment: ours, with the hooks first on ``PYTHONPATH``."""
    options = {
        "folder": str(folder),
        "steps": request.steps,
        "phases": list(request.phases),
        "trace_steps": request.trace_steps,
        "then": request.then,
        "stacks_hz": request.stacks_hz,
    }
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join([str(_SITE), *filter(None, [found.get("PYTHONPATH")])])
    found["IOPROBE_RUN"] = json.dumps(options)
    return found


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder that only this user can read, locked while this process lives, and remove it at the end.

    Folders are swept that were left where ioprobe and its job were both killed.
    """
    place = Path(tempfile.gettempdir())
    sweep(place, _PREFIX, in_use=_job_lives)
    folder = make_folder(place, _PREFIX)
    try:
        yield folder.path
    finally:
        folder.remove()


def _job_lives(folder: Path) -> bool:
    return any(Path(f"/proc/{p.name.partition('-')[0]}").exists() for p in folder.glob(f"*{SUFFIX}"))
