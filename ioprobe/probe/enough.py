"""When a loop has been measured enough: pure rules over its rows and the levels of its queue of ready batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ioprobe import stats
from ioprobe.run import MainBatches

_FEWEST_BATCHES = 24
_TOO_FEW = 10


def is_narrow(rows: MainBatches, epochs_ended: int, ready: Sequence[int], depth: int, precision: float) -> bool:
    """Whether throughput and stall share are known well enough, in steady state, the queue drained.

    Args:
        rows: What the loop did so far.
        epochs_ended: Epochs that are over, the one included whose end the loop has just met.
        ready: Batches that lay ready each time one was taken, in order; empty where nobody counts them.
        depth: Batches in flight at most.
        precision: Half-width of the throughput's 95% interval over its value, and of the stall share's [fraction].
    """
    count = len(rows.call_s)
    if count < depth * 2 + _FEWEST_BATCHES or 0 < epochs_ended < 4:
        return False
    cycles = [after - before for before, after in pairwise(rows.call_s)]
    # How long the last one takes in all is not known yet, its wait is: a rare long one must not end the measuring.
    usual_s = (sum(cycles) - sum(rows.wait_s[:-1])) / len(cycles)
    cycles.append(rows.wait_s[-1] + max(0.0, usual_s))
    start = max(depth * 2, stats.steady_start(cycles), count // 3)
    if count - start < _FEWEST_BATCHES or stats.draining(ready[start:]):
        return False
    rate = stats.ratio(rows.samples[start:], cycles[start:])
    share = stats.ratio(rows.wait_s[start:], cycles[start:])
    return rate.relative_halfwidth <= precision and (share.high - share.low) / 2 <= precision


def is_too_little(batches: int, epochs_ended: int, ready: Sequence[int], depth: int) -> bool:
    """Whether batches, or short epochs, are too few, or the loop lives on batches prefetched before it began."""
    emptied = stats.drained(ready)
    just_emptied = emptied > 0 and len(ready) - emptied < _FEWEST_BATCHES
    return batches < depth + _TOO_FEW or 0 < epochs_ended < 2 or just_emptied or stats.undrained(ready)
