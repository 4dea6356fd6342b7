"""Cores, load, clocks, memory and limits of a host."""

from __future__ import annotations

from collections.abc import Iterator

from ioprobe.diagnosis.doctor_finding import Finding, judged
from ioprobe.run import Host, Surroundings
from ioprobe.units import format_bytes, format_count, format_share

_MIB, _GIB = 1 << 20, 1 << 30
_STEADY_CLOCKS = {"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"}
_SELF_PACING = {"intel_pstate", "amd-pstate-epp", "amd_pstate"}


def cores(host: Host, around: Surroundings) -> Iterator[Finding]:
    """What the process may use of the cores."""
    usable, all_cores = host.usable_cores, host.logical_cores
    text = f"{usable:g} of {all_cores} cores usable"
    if host.usable_cores_because == "cgroup":
        yield Finding(
            code="cores",
            status="warn",
            found=f"{text}: a cgroup quota of {usable:g}",
            limits=f"libraries that count the machine's cores start {all_cores} threads and are throttled in bursts",
            fix=f"set OMP_NUM_THREADS={max(1, int(usable))}, or ask for a larger quota (--cpus)",
        )
    elif host.usable_cores_because in {"affinity", "slurm"}:
        what = "CPU mask" if host.usable_cores_because == "affinity" else "the batch system's grant"
        yield Finding(code="cores", status="note", found=f"{text}: {what}", limits="advice keeps within them")
    else:
        yield Finding(code="cores", status="ok", found=text)
    if around.smt:
        yield Finding(
            code="smt",
            status="note",
            found="two logical cores share a physical one",
            limits="workers beyond half the cores add less than the first half",
        )
    if (around.numa_nodes or 1) > 1:
        yield Finding(
            code="numa",
            status="note",
            found=f"{around.numa_nodes} memory nodes",
            limits="a worker far from the accelerator's node copies slower, and figures scatter more",
            fix="bind a rank to the node of its accelerator: numactl --cpunodebind=N --membind=N",
        )


def threads(host: Host, around: Surroundings) -> Iterator[Finding]:
    """Thread pools wider than the cores."""
    set_to = {n: v for n, v in around.environment.items() if n.endswith("_NUM_THREADS") and v.isdecimal()}
    wide = {n: v for n, v in set_to.items() if int(v) > host.usable_cores}
    for name, value in wide.items():
        yield Finding(
            code="threads",
            status="warn",
            found=f"{name}={value} with {host.usable_cores:g} usable cores",
            limits="threads take the cores from workers; workers and step slow each other",
            fix=f"set {name} to at most {max(1, int(host.usable_cores))}",
        )


def load(host: Host, around: Surroundings) -> Iterator[Finding]:
    """Who else uses the machine."""
    seen = around.load
    if seen is None:
        return
    busy = seen.other_cores / seen.cores
    yield judged(
        busy > 0.1,
        "other-load",
        f"others use {seen.other_cores:.1f} of {seen.cores:g} cores ({format_share(busy)})",
        "every rate that needs the CPU reads low and scatters",
        "measure when the machine is idle, or bind others elsewhere (taskset, cgroup)",
    )
    if seen.steal_cores > 0.02 * seen.cores:
        yield Finding(
            code="steal",
            status="warn",
            found=f"the hypervisor takes {seen.steal_cores:.2f} cores",
            limits="no figure here is that of the machine alone",
            fix="use an instance with dedicated cores",
        )
    if (around.io_pressure or 0) > 0.1:
        yield Finding(
            code="io-pressure",
            status="warn",
            found=f"tasks wait for I/O {format_share(around.io_pressure)} of the time",
            limits="storage figures are what others leave over",
            fix="find who reads or writes: iotop, pidstat -d 1",
        )


def clock(host: Host, around: Surroundings) -> Iterator[Finding]:
    """Whether cores keep their speed and the clock is cheap."""
    governor = around.cpu_governor
    slow = governor in {"powersave", "ondemand", "conservative", "schedutil"} and around.cpu_driver not in _SELF_PACING
    if governor is not None:
        yield judged(
            slow,
            "governor",
            f"CPU governor {governor} ({around.cpu_driver or 'driver unknown'})",
            "short bursts of work run below full clock, so rates depend on how busy the core was",
            "sudo cpupower frequency-set -g performance",
        )
    if around.clock_source is not None and around.clock_source not in _STEADY_CLOCKS:
        yield Finding(
            code="clock-source",
            status="warn",
            found=f"kernel clock source {around.clock_source}",
            limits="each look at the clock costs about a microsecond: batches under 1 ms are timed too long",
            fix="boot with clocksource=tsc where the CPU's counter is steady",
        )


def memory(host: Host, around: Surroundings) -> Iterator[Finding]:
    """Room in memory."""
    if host.memory_available_bytes is not None:
        yield judged(
            host.memory_available_bytes < 2 * _GIB,
            "memory",
            f"{format_bytes(host.memory_available_bytes)} of {format_bytes(host.memory_bytes)} memory available",
            "workers may be killed, and the page cache is small",
            "free memory or raise the limit before measuring",
        )
    if (around.swap_used_bytes or 0) > 256 * _MIB:
        yield Finding(
            code="swap",
            status="warn",
            found=f"{format_bytes(around.swap_used_bytes)} swapped out",
            limits="the first touch of a page reads it back: long tails",
            fix="free memory, then sudo swapoff -a && sudo swapon -a",
        )
    if around.huge_pages == "always":
        yield Finding(
            code="huge-pages",
            status="note",
            found="transparent huge pages: always",
            limits="a forked worker that touches one object copies 2 MiB: memory per worker grows faster",
            fix="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )


def limits(host: Host, around: Surroundings) -> Iterator[Finding]:
    """Limits on what workers share: /dev/shm and open files."""
    if host.shm_bytes is not None:
        small = host.shm_bytes < _GIB
        larger = "docker run --shm-size=8g, or --ipc=host" if around.container else "mount -o remount,size=8G /dev/shm"
        yield judged(
            small or (host.shm_available_bytes is not None and host.shm_available_bytes < 256 * _MIB),
            "shm",
            f"/dev/shm: {format_bytes(host.shm_available_bytes)} free of {format_bytes(host.shm_bytes)}",
            "batches in flight that do not fit end a worker with a bus error",
            larger if small else "remove stale segments from /dev/shm",
        )
    else:
        yield Finding(
            code="shm",
            status="warn",
            found="no /dev/shm",
            limits="workers cannot hand tensors over by shared memory",
            fix="mount a tmpfs there, or torch.multiprocessing.set_sharing_strategy('file_system')",
        )
    if host.open_files_limit is not None:
        yield judged(
            host.open_files_limit < 4096,
            "open-files",
            f"{format_count(host.open_files_limit)} open files allowed",
            "each tensor in flight holds one: 'received 0 items of ancdata' or 'too many open files'",
            "ulimit -n 65536",
        )
