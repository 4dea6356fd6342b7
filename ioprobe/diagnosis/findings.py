"""Causes, each with its test: what in the evidence points to it, and how strongly.

A finding says that one thing explains a part of the stall. The verdict takes
the strongest; the advice turns findings into sentences.
"""

from __future__ import annotations

from collections.abc import Callable

from ioprobe.diagnosis.core_findings import (
    loading_threads,
    neighbours,
    own_processes,
    pinned,
    step_contention,
    thread_pools,
    too_many_workers,
)
from ioprobe.diagnosis.costs import BUSY_WORKERS, place_of
from ioprobe.diagnosis.evidence import Evidence
from ioprobe.diagnosis.fetch_limits import fetch_limit
from ioprobe.diagnosis.finding import LAYOUT_FINDINGS, Finding
from ioprobe.run import Limit, Stage
from ioprobe.units import format_count, format_seconds, format_share


def find_all(evidence: Evidence) -> list[Finding]:
    """Return the findings, strongest first."""
    found = [finding for test in TESTS if (finding := test(evidence)) is not None]
    return sorted(found, key=lambda f: -f.strength)


def _repeats(e: Evidence) -> Finding | None:
    for measured in e.run.loaders:
        seen = measured.repeats
        if seen is not None and e.workers >= 2 and measured.purpose != "verify" and seen.same_streams:
            return Finding(
                "repeats",
                None,
                True,
                LAYOUT_FINDINGS,
                f"of {seen.batches} batches only {seen.distinct} differ: each of the {e.workers} workers delivers the "
                f"same samples, so {format_share(1 - 1 / e.workers)} of what is loaded is repeated",
            )
    return None


def _startup(e: Evidence) -> Finding | None:
    loop, settings = e.loop, e.settings
    if loop is None or settings is None or not loop.whole_epochs or settings.persistent_workers or not e.workers:
        return None
    if loop.edge_share < 0.08 or loop.edge_share < 0.4 * loop.stall_share.value:
        return None
    run = e.run.loop()
    edges = run.epoch_edges_s if run else []
    mean = sum(edges) / len(edges) if edges else 0.0
    text = (
        f"workers start again for {_epochs(loop.whole_epochs)}: the first batch of an epoch takes "
        f"{format_seconds(mean)}, {format_share(loop.edge_share)} of the time"
    )
    crowd = e.workers >= 4 * e.cores
    return Finding(
        "respawn",
        Limit.OVERSUBSCRIPTION if crowd and e.cpu_bound else Limit.WORKER_STARTUP,
        True,
        min(0.97, loop.edge_share / max(1e-9, loop.stall_share.value)),
        text + (f"; {e.workers} workers share {e.cores:g} cores" if crowd else ""),
    )


def _epochs(count: int) -> str:
    return "each epoch" if count == 1 else f"each of {count} epochs"


def _epoch_sampler(e: Evidence) -> Finding | None:
    """Drawing the first indices of an epoch (a permutation of everything) holds up each epoch's first batch."""
    loop, run = e.loop, e.run.loop()
    if loop is None or run is None or not loop.whole_epochs or loop.edge_share < 0.08:
        return None
    main = run.main
    if len(main.sampler_s) != len(main.wait_s):
        return None
    edges = [k for k in range(1, len(main.epoch)) if main.epoch[k] != main.epoch[k - 1]]
    waited, drawn = sum(main.wait_s[k] for k in edges), sum(main.sampler_s[k] for k in edges)
    if waited <= 0 or drawn < 0.5 * waited or loop.edge_share < 0.4 * loop.stall_share.value:
        return None
    return Finding(
        "sampler",
        Limit.SAMPLER,
        False,
        0.96,
        f"at the start of each epoch the sampler takes {format_seconds(drawn / len(edges))}, "
        f"{format_share(loop.edge_share)} of the time, before the first index is drawn",
    )


def _epoch_edges(e: Evidence) -> Finding | None:
    """Workers live on, and yet each epoch begins with a wait: its first batches are not asked for before."""
    loop, settings, run = e.loop, e.settings, e.run.loop()
    if loop is None or run is None or settings is None or not e.workers or not settings.persistent_workers:
        return None
    if not _at_edges(e):
        return None
    edges = run.epoch_edges_s
    mean = sum(edges) / len(edges) if edges else 0.0
    return Finding(
        "epoch-edges",
        fetch_limit(e),
        False,
        0.6 * loop.edge_share / loop.stall_share.value,
        f"the queue is empty when an epoch begins: its first batch takes {format_seconds(mean)}, "
        f"{format_share(loop.edge_share)} of the time over {loop.whole_epochs} epoch"
        f"{'' if loop.whole_epochs == 1 else 's'}",
    )


