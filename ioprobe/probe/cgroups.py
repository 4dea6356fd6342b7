"""Limits of control groups, both versions, up the whole tree; and small kernel files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

_NO_LIMIT = 1 << 60  # cgroup v1 writes "no memory limit" as a number near 2**63


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


def cgroup_memory(folder: Path) -> tuple[int | None, int | None]:
    """Limit of one cgroup and what it uses beyond page cache that the kernel would drop first [bytes]."""
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _integer(folder / limit_name), _integer(folder / used_name)
        if limit is None or limit >= _NO_LIMIT:
            continue
        cache = table(folder / "memory.stat").get(cache_name, 0)
        return limit, None if used is None else max(0, used - cache)
    return None, None


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


def table(path: Path) -> dict[str, int]:
    """A kernel file of ``name value`` or ``name: value kB`` lines."""
    found = {}
    for line in read_text(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdecimal():
            found[words[0]] = int(words[1])
    return found
