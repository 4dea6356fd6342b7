"""Rights, file systems, packages and variables of a host."""

from __future__ import annotations

from collections.abc import Iterator

from ioprobe.diagnosis.doctor_finding import Finding, judged
from ioprobe.run import Host, Surroundings

_IN_MEMORY = {"tmpfs", "ramfs"}
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "9p", "virtiofs"}


def system(host: Host, around: Surroundings) -> Iterator[Finding]:
    """Whether the system tells what is asked."""
    if around.system != "Linux":
        yield Finding(
            code="system",
            status="warn",
            found=f"{around.system or 'unknown system'}: no /proc, no cgroups",
            limits="time in line for a core, bytes read per worker, load of others, stacks of a live job",
            fix="measure on Linux; loader, step and storage throughput work here, too",
        )


def accelerators(host: Host, around: Surroundings) -> Iterator[Finding]:
    """Whether torch can use what is there."""
    names = sorted(set(host.accelerators))
    if not names:
        yield Finding(
            code="accelerator",
            status="note",
            found="no accelerator",
            limits="the step runs on the CPU and shares its cores with the workers",
            fix="name the step's time with --step-ms or --workload to stand for one",
        )
        return
    text = ", ".join(f"{host.accelerators.count(name)} x {name}" for name in names)
    if around.torch_asked and around.torch_accelerator is None:
        yield Finding(
            code="accelerator",
            status="warn",
            found=f"{text}, but torch {host.torch or 'is missing and'} cannot use it",
            limits="the step runs on the CPU",
            fix="install the build of torch that fits the driver: https://pytorch.org/get-started/locally",
        )
    else:
        yield Finding(code="accelerator", status="ok", found=text)


def rights(host: Host, around: Surroundings) -> Iterator[Finding]:
    """What the process may look at."""
    if around.tools.get("py-spy") is None:
        yield Finding(
            code="py-spy",
            status="warn",
            found="py-spy is not installed",
            limits="'ioprobe attach' has no stacks: it can tell busy from idle, not decode from read",
            fix="pip install py-spy",
        )
    elif around.system == "Linux":
        yield _ptrace(around)
    if around.io_uring is not None:
        yield judged(
            not around.io_uring,
            "io-uring",
            f"io_uring is {'allowed' if around.io_uring else 'not allowed'}",
            "'ioprobe storage' uses libaio or threads: lower ceiling at high depth",
            "sysctl kernel.io_uring_disabled=0; in a container: a seccomp profile that allows it",
            status="note",
        )
    missing = [name for name, there in (("schedstat", around.schedstat), ("io", around.process_io)) if not there]
    if missing and around.system == "Linux":
        yield Finding(
            code="proc",
            status="note",
            found="/proc/self/" + " and /proc/self/".join(missing) + " cannot be read",
            limits="time in line for a core counts as blocked, or bytes per worker are not measured",
            fix="use a kernel with CONFIG_SCHEDSTATS and CONFIG_TASK_IO_ACCOUNTING",
        )


def _ptrace(around: Surroundings) -> Finding:
    """Rules of Yama: 0 anyone's own, 1 descendants (or CAP_SYS_PTRACE), 2 CAP_SYS_PTRACE only, 3 nobody."""
    scope = around.ptrace_scope or 0
    lasting = scope == 3
    return judged(
        lasting or (scope >= 1 and not around.may_ptrace),
        "ptrace",
        f"kernel.yama.ptrace_scope is {scope}" + ("" if around.may_ptrace else " and the process lacks CAP_SYS_PTRACE"),
        "'ioprobe attach' cannot read the stacks of a job that it did not start",
        "reboot with another scope: 3 stays until then"
        if lasting
        else "sudo ioprobe attach ..., or sudo sysctl kernel.yama.ptrace_scope=0; docker run --cap-add SYS_PTRACE",
    )


def files(host: Host, around: Surroundings) -> Iterator[Finding]:
    """Where the files lie, and what can be written."""
    kind = around.working_filesystem
    if kind in _IN_MEMORY:
        yield Finding(
            code="working-directory",
            status="warn",
            found=f"the working directory is on {kind}",
            limits="data kept here is read from memory: storage figures say nothing of a disk",
            fix="keep the dataset on the storage that training reads from",
        )
    elif kind == "overlay":
        yield Finding(
            code="working-directory",
            status="note",
            found="the working directory is on overlay, a container's own layer",
            limits="reads pass one more layer, writes are lost with the container",
            fix="mount the dataset as a volume",
        )
    elif kind in _REMOTE or kind.startswith("fuse"):
        yield Finding(
            code="working-directory",
            status="note",
            found=f"the working directory is on {kind}, another machine",
            limits="storage figures include network and server, and whoever else uses them",
        )
    elif kind:
        yield Finding(code="working-directory", status="ok", found=f"the working directory is on {kind}")
    shut = [
        name
        for name, open_ in (
            ("working directory", around.working_writable),
            ("temporary folder", around.temp_writable),
            ("home", around.home_writable),
        )
        if not open_
    ]
    for name in shut:
        needed = name != "home"
        yield Finding(
            code="read-only",
            status="warn" if needed else "note",
            found=f"the {name} cannot be written",
            limits="runs and pages cannot be saved there" if needed else "caches of torch and fsspec have no place",
            fix="pass --output DIR, or set TMPDIR"
            if needed
            else "set XDG_CACHE_HOME and TORCH_HOME to a place that can",
        )


def packages(host: Host, around: Surroundings) -> Iterator[Finding]:
    """What is installed."""
    if host.torch is None:
        yield Finding(
            code="torch",
            status="warn",
            found="torch is not installed",
            limits="loaders and steps cannot be measured",
            fix="pip install torch",
        )
    else:
        yield Finding(code="torch", status="ok", found=f"torch {host.torch}, Python {host.python}")
    if around.tools.get("fio") is None:
        yield Finding(
            code="fio",
            status="note",
            found="fio is not installed",
            limits="'ioprobe storage' cannot be checked against it",
            fix="apt install fio",
        )


_SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel launch waits for the one before: the step is slower than in training",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated anew: the step is slower than in training",
    "PYTHONDEVMODE": "Python's development mode slows every call",
    "PYTHONMALLOC": "a debugging allocator slows every allocation",
    "PYTHONTRACEMALLOC": "every allocation is traced",
    "PYTHONASYNCIODEBUG": "asyncio checks itself",
    "TORCH_LOGS": "logging takes time from the step",
    "TORCH_DISTRIBUTED_DEBUG": "collectives check each other",
}


def environment(host: Host, around: Surroundings) -> Iterator[Finding]:
    """Variables that slow a run."""
    for name, limits in _SLOWING.items():
        if around.environment.get(name, "0") not in {"", "0", "default", "OFF"}:
            yield Finding(
                code="environment",
                status="warn",
                found=f"{name}={around.environment[name]}",
                limits=limits,
                fix=f"unset {name}",
            )
    if around.environment.get("LD_PRELOAD"):
        yield Finding(
            code="environment",
            status="note",
            found=f"LD_PRELOAD={around.environment['LD_PRELOAD']}",
            limits="another allocator or tracer changes memory and speed; keep it if training has it, too",
        )
