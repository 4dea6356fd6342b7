"""io_uring without a compiled extension: rings mapped with ``mmap``, the system call through ctypes.

Layouts and numbers are the kernel's (``include/uapi/linux/io_uring.h``). One
submission entry stands for each slot of the queue; only its offset changes
from request to request. Buffers and the file are registered where the kernel
allows it, which takes the page pinning out of every read.

Memory order: CPython releases no lock here that would order plain stores, so
the tail is written last, and the system call that follows is the barrier.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # the same on every architecture
_SETUP_COOP_TASKRUN, _SETUP_SINGLE_ISSUER = 1 << 8, 1 << 12
_ENTER_GETEVENTS = 1
_REGISTER_BUFFERS, _REGISTER_FILES = 0, 2
_OP_READ_FIXED, _OP_READ = 4, 22
_SQE_FIXED_FILE = 1
_OFF_SQES = 0x10000000
_MAP_POPULATE = 0x8000
_EINTR = 4

_SQE = np.dtype(
    {
        "names": ["opcode", "flags", "fd", "off", "addr", "len", "user_data", "buf_index"],
        "formats": ["u1", "u1", "<i4", "<u8", "<u8", "<u4", "<u8", "<u2"],
        "offsets": [0, 1, 4, 8, 16, 24, 32, 40],
        "itemsize": 64,
    }
)
_CQE = np.dtype([("user_data", "<u8"), ("res", "<i4"), ("flags", "<u4")])

_AT_ONCE = 8
"""Completions that arrive together from here on are handled by numpy, fewer by plain Python: it is cheaper there."""
_TAKE = 1 << 18
_MORE = 1 << 14


def _system_call() -> Any:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return call


class Ring:
    """A submission and a completion queue shared with the kernel.

    Raises:
        OSError: EPERM or ENOSYS where io_uring is forbidden or missing, ENOMEM where memory may not be locked.
    """

    def __init__(self, entries: int) -> None:
        call = _system_call()
        params = (ctypes.c_uint32 * 30)()
        fd = -1
        # Newest kernels first. Deferred task work was tried: it cost a tenth more CPU for each read here.
        for flags in (_SETUP_SINGLE_ISSUER | _SETUP_COOP_TASKRUN, _SETUP_COOP_TASKRUN, 0):
            ctypes.memset(params, 0, ctypes.sizeof(params))
            params[2] = flags
            fd = call(_SETUP, ctypes.c_uint(max(2, entries)), ctypes.byref(params))
            if fd >= 0:
                break
        if fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self.fd = fd
        sq_entries, cq_entries = params[0], params[1]
        sq, cq = params[10:20], params[20:30]
        size = max(sq[6] + sq_entries * 4, cq[5] + cq_entries * 16)
        shared, both = mmap.MAP_SHARED | _MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE
        try:
            self._rings = mmap.mmap(fd, size, flags=shared, prot=both, offset=0)
            self._entries = mmap.mmap(fd, sq_entries * 64, flags=shared, prot=both, offset=_OFF_SQES)
        except OSError:
            os.close(fd)
            raise
        view = memoryview(self._rings)
        self.words = view[: size // 4 * 4].cast("I")
        self.sq_tail, self.cq_head, self.cq_tail = sq[1] // 4, cq[0] // 4, cq[1] // 4
        self.sq_mask, self.cq_mask = self.words[sq[2] // 4], self.words[cq[2] // 4]
        self.sq_array = view[sq[6] : sq[6] + sq_entries * 4].cast("I")
        self.cq_longs = view[cq[5] : cq[5] + cq_entries * 16].cast("Q")
        self.cq_ints = view[cq[5] : cq[5] + cq_entries * 16].cast("i")
        self.cqes = np.frombuffer(self._rings, _CQE, count=cq_entries, offset=cq[5])
        self.sq_array_np = np.frombuffer(self._rings, "<u4", count=sq_entries, offset=sq[6])
        self.sqes = np.frombuffer(self._entries, _SQE, count=sq_entries)
        self.sqe_longs = memoryview(self._entries).cast("Q")
        self.sq_entries, self.cq_entries = sq_entries, cq_entries

    def register_buffers(self, base: int, step: int, count: int) -> bool:
        """Register count buffers of step bytes from base on; False where memory may not be locked."""
        vectors = (ctypes.c_uint64 * (2 * count))(*[v for i in range(count) for v in (base + i * step, step)])
        return bool(_system_call()(_REGISTER, self.fd, _REGISTER_BUFFERS, vectors, count) == 0)

    def register_file(self, fd: int) -> bool:
        """Register one file as number 0."""
        return bool(_system_call()(_REGISTER, self.fd, _REGISTER_FILES, (ctypes.c_int32 * 1)(fd), 1) == 0)

    def enter(self) -> Any:
        """Return the system call with its types set, for the hot loop."""
        call = ctypes.CDLL(None, use_errno=True).syscall
        call.restype = ctypes.c_long
        call.argtypes = [ctypes.c_long, ctypes.c_int, *[ctypes.c_uint] * 3, ctypes.c_void_p, ctypes.c_size_t]
        return call

    def close(self) -> None:
        """Close the ring; outstanding requests end in the kernel."""
        for name in ("cqes", "sq_array_np", "sqes"):
            setattr(self, name, None)
        for view in (self.words, self.sq_array, self.cq_longs, self.cq_ints, self.sqe_longs):
            view.release()
        with contextlib.suppress(BufferError):
            self._rings.close()
            self._entries.close()
        os.close(self.fd)


def allowed() -> bool:
    """Whether this process may use io_uring (containers often forbid it)."""
    try:
        Ring(2).close()
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
            OSError: opening or reading failed, or the ring is refused.
        """
        task = Task.of(self.job, command)
        fd = task.open()
        try:
            ring = Ring(1 << max(0, (task.depth - 1).bit_length()))
            try:
                return _Loop(task, ring, fd, self.board).run()
            finally:
                ring.close()
        finally:
            os.close(fd)

    def close(self) -> None:
        """Nothing is kept between rounds."""


