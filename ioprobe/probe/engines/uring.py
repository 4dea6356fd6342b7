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

from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.common import Task, io_error, words_of
from ioprobe.probe.engines.flight import Flight, system_call

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
_CQE = np.dtype([("user_data", "<i8"), ("res", "<i4"), ("flags", "<u4")])

_AT_ONCE = 20
"""Completions that arrive together from here on are handled by numpy, fewer by plain Python: it is cheaper there."""
_PARAMS = ctypes.c_uint32 * 30
"""``struct io_uring_params``."""


class Ring:
    """A submission and a completion queue shared with the kernel.

    Raises:
        OSError: EPERM or ENOSYS where io_uring is forbidden or missing, ENOMEM where memory may not be locked.
    """

    def __init__(self, entries: int) -> None:
        call = system_call()
        params = _PARAMS()
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
        return bool(system_call()(_REGISTER, self.fd, _REGISTER_BUFFERS, vectors, count) == 0)

    def register_file(self, fd: int) -> bool:
        """Register one file as number 0."""
        return bool(system_call()(_REGISTER, self.fd, _REGISTER_FILES, (ctypes.c_int32 * 1)(fd), 1) == 0)

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
        self.task, self.ring, self.flight = task, ring, Flight(task, board)
        flight, depth = self.flight, task.depth
        fixed = ring.register_buffers(flight.base, task.step_bytes, depth)
        filed = ring.register_file(fd)
        ring.sqes[:] = np.zeros(1, _SQE)
        ring.sqes["opcode"] = _OP_READ_FIXED if fixed else _OP_READ
        ring.sqes["flags"] = _SQE_FIXED_FILE if filed else 0
        ring.sqes["fd"] = 0 if filed else fd
        ring.sqes["len"] = task.block_bytes
        ring.sqes["addr"][:depth] = flight.addresses
        ring.sqes["user_data"][:depth] = flight.slots
        if fixed:
            ring.sqes["buf_index"][:depth] = flight.slots
        self.since = np.zeros(depth, np.int64)
        """When each slot was submitted [ns]."""
        # Places of consecutive entries, wrapped: a slice of these costs less than computing them each time.
        self.cq_places = np.arange(2 * ring.cq_entries) & ring.cq_mask
        self.sq_places = np.arange(2 * ring.sq_entries) & ring.sq_mask
        self.offset_of, self.slot_of, self.result_of = ring.sqes["off"], ring.cqes["user_data"], ring.cqes["res"]

    def run(self) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
        """The hot loop. One function on purpose: a call costs as much as the rest of an iteration."""
        task, ring, flight = self.task, self.ring, self.flight
        clock = time.perf_counter_ns
        words, sq_array, longs, ints, sqe = ring.words, ring.sq_array, ring.cq_longs, ring.cq_ints, ring.sqe_longs
        sq_tail, cq_head, cq_tail = ring.sq_tail, ring.cq_head, ring.cq_tail
        sq_mask, cq_mask = ring.sq_mask, ring.cq_mask
        enter, fd, size = system_call(), ring.fd, task.block_bytes
        since, record, ahead = words_of(self.since), words_of(flight.latencies), words_of(flight.ahead)
        total = len(ahead)
        now = flight.start()
        single, next_ns = flight.single, flight.tally.next_ns
        tail, head = words[sq_tail], words[cq_head]
        ops = recorded = flying = 0
        going = True
        at = ready = min(task.depth, total)
        for slot in range(ready):
            sqe[slot * 8 + 1] = ahead[slot]
            sq_array[(tail + slot) & sq_mask] = slot
            since[slot] = now
        tail = (tail + ready) & 0xFFFFFFFF
        while True:
            words[sq_tail] = tail
            flying += ready
            if flying == 0:
                break  # a single pass has ended
            if enter(_ENTER, fd, ready, 1, _ENTER_GETEVENTS, None, 0) < 0 and ctypes.get_errno() != _EINTR:
                raise io_error(task, ctypes.get_errno(), 0)
            now = clock()
            count = (words[cq_tail] - head) & 0xFFFFFFFF
            flying -= count
            ready = 0
            if not single and count >= _AT_ONCE and total - at >= count:
                self._take_many(now, head & cq_mask, tail & sq_mask, count, recorded, at)
                recorded += count
                at += count
                tail += count
                ready = count
            else:
                for number in range(head, head + count):
                    if single and ready:
                        # The device starts on the one before while this one is prepared.
                        words[sq_tail] = tail & 0xFFFFFFFF
                        flying += enter(_ENTER, fd, 1, 0, 0, None, 0)
                        ready = 0
                    place = 2 * (number & cq_mask)
                    slot = longs[place]
                    if longs[place + 1] != size:  # result and flags in one look
                        flight.complain(ints[2 * place + 2], sqe[slot * 8 + 1])
                    record[recorded] = now - since[slot]
                    since[slot] = now
                    recorded += 1
                    if at < total:
                        sqe[slot * 8 + 1] = ahead[at]
                        at += 1
                        sq_array[tail & sq_mask] = slot
                        tail += 1
                        ready += 1
            head, tail = (head + count) & 0xFFFFFFFF, tail & 0xFFFFFFFF
            words[cq_head] = head
            ops += count
            if now >= next_ns:
                going, recorded = flight.mark(now, ops, count, recorded)
                if not going:
                    break
                single, next_ns = flight.single, flight.tally.next_ns
            if total - at < task.depth:
                ahead, at = flight.refill(at), 0
                total = len(ahead)
        self._drain(flying, head)
        return flight.finish(now, ops, recorded, exhausted=going)

    def _take_many(self, now: int, head: int, tail: int, count: int, recorded: int, at: int) -> None:
        """Record completions from place head on, and give their slots the next offsets from place tail on."""
        flight, places = self.flight, self.cq_places[head : head + count]
        slots = self.slot_of[places]
        results = self.result_of[places]
        if (results != self.task.block_bytes).any():
            bad = int(np.flatnonzero(results != self.task.block_bytes)[0])
            flight.complain(int(results[bad]), int(self.offset_of[slots[bad]]))
        np.subtract(now, self.since[slots], out=flight.latencies[recorded : recorded + count])
        self.since[slots] = now
        self.offset_of[slots] = flight.ahead[at : at + count]
        self.ring.sq_array_np[self.sq_places[tail : tail + count]] = slots

    def _drain(self, flying: int, head: int) -> None:
        """Wait for what is in flight: the kernel writes to our buffers until then."""
        ring, enter = self.ring, system_call()
        until = time.monotonic() + 2.0
        while flying > 0 and time.monotonic() < until:
            enter(_ENTER, ring.fd, 0, 1, _ENTER_GETEVENTS, None, 0)
            done = ring.words[ring.cq_tail]
            flying -= (done - head) & 0xFFFFFFFF
            head = done
            ring.words[ring.cq_head] = head
