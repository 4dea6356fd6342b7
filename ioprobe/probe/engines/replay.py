"""Replay of a dataset's own reads: open, read the planned ranges, close; one process like one loader worker."""

from __future__ import annotations

import array
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.common import page_memory
from ioprobe.probe.pagecache import process_device_bytes

MAX_ERRORS = 8
_MAX_OPS = 4_000_000

Item = Sequence[Any]
"""``[path, [[offset, length], ...]]``: one open and its reads."""
Read = Callable[[int, list[memoryview], int], int]
Open = Callable[[str, int], int]


class Worker:
    """Replays its share of the items, from where it stopped or from the start."""

    def __init__(self, job: dict[str, Any], board: Board, *, read: Read = os.preadv, opener: Open = os.open) -> None:
        self.items: list[Item] = job["items"]
        self.chunk_bytes: int = job["chunk_bytes"]
        self.slot: int = job["slot"]
        self.board = board
        self.read, self.open = read, opener
        self.buffer = page_memory(self.chunk_bytes)
        self.view = memoryview(self.buffer)
        self.next_item = 0

    def round(self, command: dict[str, Any]) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
        """Read items until they or the time are used up.

        Returns:
            Facts (first and last item, errors, device bytes) and columns
            ``done_ns`` (clock), ``latency_ns``, ``nbytes`` per read,
            ``open_ns`` and ``first_ns`` per item.
        """
        if command.get("rewind"):
            self.next_item = 0
        start_item, upto = self.next_item, min(command.get("upto", len(self.items)), len(self.items))
        log = _Log()
        errors: list[dict[str, Any]] = []
        device_before = process_device_bytes()
        time.sleep(max(0.0, (command["at_ns"] - time.perf_counter_ns()) / 1e9))
        while self.next_item < upto and len(errors) < MAX_ERRORS and len(log.done) < _MAX_OPS:
            path, ranges = self.items[self.next_item]
            try:
                whole = self._item(path, ranges, log, command["end_ns"])
            except OSError as error:
                errors.append({"errno": error.errno, "text": error.strerror or str(error), "path": path})
                whole = True
            if not whole:
                break
            self.next_item += 1
        device_after = process_device_bytes()
        facts = {
            "first_item": start_item,
            "next_item": self.next_item,
            "exhausted": self.next_item >= upto,
            "errors": errors,
            "device_bytes": None if None in (device_before, device_after) else device_after - device_before,  # type: ignore[operator]
        }
        return facts, log.columns()

    def _item(self, path: str, ranges: Sequence[Sequence[int]], log: _Log, end_ns: int) -> bool:
        """Read one item; return False where time or the parent ended it in the middle."""
        clock, read, view, chunk = time.perf_counter_ns, self.read, self.view, self.chunk_bytes
        words, at = self.board.words, Board.at(self.slot)
        began = clock()
        fd = self.open(path, os.O_RDONLY | os.O_CLOEXEC)
        before = clock()
        log.opened.append(before - began)
        first = True
        try:
            for offset, length in ranges:
                end = offset + length
                while offset < end:
                    want = min(chunk, end - offset)
                    got = read(fd, [view[:want]], offset)
                    now = clock()
                    if got == 0:
                        raise OSError(None, f"ends at byte {offset}, {end} were there when it was listed")
                    log.done.append(now)
                    log.latency.append(now - before)
                    log.nbytes.append(got)
                    if first:
                        log.first.append(now - began)
                        first = False
                    words[at] += 1
                    words[at + 1] += got
                    offset += got
                    before = now
                    if now >= end_ns or words[0]:
                        return False
        finally:
            os.close(fd)
        return True

    def close(self) -> None:
        """Free the buffer."""
        self.view.release()
        self.buffer.close()


class _Log:
    def __init__(self) -> None:
        self.done = array.array("q")
        self.latency = array.array("q")
        self.nbytes = array.array("q")
        self.opened = array.array("q")
        self.first = array.array("q")

    def columns(self) -> dict[str, array.array[int]]:
        return {
            "done_ns": self.done,
            "latency_ns": self.latency,
            "nbytes": self.nbytes,
            "open_ns": self.opened,
            "first_ns": self.first,
        }
