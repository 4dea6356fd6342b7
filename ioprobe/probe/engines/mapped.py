"""Blocks copied out of a shared mapping: what ``np.memmap`` and Arrow's memory map do."""

from __future__ import annotations

import array
import ctypes
import mmap
import os
from typing import Any

from ioprobe.probe.engines import preadv
from ioprobe.probe.engines.board import Board

_libc = ctypes.CDLL(None, use_errno=True)  # releases the interpreter lock while pages are faulted in
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.memcpy.restype = None
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_MADV_RANDOM, _MADV_SEQUENTIAL = 1, 2


class Worker:
    """Depth threads that copy from one mapping; a file that shrinks meanwhile kills the process (SIGBUS)."""

    def __init__(self, job: dict[str, Any], board: Board) -> None:
        self.job, self.board = job, board

    def round(self, command: dict[str, Any]) -> tuple[dict[str, Any], dict[str, array.array[int]]]:
        """Copy blocks until the end or the stop flag.

        Raises:
            OSError: the file cannot be opened or mapped.
        """
        size: int = command["size_bytes"]
        fd = os.open(command["path"], os.O_RDONLY | os.O_CLOEXEC)
        try:
            base = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
            if base in (None, ctypes.c_void_p(-1).value):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), command["path"])
        finally:
            os.close(fd)
        if command["advise"]:
            advice = _MADV_RANDOM if command["random"] else _MADV_SEQUENTIAL
            _libc.madvise(ctypes.c_void_p(base), ctypes.c_size_t(size), advice)
        targets: dict[int, int] = {}

        def copy(_: int, into: list[memoryview], offset: int) -> int:
            view = into[0]
            target = targets.get(id(view))
            if target is None:
                target = targets[id(view)] = ctypes.addressof(ctypes.c_char.from_buffer(view))
            _libc.memcpy(target, base + offset, len(view))
            return len(view)

        try:
            return preadv.Worker(self.job, self.board, read=copy).round({**command, "direct": False})
        finally:
            _libc.munmap(ctypes.c_void_p(base), ctypes.c_size_t(size))

    def close(self) -> None:
        """Nothing is kept between rounds."""
