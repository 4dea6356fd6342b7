"""Look at what could spoil a measurement on this host: load, governor, limits, rights, file systems, variables."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ioprobe.probe.cgroups import read_text
from ioprobe.probe.engines import uring
from ioprobe.probe.host import package_version
from ioprobe.probe.load import LoadMeter
from ioprobe.probe.storage_place import place_of
from ioprobe.run import HostLoad, Surroundings

VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTHONDEVMODE",
    "PYTHONMALLOC",
    "PYTHONTRACEMALLOC",
    "PYTHONASYNCIODEBUG",
    "TORCH_LOGS",
    "TORCH_DISTRIBUTED_DEBUG",
    "NCCL_DEBUG",
    "LD_PRELOAD",
)
_CAP_SYS_PTRACE = 1 << 19


def measure_surroundings(
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    working: Path | None = None,
    load_s: float = 0.5,
    with_torch: bool = False,
    io_uring: Callable[[], bool] = uring.allowed,
) -> Surroundings:
    """Return what else about the host matters.

    Args:
        root: Where ``proc`` and ``sys`` are found.
        environ: This process's environment by default.
        working: The working directory by default.
        load_s: How long to watch the cores [s]; 0 skips it.
        with_torch: Import torch and ask it for an accelerator.
        io_uring: Tells whether this process may use io_uring.
    """
    environ = os.environ if environ is None else environ
    working = Path.cwd() if working is None else working
    capabilities = _field(root / "proc/self/status", "CapEff")
    return Surroundings(
        system=platform.system(),
        cpu_governor=_line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        cpu_driver=_line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"),
        smt=_flag(root / "sys/devices/system/cpu/smt/active"),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        clock_source=_line(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        load=_load(root, load_s),
        io_pressure=_pressure(root),
        swap_used_bytes=_swap(root),
        container=(root / ".dockerenv").exists() or (root / "run/.containerenv").exists(),
        ptrace_scope=_integer(_line(root / "proc/sys/kernel/yama/ptrace_scope")),
        may_ptrace=None if capabilities is None else bool(int(capabilities, 16) & _CAP_SYS_PTRACE),
        io_uring=io_uring(),
        huge_pages=_chosen(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        schedstat=bool(read_text(root / "proc/self/schedstat")),
        process_io="read_bytes" in read_text(root / "proc/self/io"),
        working_filesystem=place_of(working, read_text(root / "proc/self/mountinfo")).filesystem,
        working_writable=os.access(working, os.W_OK),
        temp_writable=_temp_writable(),
        home_writable=os.access(environ.get("HOME") or os.path.expanduser("~"), os.W_OK),  # noqa: PTH111
        tools={"py-spy": package_version("py-spy"), "fio": shutil.which("fio")},
        torch_accelerator=_torch_accelerator() if with_torch else None,
        torch_asked=with_torch,
        environment={name: environ[name] for name in VARIABLES if name in environ},
    )


def _load(root: Path, seconds: float) -> HostLoad | None:
    if seconds <= 0:
        return None
    meter = LoadMeter(root=root).start()
    time.sleep(seconds)
    return meter.stop()


def _pressure(root: Path) -> float | None:
    for line in read_text(root / "proc/pressure/io").splitlines():
        words = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        if line.startswith("some") and "avg10" in words:
            return float(words["avg10"]) / 100
    return None


def _swap(root: Path) -> int | None:
    meminfo = root / "proc/meminfo"
    sizes = [_integer((_field(meminfo, name) or "").split(" ")[0]) for name in ("SwapTotal", "SwapFree")]
    return None if sizes[0] is None or sizes[1] is None else (sizes[0] - sizes[1]) * 1024


def _temp_writable() -> bool:
    try:
        return os.access(tempfile.gettempdir(), os.W_OK)
    except OSError:  # Python found no folder that it may write to
        return False


def _torch_accelerator() -> str | None:
    from ioprobe.probe.device import current_device

    kind = str(current_device().type)
    return None if kind == "cpu" else kind


def _field(path: Path, name: str) -> str | None:
    for line in read_text(path).splitlines():
        key, colon, value = line.partition(":")
        if colon and key == name:
            return value.strip()
    return None


def _line(path: Path) -> str | None:
    return read_text(path).strip() or None


def _flag(path: Path) -> bool | None:
    text = _line(path)
    return None if text is None else text == "1"


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _chosen(path: Path) -> str | None:
    """The bracketed word of a kernel file such as ``always [madvise] never``."""
    text = read_text(path)
    return text.partition("[")[2].partition("]")[0] or None
