"""A measuring child that died or hangs, in sentences."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from ioprobe.errors import MeasureError
from ioprobe.probe import protocol
from ioprobe.probe.sigkill import cause
from ioprobe.run import Failure

_NATIVE = re.compile(r"\((?:torch|np|numpy|cv2|F|nn|x|scipy)\b[\w.]*\)$|site-packages/(?:torch|numpy|cv2|scipy)/")
"""A worker that stands in one of these never got past native code that runs on a thread pool."""


class ChildGone(MeasureError):
    """The child ended in the middle of a command."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.failure = failure


class ChildHangs(ChildGone):
    """The child did not answer in time and was ended."""


def death(phase: str, code: int | None, last_line: str) -> Failure:
    """Return what to say of a child that ended by itself.

    Args:
        phase: What it did.
        code: Exit code, negative for a signal; None where it is not known.
        last_line: What the user's code printed last, or ''.
    """
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        kind, clause = "worker-died", ""
        hint = "the process crashed in native code; run the loader by hand under 'python -X faulthandler'"
        if -code == signal.SIGKILL:
            kind, clause, hint = cause()
        if -code == signal.SIGBUS:
            kind, hint = "shared-memory", "enlarge /dev/shm, or use fewer workers or a smaller prefetch"
        text = f"the process that runs your loader was ended by {name}" + (f", and {clause}" if clause else "")
    else:
        kind, hint, text = "exception", "see the loader's output", f"the process that runs your loader ended ({code})"
    return Failure(phase=phase, kind=kind, message=text + (f": {last_line}" if last_line else ""), hint=hint)


def hang(phase: str, silence_s: float, found: protocol.Event | None) -> Failure:
    """Return what to say of a child without progress.

    Args:
        phase: What it was asked to do.
        silence_s: How long it said nothing [s].
        found: Where its threads stand; None where not even its control thread answers.
    """
    phase = "step" if found is not None and found.in_step else phase
    workers = found.workers if found and phase in ("loop", "loader") else []
    where = workers[0] if workers else found.text if found else ""
    what = {"factory": "the factory", "step": "the step"}.get(phase, "waiting for a batch")
    kind, hint = "hang", "raise --timeout if that is normal; 'ioprobe attach PID --dump' shows a live job's stacks"
    message = f"{what} showed no progress for {silence_s:.0f} s{'; a worker stands still' if workers else ''}"
    if workers and found and not found.batches and _NATIVE.search(workers[0]):
        kind = "fork-deadlock"
        message += ": no batch was ever delivered, as when a thread pool was in use before the workers were forked"
        hint = "use multiprocessing_context='forkserver' or 'spawn'"
    return Failure(phase=phase, kind=kind, message=message, where=where, hint=hint)


def at(where: str) -> str:
    """Return '; it stands at where', or nothing where that is not known."""
    return f"; it stands at {where}" if where else ""


def last_line(log: Path | None) -> str:
    """Return the last line that the user's code printed, '' where there is none."""
    if log is None:
        return ""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""
