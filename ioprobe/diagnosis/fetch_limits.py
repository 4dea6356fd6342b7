"""What the workers' own work amounts to: storage, decode, transform, collate or a lock."""

from __future__ import annotations

from ioprobe.diagnosis.evidence import Evidence
from ioprobe.run import Limit, Stage

SMALL_READ_BYTES = 64 * 1024
"""Below this size a request's time is latency, above it transfer: 64 KiB take 0.3 ms at 200 MB/s, and no device that
people train from seeks or answers faster than it transfers that."""


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
    large = nbytes is not None and nbytes >= SMALL_READ_BYTES
    if costs is None or not large:
        return Limit.STORAGE_LATENCY
    if e.scaling is not None:
        return Limit.STORAGE_BANDWIDTH if e.scaling.saturated else Limit.STORAGE_LATENCY
    # One setting only: large reads whose time no latency of a device explains.
    blocked = costs.blocked_s / samples
    return (
        Limit.STORAGE_BANDWIDTH if nbytes is not None and nbytes / max(blocked, 1e-9) > 20e6 else Limit.STORAGE_LATENCY
    )


def _bytes_per_sample(e: Evidence, samples: float) -> float | None:
    costs = e.costs
    run = e.run.loader_alone() or e.run.loop()
    read = costs.read_bytes / samples if costs is not None and costs.read_bytes else None
    held = run.batch_bytes / samples if run is not None and run.batch_bytes else None
    if read is not None and read > 1024:
        return read
    # Nothing came through read(2): mapped memory or a network client. The batch's own size has to do.
    return held
