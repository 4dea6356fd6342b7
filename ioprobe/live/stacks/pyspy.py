"""py-spy as a child process: found, allowed, started, ended with us, and its complaints understood."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ioprobe.errors import MeasureError
from ioprobe.instrument.stages import Frame
from ioprobe.live.stacks.recordings import Stack, parse_raw
from ioprobe.run import Caveat

_CAP_SYS_PTRACE = 19
_PR_SET_PDEATHSIG = 1
_BEHIND = re.compile(r"([\d.]+)s behind in sampling")
_TOTALS = re.compile(r"Samples: (\d+) Errors: (\d+)")
_GRACE_S = 10.0


class Recording(NamedTuple):
    """What py-spy saw in a live job."""

    stacks: list[Stack]
    wall_s: float
    rate_per_s: float
    behind_s: float
    """How far it lagged at worst [s]."""
    errors: int
    taken: int


def find_py_spy() -> str:
    """Return the path of the py-spy beside this interpreter, or the one on PATH.

    Raises:
        MeasureError: there is none.
    """
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.is_file() and os.access(beside, os.X_OK) else shutil.which("py-spy")
    if found is None:
        raise MeasureError("cannot find py-spy", hint="pip install py-spy, or judge without stacks: --no-stacks")
    return found


def check_access(pid: int, root: Path = Path("/")) -> None:
    """Make sure that another process's memory may be read, before anything is started.

    Raises:
        MeasureError: it may not; the message says what forbids it, the hint how to allow it.
    """
    try:
        os.close(os.open(root / f"proc/{pid}/mem", os.O_RDONLY))  # the kernel's own check for ptrace access
    except PermissionError:
        raise _refused(pid, root) from None
    except OSError as error:
        raise MeasureError(f"cannot look into process {pid}: {error.strerror}", hint="is it still running?") from None


def _refused(pid: int, root: Path) -> MeasureError:
    way_out = "or judge without stacks: --no-stacks"
    scope = _read(root / "proc/sys/kernel/yama/ptrace_scope").strip()
    owner = _owner(pid, root)
    if owner is not None and owner != os.geteuid():
        return MeasureError(
            f"cannot look into process {pid}: it belongs to user {owner}, and this user lacks SYS_PTRACE",
            hint=f"run as that user or with sudo -E env PATH=$PATH ioprobe attach {pid}, {way_out}",
        )
    if _in_container(root) and not _has_ptrace(root):
        return MeasureError(
            f"cannot look into process {pid}: this container lacks SYS_PTRACE"
            + (f" and kernel.yama.ptrace_scope is {scope}" if scope not in ("", "0") else ""),
            hint="docker run --cap-add SYS_PTRACE, in Kubernetes securityContext.capabilities.add: [SYS_PTRACE], "
            + way_out,
        )
    if scope in ("1", "2"):
        return MeasureError(
            f"cannot look into process {pid}: kernel.yama.ptrace_scope is {scope} and this user lacks SYS_PTRACE",
            hint=f"sudo sysctl kernel.yama.ptrace_scope=0, or sudo -E env PATH=$PATH ioprobe attach {pid}, {way_out}",
        )
    if scope == "3":
        return MeasureError(
            f"cannot look into process {pid}: kernel.yama.ptrace_scope is 3, which forbids it to everyone until reboot",
            hint="judge without stacks: --no-stacks",
        )
    return MeasureError(
        f"cannot look into process {pid}: the kernel refuses (SYS_PTRACE is missing)",
        hint=f"sudo -E env PATH=$PATH ioprobe attach {pid}, {way_out}",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _owner(pid: int, root: Path) -> int | None:
    try:
        return (root / f"proc/{pid}").stat().st_uid
    except OSError:
        return None


def _in_container(root: Path) -> bool:
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    text = _read(root / "proc/1/cgroup") + _read(root / "proc/self/cgroup")
    return any(word in text for word in ("docker", "kubepods", "containerd", "lxc"))


def _has_ptrace(root: Path) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", _read(root / "proc/self/status"), re.MULTILINE)
    return found is not None and bool(int(found.group(1), 16) >> _CAP_SYS_PTRACE & 1)


def record(
    pid: int, seconds: float, rate_per_s: int, *, blocking: bool = False, watch: Callable[[], bool] | None = None
) -> Recording:
    """Return the stacks of a process and its children over a while, idle threads included.

    What py-spy writes goes to memory, not to a file: nothing stays behind, whatever ends us. It ends with us, even if
    we are killed, and never stops the job unless ``blocking``.

    Args:
        pid: Of the job's topmost process.
        seconds: How long to sample [s].
        rate_per_s: Samples per second of each thread.
        blocking: Stop each process while its stack is read: exact, but it slows the job down.
        watch: Called some ten times a second meanwhile; False ends the recording early.

    Raises:
        MeasureError: py-spy failed; its own words are in the message.
    """
    memory = os.memfd_create("ioprobe-stacks", 0)
    try:
        command = [find_py_spy(), "record", "--pid", str(pid), "--duration", str(max(1, round(seconds)))]
        command += ["--rate", str(rate_per_s), "--threads", "--subprocesses", "--idle", "--full-filenames"]
        command += ["--format", "raw", "--output", f"/dev/fd/{memory}"] + ([] if blocking else ["--nonblocking"])
        with tempfile.TemporaryFile("w+") as log:
            start = time.monotonic()
            child = _start(command, log.fileno(), (memory,))
            try:
                _wait(child, start + seconds + _GRACE_S, watch)
            finally:
                _end(child)
            wall = time.monotonic() - start
            log.seek(0)
            words = log.read()
        os.lseek(memory, 0, os.SEEK_SET)
        with os.fdopen(os.dup(memory), "rb") as file:
            text = file.read().decode("utf-8", "replace")
    finally:
        os.close(memory)
    stacks = parse_raw(text, "py-spy's output") if text.strip() else []
    if not stacks and not Path(f"/proc/{pid}").exists():
        raise MeasureError(f"process {pid} ended while it was watched", hint="attach to a job that goes on")
    if not stacks:
        raise MeasureError(f"py-spy saw no stacks in process {pid}: {_last_words(words)}", hint=_remedy(words))
    behind = max((float(x) for x in _BEHIND.findall(words)), default=0.0)
    totals = _TOTALS.search(words)
    taken, errors = (int(totals.group(1)), int(totals.group(2))) if totals else (sum(s.samples for s in stacks), 0)
    return Recording(stacks, wall, rate_per_s, behind, errors, taken)


def confidence(found: Recording, seconds: float, main_samples: int) -> list[Caveat]:
    """Return why the stacks should be trusted less: the sampler lagged, lost samples, or failed to read many.

    Args:
        found: The recording.
        seconds: How long it was meant to last [s].
        main_samples: Stacks of the main process's main thread, of which there is one at each sample.
    """
    caveats = []
    settle = f"attach again with a lower --rate than {found.rate_per_s:g}"
    if found.behind_s > 0.5:
        text = f"low confidence: py-spy was {found.behind_s:.1f} s behind in sampling"
        caveats.append(Caveat("sampler-lag", text, settle))
    expected = found.rate_per_s * min(seconds, found.wall_s)
    if main_samples < 0.8 * expected:
        text = f"low confidence: {main_samples} stacks of the main thread, where {expected:.0f} were due"
        caveats.append(Caveat("sampler-loss", text, settle))
    if found.errors > 0.1 * max(1, found.taken):
        text = f"low confidence: {found.errors} of {found.taken + found.errors} stacks could not be read"
        caveats.append(Caveat("sampler-errors", text, "--blocking reads exactly, and slows the job down"))
    return caveats


_DUMPS = 3
"""Tries: a look at a process that is not halted may catch its stacks half written."""


def dump(pid: int, *, blocking: bool = False, timeout_s: float = 20.0) -> list[Stack]:
    """Return the stack in which each thread of one process stands now.

    Raises:
        MeasureError: py-spy failed.
    """
    for _ in range(_DUMPS - 1):
        with contextlib.suppress(MeasureError):
            return _dump_once(pid, blocking, timeout_s)
    return _dump_once(pid, blocking, timeout_s)


def _dump_once(pid: int, blocking: bool, timeout_s: float) -> list[Stack]:
    command = [find_py_spy(), "dump", "--pid", str(pid), "--json", *([] if blocking else ["--nonblocking"])]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        child = _start(command, log.fileno(), (), out.fileno())
        try:
            _wait(child, time.monotonic() + timeout_s, None)
        finally:
            _end(child)
        out.seek(0)
        text = out.read()
        log.seek(0)
        words = log.read()
    try:
        threads: list[dict[str, Any]] = json.loads(text)
    except ValueError:
        raise MeasureError(f"py-spy cannot read process {pid}: {_last_words(words)}", hint=_remedy(words)) from None
    found = []
    for thread in threads:
        frames = tuple(Frame(f["name"], f["filename"], int(f["line"] or 0)) for f in thread["frames"])
        if frames:
            name = thread.get("thread_name") or ""
            main = name == "MainThread" or thread.get("os_thread_id") == pid
            found.append(Stack((pid,), name, main, frames, 1))
    return found


def _start(command: list[str], log: int, keep: tuple[int, ...], out: int | None = None) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def before() -> None:
        # Dies with us, whatever ends us; and if we ended before this line, at once.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(  # a session of its own: Ctrl-C is ours to handle
        command,
        stdin=subprocess.DEVNULL,
        stdout=log if out is None else out,
        stderr=log,
        pass_fds=keep,
        start_new_session=True,
        preexec_fn=before,
    )


def _wait(child: subprocess.Popen[bytes], deadline_s: float, watch: Callable[[], bool] | None) -> None:
    while child.poll() is None and time.monotonic() < deadline_s:
        if watch is not None and not watch():
            child.send_signal(signal.SIGINT)  # it writes what it has
            watch = None
        time.sleep(0.1)


def _end(child: subprocess.Popen[bytes]) -> None:
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(how)
        try:
            child.wait(2.0)
        except subprocess.TimeoutExpired:
            continue


def _last_words(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip() and not line.startswith("py-spy>")]
    lines = [line for line in lines if not re.match(r"\d+: |Stack backtrace", line)]
    return "; ".join(lines[:3])[:300] or "it said nothing"


def _remedy(words: str) -> str:
    if "ermission denied" in words or "EPERM" in words:
        return "run with sudo -E env PATH=$PATH, allow SYS_PTRACE, or judge without stacks: --no-stacks"
    if "version" in words:
        return "upgrade py-spy: it must know the job's Python version; or judge without stacks: --no-stacks"
    return "is it a Python process that still runs? Else judge without stacks: --no-stacks"
