"""Unions of time intervals, on numpy columns. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Cover(NamedTuple):
    """Disjoint intervals in ascending order; two columns of one length."""

    starts: Floats
    ends: Floats

    @property
    def total(self) -> float:
        """Sum of the lengths, in the unit of the ends."""
        return float((self.ends - self.starts).sum())


EMPTY = Cover(np.empty(0), np.empty(0))


def cover(starts: ArrayLike, ends: ArrayLike) -> Cover:
    """Return the union of intervals in any order; empty and reversed ones count for nothing.

    >>> cover([5, 0, 1], [6, 2, 3])
    Cover(starts=array([0., 5.]), ends=array([3., 6.]))
    """
    s, e = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    keep = e > s
    s, e = s[keep], e[keep]
    if s.size == 0:
        return EMPTY
    order = np.argsort(s, kind="stable")
    s, reach = s[order], np.maximum.accumulate(e[order])
    first = np.concatenate(([True], s[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Cover(s[first], reach[last])


def join(*covers: Cover) -> Cover:
    """Return the union of unions."""
    return cover(np.concatenate([c.starts for c in covers]), np.concatenate([c.ends for c in covers]))


def covered(what: Cover, edges: ArrayLike) -> Floats:
    """Return how much of each window ``edges[i]..edges[i+1]`` is covered, shape (len(edges) - 1,).

    >>> covered(cover([0, 4], [2, 5]), [0, 1, 4.5])
    array([1. , 1.5])
    """
    at = np.asarray(edges, dtype=np.float64)
    if what.starts.size == 0:
        return np.zeros(max(0, at.size - 1))
    # Length covered up to a point: whole intervals that began before it, less what of the last lies beyond.
    sums = np.concatenate(([0.0], np.cumsum(what.ends - what.starts)))
    began = np.searchsorted(what.starts, at, side="right")
    beyond = np.maximum(what.ends[np.maximum(began - 1, 0)] - at, 0.0)
    return np.diff(sums[began] - np.where(began > 0, beyond, 0.0))
