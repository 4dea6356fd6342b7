"""Linux AIO (``io_submit``) through ctypes, for O_DIRECT where io_uring is forbidden.

Layouts and numbers are the kernel's (``include/uapi/linux/aio_abi.h``). Without
O_DIRECT the kernel makes ``io_submit`` wait for each read, so it is not used there.
"""

from __future__ import annotations

import array
import ctypes
import os
import platform
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.common import Task, io_error, words_of
from ioprobe.probe.engines.flight import Flight, system_call

_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}  # setup, destroy, submit, getevents
_IOCB = np.dtype(
    {
        "names": ["data", "op", "fd", "buf", "nbytes", "offset"],
        "formats": ["<u8", "<u2", "<u4", "<u8", "<u8", "<i8"],
        "offsets": [0, 16, 20, 24, 32, 40],
        "itemsize": 64,
    }
)
_EVENT = np.dtype([("data", "<u8"), ("iocb", "<u8"), ("res", "<i8"), ("res2", "<i8")])
_EINTR = 4


class Context:
    """A kernel AIO context.

    Raises:
        OSError: ENOSYS where the kernel or the machine has none, EAGAIN where all are taken.
    """

    def __init__(self, depth: int) -> None:
        if platform.machine() not in _NUMBERS:
            raise OSError(38, f"Linux AIO is not known on {platform.machine()}")
        self.setup, self.destroy, self.submit, self.getevents = _NUMBERS[platform.machine()]
        handle = ctypes.c_ulong(0)
        if system_call()(self.setup, depth, ctypes.byref(handle)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self.handle = handle

    def close(self) -> None:
        """Wait for what is in flight and free the context."""
        system_call()(self.destroy, self.handle)


def allowed() -> bool:
    """Whether this process may use Linux AIO."""
    try:
        Context(1).close()
    except OSError:
        return False
    return True


class Worker:
    """One thread that keeps depth requests in flight."""

    def __init__(self, job: dict[str, Any], board: Board) -> None:
        self.job, self.board = job, board

    def round(self, command: dict[str, Any]) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
        """Read blocks until the end or the stop flag.

        Raises:
            OSError: opening or reading failed, or AIO is refused.
        """
        task = Task.of(self.job, command)
        fd = task.open()
        try:
            context = Context(task.depth)
            try:
                return _loop(task, context, fd, self.board)
            finally:
                context.close()
        finally:
            os.close(fd)

    def close(self) -> None:
        """Nothing is kept between rounds."""


def _cells(pointers: NDArray[np.uint64]) -> list[ctypes.c_void_p]:
    """Return where each pointer of an array lies."""
    return [ctypes.c_void_p(pointers.ctypes.data + 8 * place) for place in range(pointers.size)]


def _loop(task: Task, context: Context, fd: int, board: Board) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
    flight = Flight(task, board)
    depth, size = task.depth, task.block_bytes
    blocks = np.zeros(depth, _IOCB)
    blocks["data"], blocks["buf"], blocks["fd"], blocks["nbytes"] = flight.slots, flight.addresses, fd, size
    events = np.zeros(depth, _EVENT)
    events_at = ctypes.c_void_p(events.ctypes.data)
    addresses = (blocks.ctypes.data + flight.slots * 64).astype(np.uint64)
    pointers = addresses.copy()
    queue, queue_at, alone_at = words_of(pointers), _cells(pointers), _cells(addresses)
    address = addresses.tolist()
    offset_of, event = words_of(blocks).cast("B").cast("q"), words_of(events).cast("B").cast("q")
    record, ahead = words_of(flight.latencies), words_of(flight.ahead)
    call, submit, getevents, handle = system_call(), context.submit, context.getevents, context.handle
    clock = time.perf_counter_ns
    total = len(ahead)
    now = flight.start()
    single, next_ns = flight.single, flight.tally.next_ns
    since = [now] * depth
    at = ready = flying = min(depth, total)
    for slot in range(ready):
        offset_of[slot * 8 + 5] = ahead[slot]
    ops = recorded = 0
    going = True
    while flying:  # or a single pass has ended
        sent = 0
        while sent < ready:
            took = call(submit, handle, ready - sent, queue_at[sent])
            if took < 0:
                raise io_error(task, ctypes.get_errno(), 0)
            sent += took
        count = call(getevents, handle, 1, depth, events_at, None)
        now = clock()
        if count < 0:
            if ctypes.get_errno() != _EINTR:
                raise io_error(task, ctypes.get_errno(), 0)
            count = 0
        ready = 0
        for place in range(0, 4 * count, 4):
            slot = event[place]
            if event[place + 2] != size:
                flight.complain(event[place + 2], offset_of[slot * 8 + 5])
            if at < total:
                offset_of[slot * 8 + 5] = ahead[at]
                at += 1
                # The device starts at once; the books are kept while it works.
                if not single or call(submit, handle, 1, alone_at[slot]) != 1:
                    queue[ready] = address[slot]
                    ready += 1
            else:
                flying -= 1
            record[recorded] = now - since[slot]
            since[slot] = now
            recorded += 1
        ops += count
        if now >= next_ns:
            going, recorded = flight.mark(now, ops, count, recorded)
            if not going:
                break
            single, next_ns = flight.single, flight.tally.next_ns
        if total - at < depth:
            ahead, at = flight.refill(at), 0
            total = len(ahead)
    flying -= ready  # not handed over
    while flying > 0:
        flying -= max(1, call(getevents, handle, 1, depth, events_at, None))
    return flight.finish(now, ops, recorded, exhausted=going)
