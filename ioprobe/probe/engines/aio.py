"""Linux AIO (``io_submit``) through ctypes, for O_DIRECT where io_uring is forbidden.

Layouts and numbers are the kernel's (``include/uapi/linux/aio_abi.h``). Without
O_DIRECT the kernel makes ``io_submit`` wait for each read, so it is not used there.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import platform
import time
from typing import Any

import numpy as np

from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.common import (
    RAW_LIMIT,
    Submission,
    Tally,
    Task,
    Usage,
    answer,
    io_error,
    short_read,
    sleep_until,
    words_of,
)

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
_TAKE, _MORE = 1 << 18, 1 << 14


def _typed(*kinds: Any) -> Any:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, *kinds]
    return call


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
        if _typed(ctypes.c_uint, ctypes.c_void_p)(self.setup, depth, ctypes.byref(handle)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self.handle = handle.value

    def close(self) -> None:
        """Wait for what is in flight and free the context."""
        _typed(ctypes.c_ulong)(self.destroy, self.handle)


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


def _loop(task: Task, context: Context, fd: int, board: Board) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
    tally, usage = Tally(task, board, task.slot), Usage(task)
    depth, step, size = task.depth, task.step_bytes, task.block_bytes
    buffer = mmap.mmap(-1, step * depth)
    pages = np.frombuffer(buffer, np.uint8)
    pages[:: mmap.PAGESIZE] = 1  # fault them in
    slots = np.arange(depth, dtype=np.uint64)
    blocks = np.zeros(depth, _IOCB)
    blocks["data"], blocks["fd"], blocks["nbytes"] = slots, fd, size
    blocks["buf"] = pages.ctypes.data + slots * step
    where = (blocks.ctypes.data + slots * 64).astype(np.uint64)
    pointers, events = np.zeros(depth, np.uint64), np.zeros(depth, _EVENT)
    queue, ready_at, events_at = words_of(pointers), pointers.ctypes.data, events.ctypes.data
    address, offset_of = words_of(where), words_of(blocks).cast("B").cast("q")
    event = words_of(events).cast("B").cast("q")
    since, latencies = words_of(np.zeros(depth, np.int64)), np.empty(RAW_LIMIT, np.int64)
    record = words_of(latencies)
    submit = _typed(ctypes.c_ulong, ctypes.c_long, ctypes.c_void_p)
    getevents = _typed(ctypes.c_ulong, ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    nr_submit, nr_getevents, handle = context.submit, context.getevents, context.handle
    clock = time.perf_counter_ns
    offsets = task.offsets()
    ahead = offsets.take(_TAKE)
    coming, at, total = words_of(ahead), 0, ahead.size
    sleep_until(task.at_ns)
    now = clock()
    ready = min(depth, total)
    for slot in range(ready):
        offset_of[slot * 8 + 5], queue[slot], since[slot] = coming[slot], address[slot], now
    at = ready
    ops = recorded = flying = 0
    submission = Submission(task, now)
    kept, single, next_ns = task.keep_ns <= task.at_ns, submission.single, tally.next_ns
    if kept:
        usage.start(0)
    while True:
        flying += ready
        if flying == 0:
            break
        sent = 0
        while sent < ready:
            took = submit(nr_submit, handle, 1 if single else ready - sent, ready_at + 8 * sent)
            if took < 0:
                raise io_error(task, ctypes.get_errno(), 0)
            sent += took
        count = getevents(nr_getevents, handle, 1, depth, events_at, None)
        now = clock()
        if count < 0:
            if ctypes.get_errno() != 4:  # EINTR
                raise io_error(task, ctypes.get_errno(), 0)
            count = 0
        flying -= count
        ready = 0
        for number in range(count):
            slot = event[number * 4]
            got = event[number * 4 + 2]
            if got != size:
                offset = offset_of[slot * 8 + 5]
                raise io_error(task, -got, offset) if got < 0 else short_read(task, offset, got)
            record[recorded] = now - since[slot]
            recorded += 1
            if at < total:
                offset_of[slot * 8 + 5], queue[ready], since[slot] = coming[at], address[slot], now
                at += 1
                ready += 1
        ops += count
        if now >= next_ns:
            going = tally.mark(now, ops - count)
            next_ns = tally.next_ns
            if not kept and now >= task.keep_ns:
                kept, recorded = True, 0
                usage.start(ops)
            if recorded > RAW_LIMIT - 4096:
                tally.fold(latencies[:recorded])
                recorded = 0
            if not going:
                break
            single = submission.tried(now, ops)
        if total - at < depth:
            ahead = np.concatenate([ahead[at:], offsets.take(_MORE)])
            coming, at, total = words_of(ahead), 0, ahead.size
    while flying > 0:
        drained = getevents(nr_getevents, handle, 1, depth, events_at, None)
        flying -= max(1, drained)
    exhausted = ready == 0 and at >= total
    if exhausted:
        tally.mark(now, ops)
    tally.fold(latencies[:recorded])
    facts = usage.facts(ops)
    facts["exhausted"] = exhausted
    return answer([tally], facts)
