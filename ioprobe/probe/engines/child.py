"""Main loop of a measuring child: read a job, answer rounds, end with the parent.

Protocol on stdin/stdout, both length-prefixed: JSON in, JSON plus raw int64
columns out. The child dies with its parent (PR_SET_PDEATHSIG), and when stdin
closes.
"""

from __future__ import annotations

import array
import ctypes
import importlib
import json
import os
import signal
import struct
import sys
from typing import IO, Any, Protocol

from ioprobe.probe.engines.board import Board

_PR_SET_PDEATHSIG = 1

Columns = dict[str, "array.array[int]"]


class Worker(Protocol):
    """What an engine module's ``Worker(job, board, slot)`` gives."""

    def round(self, command: dict[str, Any]) -> tuple[dict[str, Any], Columns]:
        """Measure once; return facts and columns of int64."""
        ...

    def close(self) -> None:
        """Free descriptors and buffers."""
        ...


def send(stream: IO[bytes], header: dict[str, Any], columns: Columns | None = None) -> None:
    """Write one message."""
    parts = {name: memoryview(column).cast("B") for name, column in (columns or {}).items() if len(column)}
    header = {**header, "columns": {name: len(part) for name, part in parts.items()}}
    head = json.dumps(header).encode()
    stream.write(struct.pack("<I", len(head)) + head)
    for part in parts.values():
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> dict[str, Any] | None:
    """Return the next command, or None at the end."""
    size = stream.read(4)
    if len(size) < 4:
        return None
    text = stream.read(struct.unpack("<I", size)[0])
    command: dict[str, Any] = json.loads(text)
    return command


def main() -> None:
    """Serve rounds until stdin closes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Libraries that print must not spoil the protocol.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = sys.stdin.buffer
    job = receive(source)
    if job is None:
        return
    try:
        board = Board(job["board_fd"], job["slots"])
        worker: Worker = importlib.import_module(f"ioprobe.probe.engines.{job['kind']}").Worker(job, board)
    except BaseException as error:
        send(out, {"error": _describe(error)})
        return
    send(out, {"ready": True})
    while (command := receive(source)) is not None:
        try:
            facts, columns = worker.round(command)
            send(out, facts, columns)
        except BaseException as error:
            send(out, {"error": _describe(error)})
    worker.close()


def _describe(error: BaseException) -> dict[str, Any]:
    if isinstance(error, OSError):
        return {"errno": error.errno, "text": error.strerror or str(error), "path": str(error.filename or "")}
    text = str(error).strip().splitlines()
    return {"errno": None, "text": text[0] if text else type(error).__name__, "path": "", "type": type(error).__name__}
