"""A timeline's wall time, divided: compute, exposed communication and transfer, data stall, other idle.

Each instant of the window counts once. Device work comes first, in the order compute, communication, transfer: what
runs under compute is hidden and costs nothing. What is left is idle: *data stall* while the host is inside the
DataLoader's ``__next__``, else other idle. On-device copies and fills belong to the step and count as compute.

The window of an accelerator is not the host's: the host runs ahead. A step's window ends when the last work that was
launched within the step's range on the host ends on the device.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ioprobe.live.traces.intervals import EMPTY, Cover, Floats, cover, covered, join
from ioprobe.live.traces.timeline import DeviceWork, Kind, Timeline
from ioprobe.run import Partition


def partitions(timeline: Timeline, rank: int = 0) -> list[Partition]:
    """Return one partition for each accelerator that did anything, or one for the host where there is none.

    Args:
        timeline: What one process did.
        rank: Its rank in the job.
    """
    loader = cover(timeline.loader.starts, timeline.loader.ends)
    busy = [cover(d.spans.starts, d.spans.ends).total for d in timeline.devices]
    # A stray fill on another rank's device (a context, a handshake) is no device that this process trains on.
    used = [d for d, b in zip(timeline.devices, busy, strict=True) if b > 0 and b >= 0.01 * max(busy)]
    found = [_of_device(timeline, device, loader, rank) for device in used]
    there = [p for p in found if p is not None]
    if not there:
        host = _of_host(timeline, loader, rank)
        there = [] if host is None else [host]
    return there


def _of_device(timeline: Timeline, device: DeviceWork, loader: Cover, rank: int) -> Partition | None:
    edges = device_edges(timeline, device)
    if edges is None:
        return None
    kinds = {kind: _kind(device, kind) for kind in Kind}
    return _divide(
        edges,
        kinds[Kind.COMPUTE],
        kinds[Kind.COMMUNICATION],
        kinds[Kind.TRANSFER],
        kinds[Kind.COPY],
        loader,
        steps=edges.size - 1 if len(timeline.steps) or len(timeline.loader) else 0,
        device=f"accelerator {device.device}",
        rank=rank,
        source=timeline.source,
        extra={"pageable": device.pageable_s} if device.pageable_copies else {},
    )


def _of_host(timeline: Timeline, loader: Cover, rank: int) -> Partition | None:
    edges = host_edges(timeline)
    if edges is None:
        return None
    operators = cover(timeline.host_compute.starts, timeline.host_compute.ends)
    communication = cover(timeline.host_communication.starts, timeline.host_communication.ends)
    # Operators that the loader runs inside __next__ (collation with num_workers=0) are loading, not computing.
    return _divide(
        edges,
        _without(operators, loader),
        communication,
        EMPTY,
        EMPTY,
        loader,
        steps=edges.size - 1 if len(timeline.steps) or len(timeline.loader) else 0,
        device="cpu",
        rank=rank,
        source=timeline.source,
        extra={},
    )


def _divide(
    edges: Floats,
    compute: Cover,
    communication: Cover,
    transfer: Cover,
    copies: Cover,
    loader: Cover,
    *,
    steps: int,
    device: str,
    rank: int,
    source: str,
    extra: dict[str, float],
) -> Partition:
    # Exposed time is what a set adds to the union of those before it; the differences sum to the whole by construction.
    with_communication = join(compute, communication)
    with_transfer = join(with_communication, transfer)
    busy = join(with_transfer, copies)
    not_idle = join(busy, loader)
    layers = [covered(c, edges) for c in (compute, with_communication, with_transfer, busy, not_idle)]
    lengths = np.diff(edges)
    sums = [float(layer.sum()) for layer in layers]
    stalls = layers[4] - layers[3]
    other_copies = sums[3] - sums[2]
    hidden = {
        "communication": float(covered(communication, edges).sum()),
        "transfer": float(covered(transfer, edges).sum()),
        "loader": float(covered(loader, edges).sum()),
        **extra,
    }
    if other_copies > 0:
        hidden["other_copies"] = other_copies
    window = float(edges[-1] - edges[0])
    return Partition(
        compute_s=sums[0] + other_copies,
        communication_s=sums[1] - sums[0],
        transfer_s=sums[2] - sums[1],
        data_stall_s=sums[4] - sums[3],
        other_idle_s=window - sums[4],
        window_s=window,
        steps=steps,
        device=device,
        rank=rank,
        hidden_s=hidden,
        steps_s=[float(x) for x in lengths],
        stalls_s=[float(x) for x in stalls],
        source=source,
    )


def host_edges(timeline: Timeline) -> Floats | None:
    """Return where the host's steps begin, and where the last one ends [s]; None where nothing was recorded."""
    ranges = timeline.steps
    if len(ranges):
        # Gaps between marked steps belong to the step before: the loop is there all the time.
        return _ascending(np.append(ranges.starts, ranges.ends.max()))
    if len(timeline.loader) > 2:
        return _ascending(timeline.loader.starts)  # without marks, a step runs from one batch to the next
    everything = [s for s in (timeline.host_compute, timeline.host_communication, timeline.loader) if len(s)]
    everything += [d.spans for d in timeline.devices if len(d.spans)]
    if not everything:
        return None
    return _ascending(np.array([min(s.starts.min() for s in everything), max(s.ends.max() for s in everything)]))


def device_edges(timeline: Timeline, device: DeviceWork) -> Floats | None:
    """Return where the device's steps end [s]: the end of the last work launched in each step of the host.

    The first step only marks where the window begins. Without launches that can be matched, the host's edges serve.
    """
    if not len(device.spans):
        return None
    host = host_edges(timeline)
    if host is None:
        return None
    count = int(host.size) - 1
    step_of = np.searchsorted(host, device.launched, side="right") - 1
    known = np.isfinite(device.launched) & (step_of >= 0) & (step_of < count)
    if not known.any():
        return host
    ends = np.full(count, -np.inf)
    np.maximum.at(ends, step_of[known], device.spans.ends[known])
    finite = np.maximum.accumulate(ends)[np.isfinite(ends)]
    edges = _ascending(finite)
    if edges is not None:
        return edges
    # A single step: from where the host began it to where its last work ended.
    return _ascending(np.array([host[0], max(float(host[-1]), float(finite[-1]))]))


def _ascending(edges: Floats) -> Floats | None:
    found = np.unique(edges)
    return found if found.size >= 2 else None


def _kind(device: DeviceWork, kind: Kind) -> Cover:
    chosen = device.kinds == kind
    return cover(device.spans.starts[chosen], device.spans.ends[chosen])


def _without(what: Cover, other: Cover) -> Cover:
    """Return the parts of a union that another one does not cover."""
    if not what.starts.size or not other.starts.size:
        return what
    edges = np.unique(np.concatenate([what.starts, what.ends, other.starts, other.ends]))
    middles = (edges[:-1] + edges[1:]) / 2
    keep = _inside(what, middles) & ~_inside(other, middles)
    return cover(edges[:-1][keep], edges[1:][keep])


def _inside(what: Cover, at: Floats) -> NDArray[np.bool_]:
    index = np.searchsorted(what.starts, at, side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (at < what.ends[np.maximum(index, 0)])
    return inside
