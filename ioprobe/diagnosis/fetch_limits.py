"""What the workers' own work amounts to: storage, decode, transform, collate or a lock."""

from __future__ import annotations

from ioprobe.diagnosis.evidence import Evidence
from ioprobe.run import Limit, Stage

SMALL_READ_BYTES = 64 * 1024
"""Below this size a request's time is latency, above it transfer: 64 KiB take 0.3 ms at 200 MB/s, and no device that
people train from seeks or answers faster than it transfers that."""

QUEUE_READS = 2
"""Of a worker's calls of read(2) per batch: its next task, a header and a message."""
DESCRIPTOR_READS = 8
"""The same for each tensor whose descriptor the main process fetches: three messages that authenticate it and one that
asks (``multiprocessing.connection.answer_challenge``, ``deliver_challenge``, ``resource_sharer``), two reads each."""


def fetch_limit(e: Evidence) -> Limit:
    """Return the limit that the workers' own work amounts to: storage, decode, transform, collate or a lock."""
    costs = e.costs
    if costs is None:
        return _limit_by_stacks(e)
    stage = costs.dominant()
    if stage is Stage.COLLATE:
        return Limit.COLLATE
    blocked = costs.blocked_s
    if stage is Stage.LOCK:
        return Limit.LOCK_CONTENTION
    if costs.reads_on_cpu:
        return Limit.DECODE
    if costs.on_processes and e.processes_fill_cores:  # they stand in line for cores, and the workers for them
        return Limit.TRANSFORM if stage is Stage.TRANSFORM else Limit.DECODE
    if stage is Stage.READ or blocked > 0.6 * costs.running_s:
        return _storage_limit(e)
    return Limit.DECODE if stage is Stage.DECODE else Limit.TRANSFORM


_BY_STAGE = {
    Stage.DECODE: Limit.DECODE,
    Stage.TRANSFORM: Limit.TRANSFORM,
    Stage.COLLATE: Limit.COLLATE,
    Stage.LOCK: Limit.LOCK_CONTENTION,
    Stage.TRANSPORT: Limit.IPC,
    Stage.SAMPLER: Limit.SAMPLER,
    Stage.TRANSFER: Limit.HOST_TO_DEVICE,
}


def _limit_by_stacks(e: Evidence) -> Limit:
    """Return the limit of a loader that is no DataLoader, from the stacks of the main process."""
    run = e.run.loader_alone() or e.run.loop()
    counts: dict[Stage, int] = {}
    for shares in run.stacks if run else []:
        if shares.role in ("thread", "main"):
            for stage, count in shares.stages.items():
                counts[stage] = counts.get(stage, 0) + count
    useful = {stage: n for stage, n in counts.items() if stage in _BY_STAGE or stage is Stage.READ}
    if not useful:
        return Limit.DECODE
    stage = max(useful, key=lambda s: useful[s])
    return _storage_limit(e) if stage is Stage.READ else _BY_STAGE[stage]


def _storage_limit(e: Evidence) -> Limit:
    """Return bandwidth or latency: bandwidth where large requests queue for one link, latency otherwise."""
    costs = e.costs
    samples = max(1.0, e.alone.samples_per_batch if e.alone else e.loop.samples_per_batch if e.loop else 1.0)
    nbytes = _bytes_per_sample(e, samples)
    large = max(nbytes or 0.0, _bytes_per_read(e)) >= SMALL_READ_BYTES
    if costs is None or not large:
        return Limit.STORAGE_LATENCY
    if e.scaling is not None:
        return Limit.STORAGE_BANDWIDTH if e.scaling.saturated else Limit.STORAGE_LATENCY
    # One setting only: large reads whose time no latency of a device explains.
    blocked = costs.blocked_s / samples
    return (
        Limit.STORAGE_BANDWIDTH if nbytes is not None and nbytes / max(blocked, 1e-9) > 20e6 else Limit.STORAGE_LATENCY
    )


def _bytes_per_read(e: Evidence) -> float:
    """Return the mean size of a worker's read(2), which may be for many samples (a row group, a shard) [bytes]."""
    costs, run = e.costs, e.run.loader_alone() or e.run.loop()
    if costs is None or run is None or not costs.read_bytes or not costs.read_ops:
        return 0.0
    own = QUEUE_READS + DESCRIPTOR_READS * (run.batch_tensors or 0) if e.workers else 0
    # Fewer than that: descriptors went another way, and how many reads were the loader's own is not known.
    reads = costs.read_ops - own if costs.read_ops >= own else costs.read_ops
    return costs.read_bytes / max(1.0, reads)


def _bytes_per_sample(e: Evidence, samples: float) -> float | None:
    costs = e.costs
    run = e.run.loader_alone() or e.run.loop()
    read = costs.read_bytes / samples if costs is not None and costs.read_bytes else None
    held = run.batch_bytes / samples if run is not None and run.batch_bytes else None
    if read is not None and read > 1024:
        return read
    # Nothing came through read(2): mapped memory or a network client. The batch's own size has to do.
    return held
