"""Single samples at random out of shards: what a loader with an index reads."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from ioprobe.data.urls import suffix_of
from ioprobe.probe.storage_plan import PER_OPEN, Item, Plan, random_reads
from ioprobe.probe.storage_tar import index_tar
from ioprobe.run import Caveat
from ioprobe.units import format_bytes, format_count

_INDEX_LIMIT_S, _MOST_MEMBERS = 1.0, 200_000
_LONGEST_BYTES = 8 << 20


def members_of(plan: Plan, seed: int) -> Plan | None:
    """Return single samples at random out of a shard plan, or None where a loader cannot reach them.

    Out of plain tars the samples' own members are read, as an index gives them;
    headers are read for a bounded time. Other shards tell no borders here, so
    their samples are ranges of the mean size.
    """
    if plan.pattern != "shards" or any(suffix_of(path)[1] is not None for path, _ in plan.files[:1000]):
        return None
    if all(path.lower().endswith(".tar") for path, _ in plan.files):
        return _tar_members(plan, seed)
    if not plan.sample_bytes:
        return None
    text = f"single samples are read as ranges of their mean size, {format_bytes(plan.sample_bytes)}"
    plain = replace(plan, caveats=[Caveat("mean-sized-samples", text)])
    return random_reads(plain, plan.files, plan.sample_bytes, "members", seed)


def _tar_members(plan: Plan, seed: int) -> Plan | None:
    """Return the members of each sample, samples shuffled, a few for each time a tar is opened."""
    rng = random.Random(seed)
    order = rng.sample(plan.paths, len(plan.paths))
    until_s = time.perf_counter() + _INDEX_LIMIT_S
    items: list[Item] = []
    samples = indexed = 0
    for path in order:
        found = index_tar(path, most_members=_MOST_MEMBERS, until_s=until_s)
        indexed += found.complete
        spans = [sample for sample in found.samples if sample]
        rng.shuffle(spans)
        samples += len(spans)
        for first in range(0, len(spans), PER_OPEN):
            items.append((path, [span for sample in spans[first : first + PER_OPEN] for span in sample]))
        if time.perf_counter() > until_s or samples > _MOST_MEMBERS:
            break
    if not samples:
        return None
    planned = sum(length for _, spans in items for _, length in spans)
    caveats = []
    if indexed < len(order):
        text = f"single samples come from {format_count(samples)} whose headers were read in {_INDEX_LIMIT_S:.0f} s"
        caveats.append(Caveat("members-sampled", f"{text}; {indexed} of {len(order)} shards are indexed whole"))
    return replace(
        plan,
        pattern="members",
        groups=[[item] for item in items],
        planned_bytes=planned,
        samples=samples,
        used_share=1.0,
        chunk_bytes=min(_LONGEST_BYTES, max(length for _, spans in items for _, length in spans)),
        sample_bytes=max(1, round(planned / samples)),
        caveats=caveats,
    )
