"""Facts of the machine, and who used it during a measurement."""

from __future__ import annotations

import msgspec


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the machine on which it was measured."""

    hostname: str = ""
    platform: str = ""
    cpu_model: str = ""
    logical_cores: int = 1
    """Cores of the machine."""
    usable_cores: float = 1.0
    """Cores this process may use: the least of affinity, cgroup quota and the batch system's grant."""
    usable_cores_because: str = ""
    """Which of them bound: ``machine``, ``affinity``, ``cgroup`` or ``slurm``."""
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    """The least of MemAvailable and what the cgroup leaves."""
    shm_bytes: int | None = None
    shm_available_bytes: int | None = None
    """Room in /dev/shm."""
    open_files_limit: int | None = None
    accelerators: list[str] = []
    """Names of the accelerators, one entry each."""
    python: str = ""
    torch: str | None = None
    versions: dict[str, str] = {}
    """Versions of the other packages that matter to the figures."""


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Who used the cores during a measurement."""

    window_s: float
    own_cores: float
    """Cores used by the measured processes (main and workers) on average."""
    other_cores: float
    """Cores used by everything else."""
    steal_cores: float = 0.0
    """Cores the hypervisor took."""
    cores: float = 1.0


class ProcessLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says of one process of a job over a window, stacks aside."""

    role: str
    """``main`` or ``worker``."""
    pid: int
    window_s: float
    cpu_s: float
    """CPU time of all its threads within the window [s]."""
    read_bytes: int | None = None
    """Through read(2) and the like; None where the kernel does not tell."""
    read_ops: int | None = None
    device_read_bytes: int | None = None
    """Of them, from a block device."""
    states: dict[str, int] = {}
    """How often its main thread was seen ``running``, in ``disk`` wait, or asleep in a kernel function by name."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What else about a host can spoil a measurement there; None where the host does not tell."""

    system: str = "Linux"
    cpu_governor: str | None = None
    cpu_driver: str | None = None
    smt: bool | None = None
    """Whether two logical cores share a physical one."""
    numa_nodes: int | None = None
    clock_source: str | None = None
    load: HostLoad | None = None
    """Over a short look, this process apart."""
    io_pressure: float | None = None
    """Share of the last ten seconds in which some task waited for I/O [fraction]."""
    swap_used_bytes: int | None = None
    container: bool = False
    ptrace_scope: int | None = None
    """Yama's ``kernel.yama.ptrace_scope``; None without Yama, which forbids nothing."""
    may_ptrace: bool | None = None
    """Whether the process holds CAP_SYS_PTRACE."""
    io_uring: bool | None = None
    huge_pages: str | None = None
    """``always``, ``madvise`` or ``never``."""
    schedstat: bool = False
    """Whether the kernel tells how long a thread stood in line for a core."""
    process_io: bool = False
    """Whether the kernel tells how many bytes a process read."""
    working_filesystem: str = ""
    """Of the working directory."""
    working_writable: bool = True
    temp_writable: bool = True
    home_writable: bool = True
    tools: dict[str, str | None] = {}
    """``py-spy`` and ``fio`` with their versions (or places); None where missing."""
    torch_accelerator: str | None = None
    """Device type that torch can use here; None where it can use none, or was not asked."""
    torch_asked: bool = False
    environment: dict[str, str] = {}
    """Variables that change speed or timing, as they are set."""
