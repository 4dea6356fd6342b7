"""Facts of this machine, as far as they bound a measurement.

Everything comes from files under ``root`` (``/`` in real life, a fake tree in
tests), so that a container, a batch job or a nested cgroup can be tested
anywhere. A fact that the machine does not tell is None.
"""

from __future__ import annotations

import math
import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import msgspec

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
_NO_LIMIT = 1 << 60  # cgroup v1 writes "no memory limit" as a number near 2**63


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


def cgroup_cores(root: Path = Path("/")) -> float | None:
    """Return the tightest CPU quota [cores] of the process's cgroup and those above it, or None without one."""
    quotas = []
    for folder in cgroup_folders("cpu", root):
        if (both := read_text(folder / "cpu.max").split()) and both[0] != "max":
            quotas.append(float(both[0]) / float(both[1] if len(both) > 1 else 100_000))
        quota, period = _integer(folder / "cpu.cfs_quota_us"), _integer(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Return total and available memory [bytes], each the least of the machine's and what the cgroups leave."""
    facts = _table(root / "proc/meminfo")
    total, available = facts.get("MemTotal"), facts.get("MemAvailable")
    totals = [total * 1024] if total is not None else []
    rooms = [available * 1024] if available is not None else []
    for folder in cgroup_folders("memory", root):
        limit, used = _cgroup_memory(folder)
        if limit is not None:
            totals.append(limit)
            if used is not None:
                rooms.append(max(0, limit - used))
    return min(totals, default=None), min(rooms, default=None)


def _cgroup_memory(folder: Path) -> tuple[int | None, int | None]:
    """Limit of one cgroup and what it uses beyond page cache that the kernel would drop first [bytes]."""
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _integer(folder / limit_name), _integer(folder / used_name)
        if limit is None or limit >= _NO_LIMIT:
            continue
        cache = _table(folder / "memory.stat").get(cache_name, 0)
        return limit, None if used is None else max(0, used - cache)
    return None, None


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


def cgroup_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of the process's cgroup for a controller, own first, then every one above it.

    Both versions are looked at (a hybrid host mounts both). Where the cgroup
    lies outside what is mounted here, as in a container, the mount itself
    stands for it.
    """
    paths: dict[str, str] = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(",") if names else [""]:
            paths["" if number == "0" else name] = path
    folders: list[Path] = []
    for kind, options, mount_root, mount in _cgroup_mounts(root):
        key = "" if kind == "cgroup2" else controller
        if key not in paths or (kind == "cgroup" and controller not in options):
            continue
        base = root / mount.lstrip("/")
        below = _below(paths[key], mount_root)
        own = base / below
        folders += [base] if not below or not own.is_dir() else [own, *(p for p in own.parents if _is_in(p, base))]
    return folders


def _below(path: str, mount_root: str) -> str:
    """Path of a cgroup inside its mount, empty where it is the mount itself or lies outside."""
    if ".." in Path(path).parts:
        return ""
    if mount_root != "/" and path != mount_root and not path.startswith(mount_root + "/"):
        return ""
    return path.removeprefix(mount_root if mount_root != "/" else "").strip("/")


def _is_in(path: Path, base: Path) -> bool:
    return path == base or base in path.parents


def _cgroup_mounts(root: Path) -> Iterable[tuple[str, list[str], str, str]]:
    """File system type, options, root and place of each cgroup mount."""
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        if len(fields) > 4 and len(tail) > 2 and tail[0] in {"cgroup", "cgroup2"}:
            yield tail[0], tail[2].split(","), fields[3], fields[4]


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


def read_text(path: Path) -> str:
    """Return a small kernel file's text, empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _integer(path: Path) -> int | None:
    text = read_text(path).strip()
    try:
        value = float(text)
    except ValueError:
        return None
    return int(text) if math.isfinite(value) and text.lstrip("-").isdecimal() else None


def _table(path: Path) -> dict[str, int]:
    """A kernel file of ``name value`` or ``name: value kB`` lines."""
    found = {}
    for line in read_text(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdecimal():
            found[words[0]] = int(words[1])
    return found
