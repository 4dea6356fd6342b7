"""What a recording of one process holds, whatever tool wrote it. Times in seconds on the recording's own clock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ioprobe.live.traces.intervals import Floats
from ioprobe.run import Caveat


class Kind(IntEnum):
    """What an accelerator was doing."""

    COMPUTE = 0
    COMMUNICATION = 1
    TRANSFER = 2
    """Host to device."""
    COPY = 3
    """Any other copy, and fills."""


@dataclass(slots=True)
class Spans:
    """Intervals in columns of one length [s]."""

    starts: Floats = field(default_factory=lambda: np.empty(0))
    ends: Floats = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return int(self.starts.size)


@dataclass(slots=True)
class DeviceWork:
    """Everything that ran on one accelerator, in columns of one length."""

    device: str
    spans: Spans
    kinds: NDArray[np.int8]
    launched: Floats
    """When the host launched it [s]; NaN where the recording does not tell."""
    pageable_s: float = 0.0
    pageable_copies: int = 0
    pageable_bytes: int | None = None


@dataclass(slots=True)
class Timeline:
    """One process of a job: what its host thread and its accelerators did."""

    source: str
    rank: int | None = None
    world_size: int | None = None
    steps: Spans = field(default_factory=Spans)
    """The host's step ranges; empty where they were not marked."""
    loader: Spans = field(default_factory=Spans)
    """The host inside the DataLoader's ``__next__``."""
    host_compute: Spans = field(default_factory=Spans)
    """Operators on the host; what stands for compute where there is no accelerator."""
    host_communication: Spans = field(default_factory=Spans)
    devices: list[DeviceWork] = field(default_factory=list)
    collectives: dict[str, Floats] = field(default_factory=dict)
    """Durations of collectives in order of issue, by name and process group [s]."""
    loader_kind: str = ""
    """Class of the loader's iterator, such as ``_MultiProcessingDataLoaderIter``."""
    events: int = 0
    caveats: list[Caveat] = field(default_factory=list)


# Collectives as kernels: NCCL and RCCL (ncclKernel_*, ncclDevKernel_*), oneCCL, HCCL, and vendors' names after them.
_COLLECTIVE_KERNEL = re.compile(
    r"(?:.*\b|^_*)(?:nccl|rccl|hccl|oneccl|xccl|msccl)|.*(?:ncclDevKernel|ncclKernel)", re.I
)
# Collectives as ranges on the host: gloo:all_reduce, nccl:all_reduce, c10d::allreduce_.
_COLLECTIVE_RANGE = re.compile(r"^(?:gloo|nccl|mpi|ucc|hccl|xccl):(?!:)", re.I)
_COLLECTIVE_OPERATOR = re.compile(r"^(?:c10d|_c10d_functional|record_param_comms)\b")
_HOST_TO_DEVICE = re.compile(
    r"HtoD|HostToDevice|Host\s*->\s*Device|\bM2D\b|H2D|Pageable\s*->|Pinned\s*->\s*Device", re.I
)
_LOADER_RANGE = re.compile(
    r"^enumerate\((?:DataLoader|DataPipe|StatefulDataLoader)\)#(?P<kind>\w*)|train_dataloader_next$|_next_data$"
    r"|^\[pl\]\[profile\].*dataloader_next"
)
_STEP_RANGE = re.compile(
    r"^ProfilerStep#(\d+)$|^\[pl\]\[profile\]run_training_batch$|^(?:train_)?step[ _#:]*\d*$|^iteration[ _#:]*\d+$"
)


def is_collective_kernel(name: str) -> bool:
    """Return whether a kernel's name is that of a collective.

    >>> is_collective_kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"), is_collective_kernel("gemm")
    (True, False)
    """
    return _COLLECTIVE_KERNEL.match(name) is not None


def is_collective_range(name: str) -> bool:
    """Return whether a range on the host is a collective.

    >>> is_collective_range("gloo:all_reduce"), is_collective_range("aten::add_")
    (True, False)
    """
    return _COLLECTIVE_RANGE.match(name) is not None


def is_collective_operator(name: str) -> bool:
    """Return whether a host operator only hands a collective over."""
    return _COLLECTIVE_OPERATOR.match(name) is not None


def is_host_to_device(name: str) -> bool:
    """Return whether a copy's name says host to device.

    >>> is_host_to_device("Memcpy HtoD (Pinned -> Device)"), is_host_to_device("Memcpy DtoH (Device -> Pageable)")
    (True, False)
    """
    return _HOST_TO_DEVICE.search(name) is not None


def loader_range(name: str) -> str | None:
    """Return the loader's iterator class where a range's name is that of ``__next__``, else None.

    >>> loader_range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), loader_range("aten::add")
    ('_SingleProcessDataLoaderIter', None)
    """
    found = _LOADER_RANGE.search(name)
    return None if found is None else found.group("kind") or ""


def is_step_range(name: str) -> bool:
    """Return whether a range marks a training step."""
    return _STEP_RANGE.match(name) is not None


def spans(starts: Iterable[float], ends: Iterable[float], scale: float = 1.0, origin: float = 0.0) -> Spans:
    """Return spans in order of their start, in seconds after origin; what is not finite or reversed is dropped.

    Args:
        starts: In the file's unit.
        ends: In the file's unit, same length.
        scale: Seconds per unit.
        origin: Time zero, in the file's unit; taken off before scaling, since seconds since 1970 would cost precision.
    """
    s = (np.asarray(starts if isinstance(starts, np.ndarray) else list(starts), dtype=np.float64) - origin) * scale
    e = (np.asarray(ends if isinstance(ends, np.ndarray) else list(ends), dtype=np.float64) - origin) * scale
    keep = np.isfinite(s) & np.isfinite(e) & (e >= s)
    s, e = s[keep], e[keep]
    order = np.argsort(s, kind="stable")
    return Spans(s[order], e[order])


def match_launches(wanted: NDArray[np.int64], ids: NDArray[np.int64], times_s: Floats) -> Floats:
    """Return when each piece of device work was launched, NaN where no launch carries its correlation id.

    Args:
        wanted: Correlation ids of the device work; negative ones are unknown.
        ids: Correlation ids of the launches, ascending.
        times_s: When each launch was [s], same length as ids.

    >>> match_launches(np.array([7, 3, -1]), np.array([3, 7]), np.array([0.1, 0.2]))
    array([0.2, 0.1, nan])
    """
    launched = np.full(wanted.size, np.nan)
    if ids.size:
        at = np.minimum(np.searchsorted(ids, wanted), ids.size - 1)
        known = (ids[at] == wanted) & (wanted >= 0)
        launched[known] = times_s[at][known]
    return launched
