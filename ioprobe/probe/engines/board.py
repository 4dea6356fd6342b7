"""Counters that children share with the parent: watch without asking, stop without signals."""

from __future__ import annotations

import mmap
import os

_WORD_BYTES = 8
_STOP = 0
_FIRST = 8  # the stop flag has a cache line to itself


class Board:
    """An array of 64-bit words in anonymous shared memory (a memfd: no name, nothing to clean up)."""

    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, (_FIRST + 8 * slots) * _WORD_BYTES)
        self.words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, slots: int) -> Board:
        """Return a new board with two counters (operations, bytes) for each slot."""
        fd = os.memfd_create("ioprobe-board", os.MFD_CLOEXEC)
        os.ftruncate(fd, (_FIRST + 8 * slots) * _WORD_BYTES)
        return cls(fd, slots)

    @staticmethod
    def at(slot: int) -> int:
        """Return the index of a slot's first word; its bytes counter is the word after."""
        return _FIRST + 8 * slot

    def stop(self, value: int = 1) -> None:
        """Ask every child to end its round."""
        self.words[_STOP] = value

    @property
    def stopped(self) -> bool:
        """Whether the parent asked to end."""
        return bool(self.words[_STOP])

    def totals(self) -> tuple[int, int]:
        """Return (operations, bytes) of all slots so far in this round."""
        ops = sum(self.words[self.at(i)] for i in range(self.slots))
        return ops, sum(self.words[self.at(i) + 1] for i in range(self.slots))

    def clear(self) -> None:
        """Reset counters and flag before a round."""
        for i in range(len(self.words)):
            self.words[i] = 0

    def close(self) -> None:
        """Unmap and close."""
        self.words.release()
        self._map.close()
        os.close(self.fd)
