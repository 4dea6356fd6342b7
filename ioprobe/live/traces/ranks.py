"""Several ranks of one job: who comes late to the collectives, and what that costs the others. Pure.

A collective ends for all at about the same time, so its duration on a rank is the transfer plus the wait for the last
rank to arrive. The last to arrive has the shortest one; what the others take beyond it, they waited. Only durations are
compared, never times, so the clocks of the ranks need not agree.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from ioprobe.live.traces.timeline import Timeline
from ioprobe.run import Caveat, Partition


class Waits(NamedTuple):
    """Lateness of one rank."""

    waited_s: float
    """In collectives, for the last rank to arrive [s]."""
    kept_waiting_s: float
    """What the other ranks waited for this one, on average over them [s]."""


def lateness(timelines: list[Timeline]) -> tuple[list[Waits] | None, list[Caveat]]:
    """Return one entry per timeline, or None where their collectives cannot be matched."""
    if len(timelines) < 2:
        return None, []
    shared = set.intersection(*(set(t.collectives) for t in timelines))
    waited, kept = np.zeros(len(timelines)), np.zeros(len(timelines))
    matched, dropped = 0, 0
    for name in sorted(shared):
        columns = [t.collectives[name] for t in timelines]
        count = min(c.size for c in columns)
        if max(c.size for c in columns) > 1.1 * count + 1:
            dropped += 1  # these ranks did not take part in the same ones
            continue
        durations = np.stack([c[:count] for c in columns])
        extra = durations - durations.min(axis=0)
        waited += extra.sum(axis=1)
        np.add.at(kept, durations.argmin(axis=0), extra.sum(axis=0) / (len(timelines) - 1))
        matched += count
    if not matched:
        text = (
            f"the {len(timelines)} ranks share no collectives that can be matched: who waits for whom is not measured"
        )
        return None, [Caveat("ranks-unmatched", text, "record the same steps on every rank")]
    caveats = []
    if dropped:
        caveats.append(
            Caveat(
                "ranks-unmatched", f"{dropped} kinds of collectives differ in number between ranks and were left out"
            )
        )
    return [Waits(float(w), float(k)) for w, k in zip(waited, kept, strict=True)], caveats


def with_lateness(partition: Partition, waits: Waits) -> Partition:
    """Return a rank's partition with what it waited for others, and others for it."""
    hidden = {**partition.hidden_s, "waiting_for_ranks": waits.waited_s, "kept_waiting": waits.kept_waiting_s}
    return msgspec.structs.replace(partition, hidden_s=hidden)