def _at_edges(e: Evidence) -> bool:
    """Whether most of the waiting is for the first batch of an epoch."""
    loop = e.loop
    return bool(
        loop is not None
        and loop.whole_epochs
        and loop.edge_share >= 0.08
        and loop.edge_share >= 0.5 * loop.stall_share.value
    )


def _no_workers(e: Evidence) -> Finding | None:
    if e.settings is None or e.workers or e.loop is None or e.facts.inner_loaders:
        return None
    return Finding(
        "no-workers",
        fetch_limit(e),
        True,
        0.9,
        f"num_workers is 0: loading ({format_seconds(e.loop.stall_share.value * e.loop.cycle_s)} a batch) and the step "
        "take turns in one process and never overlap",
    )


def _same_thread(e: Evidence) -> Finding | None:
    """No DataLoader: the loop's own thread makes the batches, as its CPU while it waits for them shows."""
    if e.settings is not None or e.facts.inner_loaders or e.loop is None or not e.waits_for_data:
        return None
    share = e.inline_share()
    if share < 0.7 or e.threads_compute or e.alone is None:
        return None
    if own_processes(e) is not None:
        return None  # stacks show its thread at work as well where that waits for a core that those processes hold
    return Finding(
        "same-thread",
        fetch_limit(e),
        False,
        0.88,
        f"the loop's own thread makes the batches, {format_seconds(e.alone.cycle_s)} each, {format_share(share)} of it "
        "at work: loading and the step take turns and never overlap",
    )


def _idle_workers(e: Evidence) -> Finding | None:
    costs = e.costs
    if costs is None or e.workers < 2 or e.facts.kind != "iterable":
        return None
    counts = costs.worker_batches
    total = sum(counts.values())
    if total < 4 * e.workers or not counts:
        return None
    most = max(counts.values()) / total
    if costs.delivering >= e.workers and most < 2.5 / e.workers:
        return None
    text = f"{costs.delivering} of {e.workers} workers deliver batches"
    if e.facts.num_shards is not None:
        text += f"; the dataset has {e.facts.num_shards} shard{'s' if e.facts.num_shards != 1 else ''}"
    return Finding(
        "idle-workers", fetch_limit(e), True, 0.95, text + f"; one worker makes {format_share(most)} of them"
    )


def _sampler(e: Evidence) -> Finding | None:
    share = e.main_share(Stage.SAMPLER)
    if share < 0.3 or e.alone is None:
        return None
    return Finding(
        "sampler",
        Limit.SAMPLER,
        False,
        min(0.95, share),
        f"drawing indices takes {format_seconds(share * e.alone.cycle_s)} a batch in the main process, "
        f"{format_share(share)} of the loader's time, while the workers wait",
    )


def _transport(e: Evidence) -> Finding | None:
    alone, costs = e.alone, e.costs
    if alone is None or e.workers < 1:
        return None
    share = e.main_share(Stage.TRANSPORT)
    feeder = costs.feeder_share or 0.0 if costs else 0.0
    loop_release = e.loop.release_share if e.loop else 0.0
    in_main = share + loop_release
    if max(share, feeder) < 0.3 and loop_release < 0.2:
        return None
    # Workers that never run out of work are the limit themselves: receiving then mostly waits for a busy worker to
    # pass its descriptors on.
    if costs is not None and costs.idle_share < BUSY_WORKERS and loop_release < 0.2:
        return None
    run = e.run.loader_alone()
    size = run.batch_bytes if run else None
    text = (
        f"handing a batch ({format_count((size or 0) / 1e6)} MB) from worker to main process takes "
        f"{format_seconds(share * alone.cycle_s)} of the main process"
    )
    if feeder >= 0.15:
        text += f" and keeps the workers' queue threads busy {format_share(feeder)} of the time"
    if loop_release >= 0.05:
        text += f"; freeing the batch before takes {format_share(loop_release)} of the loop"
    return Finding("transport", Limit.IPC, False, min(0.94, max(in_main, feeder)), text)


def _pin_stage(e: Evidence) -> Finding | None:
    """A thread between the DataLoader and the loop that copies, pins or moves batches one at a time."""
    alone, costs = e.alone, e.costs
    run = e.run.loader_alone() or e.run.loop()
    if alone is None or run is None:
        return None
    pinned = bool(e.settings and e.settings.pin_memory)
    wrapped = e.facts.inner_loaders > 0
    threads = next((s for s in run.stacks if s.role == "thread"), None)
    main = next((s for s in run.stacks if s.role == "main"), None)
    if not (pinned or wrapped) or threads is None or main is None or not main.samples:
        return None
    if costs is not None and costs.idle_share < 0.3:
        return None
    busy = sum(threads.stages.get(s, 0) for s in (Stage.TRANSFER, Stage.READ, Stage.TRANSFORM, Stage.OTHER, Stage.STEP))
    share = min(1.0, busy / main.samples)
    if share < 0.4:
        return None
    where = next((f for f in threads.hottest if f.stage not in (Stage.WAIT, Stage.LOCK, Stage.TRANSPORT)), None)
    place = place_of(where)
    idle = f" while workers idle {format_share(costs.idle_share)} of the time" if costs else ""
    return Finding(
        "pin-thread",
        Limit.HOST_TO_DEVICE,
        False,
        min(0.93, share),
        f"one thread between the workers and the loop{place} is busy {format_share(share)} of the time{idle}: it "
        "copies batches one after the other",
    )