class _Loop:
    def __init__(self, task: Task, ring: Ring, fd: int, board: Board) -> None:
        self.task, self.ring = task, ring
        self.tally = Tally(task, board, task.slot)
        self.usage = Usage(task)
        depth, step = task.depth, task.step_bytes
        self.buffer = mmap.mmap(-1, step * depth)
        pages = np.frombuffer(self.buffer, np.uint8)
        pages[:: mmap.PAGESIZE] = 1  # fault them in
        base = pages.ctypes.data
        fixed, filed = ring.register_buffers(base, step, depth), ring.register_file(fd)
        slots = np.arange(depth, dtype=np.uint64)
        ring.sqes[:] = np.zeros(1, _SQE)
        ring.sqes["opcode"] = _OP_READ_FIXED if fixed else _OP_READ
        ring.sqes["flags"] = _SQE_FIXED_FILE if filed else 0
        ring.sqes["fd"] = 0 if filed else fd
        ring.sqes["len"] = task.block_bytes
        ring.sqes["addr"][:depth] = base + slots * step
        ring.sqes["user_data"][:depth] = slots
        if fixed:
            ring.sqes["buf_index"][:depth] = slots
        self.offsets = task.offsets()
        self.ahead = self.offsets.take(_TAKE)
        self.since = np.zeros(depth, np.int64)  # when each slot was submitted [ns]
        self.latencies = np.empty(RAW_LIMIT, np.int64)

    def run(self) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
        """The hot loop. One function on purpose: a call costs as much as the rest of an iteration."""
        task, ring, tally = self.task, self.ring, self.tally
        clock = time.perf_counter_ns
        words, sq_array, longs, ints, sqe = ring.words, ring.sq_array, ring.cq_longs, ring.cq_ints, ring.sqe_longs
        sq_tail, cq_head, cq_tail = ring.sq_tail, ring.cq_head, ring.cq_tail
        sq_mask, cq_mask = ring.sq_mask, ring.cq_mask
        enter, fd, size = ring.enter(), ring.fd, task.block_bytes
        since, record, ahead = words_of(self.since), words_of(self.latencies), words_of(self.ahead)
        at, total = 0, len(ahead)
        sleep_until(task.at_ns)
        tail, head = words[sq_tail], words[cq_head]
        ops = recorded = flying = loops = 0
        kept = task.keep_ns <= task.at_ns
        if kept:
            self.usage.start(0)
        now = clock()
        submission = Submission(task, now)
        single = submission.single
        ready = min(task.depth, total)
        for slot in range(ready):
            sqe[slot * 8 + 1] = ahead[slot]
            sq_array[(tail + slot) & sq_mask] = slot
            since[slot] = now
        at, tail = ready, (tail + ready) & 0xFFFFFFFF
        next_ns = tally.next_ns
        while True:
            words[sq_tail] = tail
            flying += ready
            if flying == 0:
                break  # a single pass has ended
            while single and ready > 1:
                enter(_ENTER, fd, 1, 0, 0, None, 0)
                ready -= 1
            if enter(_ENTER, fd, ready, 1, _ENTER_GETEVENTS, None, 0) < 0 and ctypes.get_errno() != _EINTR:
                raise io_error(task, ctypes.get_errno(), 0)
            now = clock()
            done = words[cq_tail]
            count = (done - head) & 0xFFFFFFFF
            flying -= count
            loops += 1
            if count >= _AT_ONCE and total - at >= count:
                slots = self._take_many(now, head, count, recorded, at)
                ring.sq_array_np[(np.arange(count) + tail) & sq_mask] = slots
                recorded += count
                at += count
                tail, head, ready = (tail + count) & 0xFFFFFFFF, done, count
            else:
                ready = 0
                while head != done:
                    place = head & cq_mask
                    slot = longs[2 * place]
                    if ints[4 * place + 2] != size:
                        self._complain(ints[4 * place + 2], slot)
                    record[recorded] = now - since[slot]
                    recorded += 1
                    head = (head + 1) & 0xFFFFFFFF
                    if at < total:
                        since[slot] = now
                        sqe[slot * 8 + 1] = ahead[at]
                        at += 1
                        sq_array[tail & sq_mask] = slot
                        tail = (tail + 1) & 0xFFFFFFFF
                        ready += 1
            words[cq_head] = head
            ops += count
            if now >= next_ns:
                going = tally.mark(now, ops - count)
                next_ns = tally.next_ns
                if not kept and now >= task.keep_ns:
                    kept, recorded = True, 0
                    self.usage.start(ops)
                if recorded > RAW_LIMIT - 4096:
                    tally.fold(self.latencies[:recorded])
                    recorded = 0
                if not going:
                    break
                single = submission.tried(now, ops)
            if total - at < task.depth:
                self.ahead = np.concatenate([self.ahead[at:], self.offsets.take(_MORE)])
                ahead, at, total = words_of(self.ahead), 0, self.ahead.size
        words[sq_tail] = tail if flying == 0 else (tail - ready) & 0xFFFFFFFF  # what was prepared is not submitted
        self._drain(flying, head)
        if flying == 0:
            tally.mark(now, ops)
        if kept or flying == 0:
            tally.fold(self.latencies[:recorded])
        facts = self.usage.facts(ops)
        facts["exhausted"] = flying == 0
        return answer([tally], facts)

    def _take_many(self, now: int, head: int, count: int, recorded: int, at: int) -> NDArray[np.int64]:
        """Record many completions at once and give their slots the next offsets; return the slots."""
        ring = self.ring
        found = ring.cqes[(np.arange(count) + head) & ring.cq_mask]
        slots: NDArray[np.int64] = found["user_data"].astype(np.int64)
        if (found["res"] != self.task.block_bytes).any():
            bad = int(np.flatnonzero(found["res"] != self.task.block_bytes)[0])
            self._complain(int(found["res"][bad]), int(slots[bad]))
        np.subtract(now, self.since[slots], out=self.latencies[recorded : recorded + count])
        self.since[slots] = now
        ring.sqes["off"][slots] = self.ahead[at : at + count]
        return slots

    def _complain(self, result: int, slot: int) -> None:
        offset = int(self.ring.sqes["off"][slot])
        raise io_error(self.task, -result, offset) if result < 0 else short_read(self.task, offset, result)

    def _drain(self, flying: int, head: int) -> None:
        """Wait for what is in flight: the kernel writes to our buffers until then."""
        ring, enter = self.ring, self.ring.enter()
        until = time.monotonic() + 2.0
        while flying > 0 and time.monotonic() < until:
            enter(_ENTER, ring.fd, 0, 1, _ENTER_GETEVENTS, None, 0)
            done = ring.words[ring.cq_tail]
            flying -= (done - head) & 0xFFFFFFFF
            head = done
            ring.words[ring.cq_head] = head
