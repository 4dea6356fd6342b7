"""Where a path lies: file system, device, what it allows, and what that means for a figure."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from ioprobe.run import Caveat
from ioprobe.units import format_bandwidth, format_bytes

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "afs", "virtiofs"}
)
_STATX_DIOALIGN = 0x2000
_AT_FDCWD = -100
_NR_STATX = {"x86_64": 332, "aarch64": 291}


@dataclass(frozen=True)
class Place:
    """Facts of the mount that holds a path."""

    filesystem: str
    """``ext4``, ``tmpfs``, ``overlay``, ``nfs4``, ...; empty where unknown."""
    source: str
    """Device or server."""
    mount: str

    @property
    def in_memory(self) -> bool:
        """The files lie in RAM: there is no device."""
        return self.filesystem in MEMORY_FILESYSTEMS

    @property
    def remote(self) -> bool:
        """The files lie on another machine."""
        return self.filesystem in NETWORK_FILESYSTEMS or self.filesystem.startswith("fuse")


def place_of(path: str | os.PathLike[str], mountinfo: str | None = None) -> Place:
    """Return the mount that holds a path (the longest mount point above it, the newest of equals)."""
    where = os.path.realpath(path)
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return Place("", "", "")
    best = Place("", "", "")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(kind) < 2:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.mount):
            best = Place(kind[0], kind[1], point)
    return best


def shown(path: str) -> str:
    """Return a path as it can be printed and stored: bytes that are no UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def direct_alignment(path: str | os.PathLike[str]) -> int | None:
    """Return the offset alignment [bytes] that O_DIRECT needs here, 0 where it is not supported, None if untold."""
    number = _NR_STATX.get(platform.machine())
    if number is None:
        return None
    buffer = ctypes.create_string_buffer(256)
    call = ctypes.CDLL(None, use_errno=True).syscall
    if call(number, _AT_FDCWD, os.fsencode(path), 0, _STATX_DIOALIGN | 0x7FF, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("I", buffer.raw, 0)
    return int(struct.unpack_from("I", buffer.raw, 0x9C)[0]) if mask & _STATX_DIOALIGN else None


def memory_caveat(place: Place) -> Caveat:
    """The files lie in RAM."""
    return Caveat(
        "memory-filesystem",
        f"'{place.mount}' is {place.filesystem}: the files lie in RAM, there is no device; "
        "O_DIRECT is accepted or ignored and every figure is memory speed",
        "measure where the training data will really lie",
    )


def not_dropped_caveat(place: Place, share: float | None, reason: str) -> Caveat:
    """The cache could not be emptied."""
    left = "cannot be seen" if share is None else f"{100 * share:.0f}% stayed"
    why = reason or {
        "overlay": "an overlay keeps the lower layer's pages",
    }.get(place.filesystem, "pages that a process maps or that are being written stay")
    return Caveat(
        "cache-not-dropped",
        f"the page cache could not be emptied ({left}: {why}): the figure is a mix of cache and storage",
        "measure with --direct, on files larger than memory, or right after a remount",
    )


def network_caveat(place: Place) -> Caveat:
    """Dropping the local cache says nothing of the server's."""
    return Caveat(
        "remote-cache",
        f"'{place.mount}' is {place.filesystem}: the local page cache was dropped, the server's cannot be seen",
        "measure data that nobody has read lately, more than the server's memory",
    )


def fits_in_memory_caveat(
    dataset_bytes: int, available_bytes: int, cold_bytes_per_s: float | None, warm_bytes_per_s: float | None
) -> Caveat:
    """Epoch 2 is another regime than epoch 1."""
    rates = ""
    if warm_bytes_per_s is not None:
        cold = f" against {format_bandwidth(cold_bytes_per_s)} cold" if cold_bytes_per_s is not None else ""
        rates = f" ({format_bandwidth(warm_bytes_per_s)}{cold})"
    return Caveat(
        "fits-in-memory",
        f"the dataset fits in RAM ({format_bytes(dataset_bytes)} of {format_bytes(available_bytes)} available): "
        f"epoch 2 will run at memory speed{rates}",
        "judge the first epoch by the cold figure and later epochs by the warm one",
    )
