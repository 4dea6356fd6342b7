"""Facts of this machine, as far as they bound a measurement.

Everything comes from files under ``root`` (``/`` in real life, a fake tree in
tests), so that a container, a batch job or a nested cgroup can be tested
anywhere. A fact that the machine does not tell is None.
"""

from __future__ import annotations

import functools
import os
import platform
import socket
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from ioprobe.probe.cgroups import cgroup_cores, cgroup_folders, cgroup_memory, read_text, table
from ioprobe.run import Host

PACKAGES = [
    "numpy",
    "pillow",
    "pyarrow",
    "webdataset",
    "fsspec",
    "s3fs",
    "torchvision",
    "torchdata",
    "litdata",
    "mosaicml-streaming",
    "h5py",
    "zstandard",
    "py-spy",
]


def measure_host(*, with_torch: bool = False, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> Host:
    """Return the facts of this machine.

    Args:
        with_torch: Import torch to name accelerators that the driver does not list; without it torch is asked only
            where the process imported it already. Naming them through torch may start the accelerator's runtime.
        root: Where ``proc``, ``sys`` and ``dev`` are found.
        environ: Environment with the batch system's grant; this process's own by default.
    """
    environ = os.environ if environ is None else environ
    cores = usable_cores(root=root, environ=environ)
    total, available = memory(root)
    shm_total, shm_available = shared_memory(root)
    return Host(
        hostname=socket.gethostname(),
        platform=platform.platform(),
        cpu_model=_cpu_model(root),
        logical_cores=cores.logical,
        usable_cores=cores.usable,
        usable_cores_because=cores.because,
        memory_bytes=total,
        memory_available_bytes=available,
        shm_bytes=shm_total,
        shm_available_bytes=shm_available,
        open_files_limit=open_files_limit(),
        accelerators=accelerator_names(with_torch=with_torch, root=root, environ=environ),
        python=platform.python_version(),
        torch=_torch_version(),
        versions={name: found for name in PACKAGES if (found := package_version(name)) is not None},
    )


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """How many cores this process may use, and what says so."""

    logical: int
    """Cores of the machine."""
    affinity: int | None
    """Cores in the process's CPU mask."""
    cgroup: float | None
    """CPU quota of the tightest cgroup above the process; None without a quota."""
    slurm: int | None
    """Cores that the batch system granted to the task."""
    usable: float
    """The least of them."""
    because: str
    """``machine``, ``affinity``, ``cgroup`` or ``slurm``: the one that bound, the first where several agree."""


def usable_cores(*, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> Cores:
    """Return the cores this process may use: the least of machine, CPU mask, cgroup quota and the batch system."""
    environ = os.environ if environ is None else environ
    logical = _logical_cores(root)
    affinity, quota, slurm = _affinity(root), cgroup_cores(root), _slurm_cores(environ)
    usable, because = float(logical), "machine"
    for bound, name in ((affinity, "affinity"), (quota, "cgroup"), (slurm, "slurm")):
        if bound is not None and bound < usable:
            usable, because = float(bound), name
    return Cores(logical=logical, affinity=affinity, cgroup=quota, slurm=slurm, usable=usable, because=because)


def memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Return total and available memory [bytes], each the least of the machine's and what the cgroups leave."""
    facts = table(root / "proc/meminfo")
    total, available = facts.get("MemTotal"), facts.get("MemAvailable")
    totals = [total * 1024] if total is not None else []
    rooms = [available * 1024] if available is not None else []
    for folder in cgroup_folders("memory", root):
        limit, used = cgroup_memory(folder)
        if limit is not None:
            totals.append(limit)
            if used is not None:
                rooms.append(max(0, limit - used))
    return min(totals, default=None), min(rooms, default=None)


def shared_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Return size of /dev/shm and what is free in it [bytes]."""
    try:
        room = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize


def open_files_limit() -> int | None:
    """Return the soft limit of open files, or None where there is none."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _logical_cores(root: Path) -> int:
    lines = read_text(root / "proc/stat").splitlines()
    count = sum(1 for line in lines if line.startswith("cpu") and line[3:4].isdigit())
    return count or os.cpu_count() or 1


def _affinity(root: Path) -> int | None:
    if root == Path("/") and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    for line in read_text(root / "proc/self/status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return _count_list(line.partition(":")[2].strip())
    return None


def _count_list(text: str) -> int | None:
    """Number of CPUs in a kernel list such as ``0-3,8``."""
    count = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count or None


def _slurm_cores(environ: Mapping[str, str]) -> int | None:
    grants = [environ.get(name, "") for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")]
    return min((int(g) for g in grants if g.isdecimal() and int(g) > 0), default=None)


def _cpu_model(root: Path) -> str:
    for line in read_text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model", "cpu model"}:
            return value.strip()
    return platform.machine()


def _torch_version() -> str | None:
    loaded = getattr(sys.modules.get("torch"), "__version__", None)
    return package_version("torch") if loaded is None else str(loaded)


@functools.cache
def package_version(name: str) -> str | None:
    """Return the version of an installed package without importing it, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def accelerator_names(
    *, with_torch: bool = False, root: Path = Path("/"), environ: Mapping[str, str] | None = None
) -> list[str]:
    """Return the names of the accelerators, one entry each, empty where there are none.

    The driver's own listing comes first: reading it starts no runtime, so that
    worker processes can still be forked afterwards.
    """
    environ = os.environ if environ is None else environ
    found = _visible(_nvidia_names(root), environ.get("CUDA_VISIBLE_DEVICES")) or _amd_names(root)
    if found or not (with_torch or "torch" in sys.modules):
        return found
    from ioprobe.probe.device import device_names

    return device_names()


def _nvidia_names(root: Path) -> list[str]:
    names = []
    for info in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        for line in read_text(info).splitlines():
            key, _, value = line.partition(":")
            if key == "Model":
                names.append(value.strip())
    return names


def _visible(names: list[str], wanted: str | None) -> list[str]:
    """Those that CUDA_VISIBLE_DEVICES leaves; its list ends at the first entry that names no device."""
    if wanted is None:
        return names
    left: list[str] = []
    for entry in (e.strip() for e in wanted.split(",")):
        if entry.startswith(("GPU-", "MIG-")):
            # The driver's listing need not be in the order of the identifiers; the count is what holds.
            left += names[:1]
        elif entry.isdecimal() and int(entry) < len(names):
            left.append(names[int(entry)])
        else:
            break
    return left


def _amd_names(root: Path) -> list[str]:
    names = []
    for card in sorted((root / "sys/class/drm").glob("card[0-9]*/device/product_name")):
        if read_text(card.with_name("vendor")).strip() == "0x1002" and (name := read_text(card).strip()):
            names.append(name)
    return names