_INLINE = {
    Stage.TRANSFER: (Limit.HOST_TO_DEVICE, "copies"),
    Stage.DECODE: (Limit.DECODE, "decodes"),
    Stage.TRANSFORM: (Limit.TRANSFORM, "transforms"),
    Stage.COLLATE: (Limit.COLLATE, "collates"),
}


def _inline(e: Evidence) -> Finding | None:
    """A wrapper of a DataLoader works on each batch in the loop's own thread, while workers idle: nothing hides it."""
    main, costs = e.main_alone, e.costs
    if not e.facts.inner_loaders or main is None or costs is None or costs.idle_share < 0.3:
        return None
    stage = max(_INLINE, key=lambda stage: main.stages.get(stage, 0))
    share = main.stages.get(stage, 0) / main.samples
    work = sum(main.stages.get(stage, 0) for stage in _INLINE) / main.samples
    if work < 0.4:
        return None
    limit, what = _INLINE[stage]
    place = place_of(next((frame for frame in main.hottest if frame.stage is stage), None))
    return Finding(
        "inline",
        limit,
        False,
        min(0.93, work),
        f"the loop's own thread {what} each batch before it gets it{place}, {format_share(share)} of the time of the "
        f"loader alone, while workers idle {format_share(costs.idle_share)} of theirs",
        remedy="" if stage is Stage.TRANSFER else "inline-work",
    )


def _bursts(e: Evidence) -> Finding | None:
    """On average the loader keeps up, yet the loop waits: long pauses that the prefetched batches do not cover."""
    loop, costs, step = e.loop, e.loop_costs, e.step
    if loop is None or step is None or costs is None or e.workers < 1 or not e.waits_for_data or _at_edges(e):
        return None
    # What the workers could deliver if none ever waited for its turn.
    active = max(1, min(e.workers, costs.delivering))
    per_batch = max(costs.running_s / active, (costs.cpu_s + costs.process_cpu_s) / e.cores)
    supply = loop.samples_per_batch / per_batch / step.samples_per_s.value
    if supply < 1.12 or costs.idle_share < 0.12 or loop.wait_in_bursts < 0.4 or costs.service_spread < 2.5:
        return None
    depth = e.settings.depth if e.settings else 2
    if costs.slow_s < 0.6 * depth * step.seconds:
        return None  # what lies ready covers such a pause
    ordered = e.settings is not None and e.settings.in_order and e.workers > 1 and e.facts.kind == "map"
    text = (
        f"on average the workers could deliver {supply:.2f} times what the step takes, but the slowest batches take "
        f"{format_count(costs.service_spread)} times the usual {format_seconds(costs.busy_s)}"
    )
    text += (
        "; batches are handed over in order, so one slow batch holds up those that lie ready behind it"
        if ordered
        else f"; {depth} prefetched batches do not cover such a pause"
    )
    return Finding("tail-in-order" if ordered else "bursts", fetch_limit(e), True, 0.85, text)


def _lock(e: Evidence) -> Finding | None:
    costs = e.costs
    if costs is None or e.workers < 2:
        return None
    share = costs.fetch_s.get(Stage.LOCK, 0.0) / costs.running_s
    if share < 0.3:
        return None
    frame = costs.hottest.get(Stage.LOCK)
    place = place_of(frame)
    return Finding(
        "lock",
        Limit.LOCK_CONTENTION,
        False,
        min(0.92, 0.4 + share),
        f"workers spend {format_share(share)} of their time waiting for a lock{place}: {e.workers} workers read one at "
        "a time",
    )


TESTS: tuple[Callable[[Evidence], Finding | None], ...] = (
    _repeats,
    _idle_workers,
    _startup,
    _epoch_sampler,
    _epoch_edges,
    _no_workers,
    _same_thread,
    own_processes,
    pinned,
    thread_pools,
    too_many_workers,
    _sampler,
    _pin_stage,
    _inline,
    _transport,
    _lock,
    _bursts,
    neighbours,
    step_contention,
    loading_threads,
)
