"""Clean child processes that read together: start, line up, watch, stop, collect, and leave nothing behind.

Measuring happens outside the caller's process: one busy Python thread beside
an engine takes most of its rate through the interpreter lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ioprobe.errors import MeasureError
from ioprobe.probe.engines.board import Board
from ioprobe.probe.sigkill import cause

Ints = NDArray[np.int64]
_START_LIMIT_S = 30.0
_GRACE_S = 5.0
_POLL_S = 0.05
_END_S = 0.5
_BOOT = "import sys; sys.path[:] = {path!r}; from ioprobe.probe.engines.child import main; main()"


@dataclass(frozen=True)
class Reply:
    """One child's answer to a round."""

    facts: dict[str, Any]
    columns: dict[str, Ints]
    """Columns of int64; a missing column is empty."""

    def column(self, name: str) -> Ints:
        """Return a column, empty where the child recorded nothing."""
        return self.columns.get(name, np.empty(0, np.int64))


Watch = Callable[[float, int, int], bool]
"""Called with (elapsed [s], operations, bytes) while a round runs; True ends it."""


class Crew:
    """Children that take part in the same measurement. A context manager."""

    def __init__(self, kind: str, jobs: Sequence[Mapping[str, Any]], *, slots: int | None = None) -> None:
        self.board = Board.create(slots or len(jobs))
        self._children: list[subprocess.Popen[bytes]] = []
        try:
            for number, job in enumerate(jobs):
                child = self._start()
                self._children.append(child)
                self._send(
                    child, {"slot": number, **job, "kind": kind, "board_fd": self.board.fd, "slots": self.board.slots}
                )
            limit = time.monotonic() + _START_LIMIT_S
            for child in self._children:
                self._receive(child, limit)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Number of children."""
        return len(self._children)

    def _start(self) -> subprocess.Popen[bytes]:
        code = _BOOT.format(path=[p or os.getcwd() for p in sys.path])  # noqa: PTH109
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[self.board.fd],
            start_new_session=True,  # Ctrl-C reaches the parent only; it ends the children itself
        )

    def round(
        self,
        command: Mapping[str, Any],
        seconds: float,
        watch: Watch | None = None,
        *,
        each: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Reply]:
        """Let all children measure for at most seconds [s]; return their replies in order.

        Args:
            command: What all are told.
            seconds: Time limit of the round [s].
            watch: Sees the counters while it runs, and may end it.
            each: What each child is told besides, one entry a child.

        Raises:
            MeasureError: a child died or does not come back (a device that hangs).
        """
        self.board.clear()
        lead_ns = int((0.005 + 0.002 * len(self._children)) * 1e9)
        at_ns = time.perf_counter_ns() + lead_ns
        end_ns = at_ns + int(seconds * 1e9)
        for child, own in zip(self._children, each or [{}] * len(self._children), strict=True):
            self._send(child, {"at_ns": at_ns, "end_ns": end_ns, **command, **own})
        waiting = {c.stdout.fileno() for c in self._children if c.stdout}
        limit = time.monotonic() + seconds + _GRACE_S + lead_ns / 1e9
        poll = select.poll()
        for fd in waiting:
            poll.register(fd, select.POLLIN | select.POLLHUP)
        while waiting and time.monotonic() < limit:
            for fd, _ in poll.poll(_POLL_S * 1e3):
                waiting.discard(fd)
                poll.unregister(fd)
            if watch is not None and not self.board.stopped:
                elapsed_s = (time.perf_counter_ns() - at_ns) / 1e9
                if elapsed_s > 0 and watch(elapsed_s, *self.board.totals()):
                    self.board.stop()
        return [self._receive(child, limit) for child in self._children]

    def _send(self, child: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
        text = json.dumps(message).encode()
        assert child.stdin is not None
        try:
            child.stdin.write(struct.pack("<I", len(text)) + text)
            child.stdin.flush()
        except BrokenPipeError:
            raise self._died(child) from None

    def _receive(self, child: subprocess.Popen[bytes], limit: float) -> Reply:
        assert child.stdout is not None
        ready, _, _ = select.select([child.stdout], [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            raise MeasureError(
                "a read does not come back: the storage does not answer",
                hint="look whether the file system or the store behind it is up ('mount', 'dmesg')",
            )
        size = child.stdout.read(4)
        if len(size) < 4:
            raise self._died(child)
        head: dict[str, Any] = json.loads(child.stdout.read(struct.unpack("<I", size)[0]))
        columns = {
            name: np.frombuffer(child.stdout.read(nbytes), np.int64) for name, nbytes in head.pop("columns").items()
        }
        if "error" in head:
            raise ChildError(head["error"])
        return Reply(head, columns)

    def _died(self, child: subprocess.Popen[bytes]) -> MeasureError:
        try:
            code = child.wait(1.0)
        except subprocess.TimeoutExpired:
            return MeasureError("a measuring process closed its pipe", hint="please report this")
        if code == -7:
            return MeasureError(
                "a read through a mapping failed: the file shrank, or the device reported an error",
                hint="look at the file and, with 'dmesg', at the device",
            )
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if code != -9:
            return MeasureError(f"a measuring process {how}", hint="please report this")
        killed = cause()
        return MeasureError(
            f"a measuring process {how}" + (f", and {killed.clause}" if killed.clause else ""), hint=killed.hint
        )

    def close(self) -> None:
        """End every child, whatever it does, and free the shared counters."""
        for child in self._children:
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()
        limit = time.monotonic() + _END_S
        for child in self._children:
            try:
                child.wait(max(0.01, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
        limit = time.monotonic() + _END_S
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # A process in an uninterruptible read ends when the device answers; it is not waited for.
                child.wait(max(0.01, limit - time.monotonic()))
            if child.stdout is not None:
                child.stdout.close()
        self.board.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ChildError(Exception):
    """What a child reported instead of figures."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(facts.get("text", ""))
        self.errno: int | None = facts.get("errno")
        self.text: str = facts.get("text", "")
        self.path: str = facts.get("path", "")
