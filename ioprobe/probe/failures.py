"""What broke while it was measured, as evidence: kind, one line, place, remedy."""

from __future__ import annotations

import errno
import re
import signal
import traceback

import msgspec

from ioprobe.errors import IoprobeError
from ioprobe.probe.sigkill import cause
from ioprobe.probe.target import first_line, user_line
from ioprobe.run import Failure

_WORKER_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in ', re.MULTILINE)
_LIBRARY = re.compile(r"site-packages|dist-packages|lib/python3|/ioprobe/|^<")

DESCRIPTORS = re.compile(r"ancdata|Too many open files|Errno 24|received 0 items", re.IGNORECASE)
SHARED_MEMORY = re.compile(
    r"bus error|shared memory|/dev/shm|\bshm\b|No space left on device.*torch|unable to (mmap|write|resize)",
    re.IGNORECASE,
)
_DIED = re.compile(r"exited unexpectedly|killed by signal|Pin memory thread exited", re.IGNORECASE)
_TIMED_OUT = re.compile(r"timed out after", re.IGNORECASE)


def failure_of(error: BaseException, phase: str) -> Failure:
    """Return a failure for an exception raised by the loader, a worker or the step."""
    text = str(error)
    kind, hint = _kind(error, text)
    message, where = _worker_message(text)
    if not message:
        own = isinstance(error, IoprobeError)
        message = first_line(text) if own else f"{type(error).__name__}: {first_line(text) or 'no message'}"
    if kind == "sigkill":
        message = f"{message.removesuffix('.')}; {cause().clause}"
    if isinstance(error, IoprobeError) and error.hint:
        hint = error.hint
    return Failure(phase=phase, kind=kind, message=message, where=where or user_line(error), hint=hint)


def blame_signal(failure: Failure, exit_codes: list[int]) -> Failure:
    """Return the failure as the death of a worker where one was ended by a signal.

    What the main process sees of it depends on the moment: a message of PyTorch's, a broken connection, a missing
    socket. The exit code does not.
    """
    signals = {-code for code in exit_codes if code < 0}
    if failure.kind not in ("exception", "worker-died") or not signals & {signal.SIGKILL, signal.SIGBUS}:
        return failure
    if signal.SIGBUS in signals:
        kind, hint = _kind(RuntimeError("bus error"), "")
        what = "a worker was ended by SIGBUS"
    else:
        kind, clause, hint = cause()
        what = "a worker was ended by SIGKILL" + (f", and {clause}" if clause else "")
    return msgspec.structs.replace(
        failure, kind=kind, hint=hint, message=f"{what}; the main process saw {failure.message}"
    )


def _kind(error: BaseException, text: str) -> tuple[str, str]:
    whole = text + "".join(traceback.format_exception_only(type(error), error))
    if error.__cause__ is not None:
        whole += str(error.__cause__)
    if DESCRIPTORS.search(whole):
        return "descriptors", "copy what the loop keeps of a batch, raise 'ulimit -n', or share by file_system"
    if SHARED_MEMORY.search(whole) or _is_semaphore(error):
        hint = "enlarge /dev/shm (--shm-size, --ipc=host), or use fewer workers or a smaller prefetch"
        if "bus error" in whole.lower():
            hint += "; a file that was cut while it was mapped ends a worker alike"
        return "shared-memory", hint
    if _DIED.search(whole):
        if "Killed" in whole or "signal: 9" in whole.lower():
            kind, _, hint = cause()
            return kind, hint
        return "worker-died", "run the dataset in one process (num_workers=0) to see why the worker ends"
    if _TIMED_OUT.search(whole):
        return "timeout", "the loader's own timeout expired: see which sample takes that long"
    return "exception", ""


def _is_semaphore(error: BaseException) -> bool:
    """Whether there was no room for a semaphore, which lives in /dev/shm; the message does not say so."""
    frames = traceback.extract_tb(error.__traceback__)
    no_room = isinstance(error, OSError) and error.errno == errno.ENOSPC
    return no_room and bool(frames) and frames[-1].filename.endswith("multiprocessing/synchronize.py")


def _worker_message(text: str) -> tuple[str, str]:
    """Return (message, file:line) from the traceback that a worker sent along."""
    if "Original Traceback" not in text:
        return "", ""
    # The exception's own line follows the last frame; its message may have further lines.
    end = max((m.end() for m in _WORKER_FRAME.finditer(text)), default=0)
    lines = [line for line in text[end:].splitlines()[1:] if line.strip()]
    last = next((line for line in lines if not line.startswith(" ")), "")
    places = [m for m in _WORKER_FRAME.finditer(text) if not _LIBRARY.search(m["file"])]
    where = f"{places[-1]['file']}:{places[-1]['line']}" if places else ""
    worker = re.search(r"in DataLoader worker process (\d+)", text)
    prefix = f"in worker {worker[1]}: " if worker else ""
    return prefix + first_line(last), where
