"""Where to read next: every block at most once in a pass, in order or in a scrambled order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]
_MOST_BARREN = 64


class Pass:
    """Offsets of one stream among several that share a file without meeting.

    A random pass is a bijection on block numbers computed on the fly (no
    permutation is stored, so a disk of terabytes costs no memory).

    Args:
        blocks: Blocks in the file; at least 1.
        block_bytes: Size of a block [bytes].
        random: Scrambled order, or in sequence from a place that the seed gives.
        seed: Another seed, another order.
        stream, streams: Which of how many equal shares this is.
        once: End after one pass instead of starting another in another order.
        contiguous: Sequential streams get a region each, instead of every streams-th block.
    """

    def __init__(
        self,
        blocks: int,
        block_bytes: int,
        *,
        random: bool,
        seed: int,
        stream: int = 0,
        streams: int = 1,
        once: bool = False,
        contiguous: bool = False,
    ) -> None:
        self.blocks, self.block_bytes, self.random = blocks, block_bytes, random
        self.seed, self.stream, self.streams, self.once = seed, stream, streams, once
        self.contiguous = contiguous
        self.bits = max(2, (blocks - 1).bit_length())
        self.at = 0
        self.passes = 0
        self._barren = 0
        """Passes in a row that had nothing for this stream: with fewer blocks than streams it goes empty-handed."""

    def take(self, count: int) -> Offsets:
        """Return up to count offsets [bytes]; none when a single pass has ended."""
        parts: list[Offsets] = []
        have = 0
        while have < count:
            if self.passes > 8 and have:
                # A file of few blocks: more orders tell nothing, and making them takes time.
                seen = np.concatenate(parts)
                parts = [np.resize(seen, max(count, seen.size))]
                break
            part = self._next(max(256, count - have))
            if part is None:
                if self.once or self._barren > _MOST_BARREN:
                    break
                self.at, self.passes, self._barren = 0, self.passes + 1, self._barren + 1
                continue
            self._barren = 0 if part.size else self._barren
            parts.append(part)
            have += part.size
        joined = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return joined * self.block_bytes

    def _next(self, count: int) -> Offsets | None:
        if not self.random:
            return self._in_order(count)
        domain = 1 << self.bits
        first = self.at * self.streams + self.stream
        if first >= domain:
            return None
        indices = np.arange(first, min(domain, first + count * self.streams), self.streams, dtype=np.int64)
        self.at += indices.size
        numbers = scramble(indices, self.bits, self.seed + 0x9E37 * self.passes)
        return numbers[numbers < self.blocks]

    def _in_order(self, count: int) -> Offsets | None:
        base, extra = divmod(self.blocks, self.streams)
        own = base + (self.stream < extra)
        if self.at >= own:
            return None
        steps = np.arange(self.at, min(own, self.at + count), dtype=np.int64)
        self.at += steps.size
        if self.contiguous:
            begin = self.stream * base + min(self.stream, extra)
            return begin + (steps + self.seed % max(1, own)) % own
        return (steps * self.streams + self.stream + self.seed) % self.blocks


def scramble(indices: Offsets, bits: int, seed: int) -> Offsets:
    """Return a bijection of [0, 2**bits): odd multiplications and xor-shifts, both invertible.

    >>> sorted(scramble(np.arange(16), 4, 7).tolist()) == list(range(16))
    True
    """
    mask = (1 << bits) - 1
    rng = np.random.default_rng(seed)
    x = indices & mask
    for shift in (bits // 2, bits // 3 + 1, bits // 2):
        odd = int(rng.integers(0, 1 << min(bits, 31))) | 1
        x = (x * odd + int(rng.integers(0, mask + 1))) & mask
        x = x ^ (x >> max(1, shift))
    return x
