"""Facts of the host, from fake trees."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ioprobe.probe.cgroups import cgroup_cores
from ioprobe.probe.host import (
    accelerator_names,
    measure_host,
    memory,
    package_version,
    shared_memory,
    usable_cores,
)
from ioprobe.probe.load import LoadMeter, cpu_times

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def machine(root: Path, cores: int = 8, **more: str) -> Path:
    stat = "cpu  0 0 0 0 0 0 0 0 0 0\n" + "".join(f"cpu{i} 0 0 0 0 0 0 0 0 0 0\n" for i in range(cores))
    return write(
        root,
        {
            "proc/stat": stat,
            "proc/self/status": f"Name:\tx\nCpus_allowed_list:\t0-{cores - 1}\n",
            "proc/meminfo": f"MemTotal:  {16 * GIB // 1024} kB\nMemAvailable: {12 * GIB // 1024} kB\n",
            "proc/cpuinfo": "processor : 0\nmodel name : Fake CPU\n",
            **more,
        },
    )


V2_MOUNT = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


def test_without_limits_every_core_of_the_machine_is_usable(tmp_path: Path) -> None:
    found = usable_cores(root=machine(tmp_path), environ={})
    assert (found.logical, found.usable, found.because, found.cgroup, found.slurm) == (8, 8.0, "machine", None, None)


def test_the_affinity_mask_bounds_the_cores(tmp_path: Path) -> None:
    machine(tmp_path, **{"proc/self/status": "Cpus_allowed_list:\t0-1,5\n"})
    found = usable_cores(root=tmp_path, environ={})
    assert (found.usable, found.because, found.affinity) == (3.0, "affinity", 3)


def test_the_tightest_cgroup_up_the_tree_bounds_the_cores(tmp_path: Path) -> None:
    machine(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/pod/box/inner\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/box/inner/cpu.max": "400000 100000\n",
        },
    )
    found = usable_cores(root=tmp_path, environ={})
    assert (found.usable, found.because) == (1.5, "cgroup")


def test_a_cgroup_v1_quota_is_read_and_minus_one_means_none(tmp_path: Path) -> None:
    machine(
        tmp_path,
        **{
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc/job\n3:memory:/docker/abc\n",
            "proc/self/mountinfo": (
                "31 30 0:27 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
            ),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_cores(tmp_path) == 2.5


def test_inside_a_container_the_mount_stands_for_a_cgroup_that_lies_outside(tmp_path: Path) -> None:
    machine(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/../../other\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
        },
    )
    assert cgroup_cores(tmp_path) == 0.5


@pytest.mark.parametrize(
    ("environ", "cores", "because"),
    [
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "6"}, 4.0, "slurm"),
        ({"SLURM_CPUS_ON_NODE": "6"}, 6.0, "slurm"),
        ({"SLURM_CPUS_PER_TASK": "8"}, 8.0, "machine"),
        ({"SLURM_CPUS_PER_TASK": "none", "SLURM_CPUS_ON_NODE": "0"}, 8.0, "machine"),
    ],
)
def test_the_batch_system_bounds_the_cores(tmp_path: Path, environ: dict[str, str], cores: float, because: str) -> None:
    found = usable_cores(root=machine(tmp_path), environ=environ)
    assert (found.usable, found.because) == (cores, because)


def test_memory_is_the_least_of_the_machine_and_every_cgroup_above(tmp_path: Path) -> None:
    machine(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {GIB}\n",
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
        },
    )
    assert memory(tmp_path) == (4 * GIB, 2 * GIB)


def test_the_huge_number_of_cgroup_v1_is_no_memory_limit(tmp_path: Path) -> None:
    machine(
        tmp_path,
        **{
            "proc/self/cgroup": "3:memory:/\n",
            "proc/self/mountinfo": "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
        },
    )
    assert memory(tmp_path) == (16 * GIB, 12 * GIB)


def test_what_the_machine_does_not_tell_is_none(tmp_path: Path) -> None:
    assert memory(tmp_path) == (None, None)
    assert shared_memory(tmp_path) == (None, None)
    assert cpu_times(tmp_path) is None
    assert cgroup_cores(tmp_path) is None


def test_shared_memory_is_size_and_room_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = SimpleNamespace(f_blocks=16384, f_bavail=16000, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    assert shared_memory(tmp_path) == (64 << 20, 16000 * 4096)


def test_accelerators_are_named_by_the_driver_and_hidden_ones_are_left_out(tmp_path: Path) -> None:
    for index, name in enumerate(["NVIDIA H100 80GB HBM3", "NVIDIA A10"]):
        write(tmp_path, {f"proc/driver/nvidia/gpus/0000:0{index}:00.0/information": f"Model: \t {name}\nIRQ: 1\n"})
    assert accelerator_names(root=tmp_path, environ={}) == ["NVIDIA H100 80GB HBM3", "NVIDIA A10"]
    assert accelerator_names(root=tmp_path, environ={"CUDA_VISIBLE_DEVICES": "1"}) == ["NVIDIA A10"]
    amd = {"product_name": "AMD Instinct MI300X\n", "vendor": "0x1002\n"}
    write(tmp_path / "amd", {f"sys/class/drm/card0/device/{name}": text for name, text in amd.items()})
    assert accelerator_names(root=tmp_path / "amd", environ={}) == ["AMD Instinct MI300X"]


def test_the_whole_host_is_described_from_the_tree(tmp_path: Path) -> None:
    host = measure_host(root=machine(tmp_path), environ={"SLURM_CPUS_PER_TASK": "2"})
    assert (host.cpu_model, host.logical_cores, host.usable_cores, host.usable_cores_because) == (
        "Fake CPU",
        8,
        2.0,
        "slurm",
    )
    assert host.memory_bytes == 16 * GIB
    assert host.versions["numpy"] == package_version("numpy")
    assert package_version("no-such-package-here") is None


def stat(pid: int, parent: int, user: int, buried: int = 0, name: str = "python") -> str:
    zeros = " ".join("0" * 9)
    return f"{pid} ({name}) S {parent} {zeros} {user} 0 {buried} 0 20 0 1 0 0\n"


def snapshot(root: Path, busy: int, steal: int, processes: list[tuple[int, int, int, int]]) -> None:
    for old in (root / "proc").glob("[0-9]*/stat"):
        old.unlink()
    write(root, {"proc/stat": f"cpu  {busy} 0 0 99 0 0 0 {steal} 0 0\ncpu0 0\ncpu1 0\ncpu2 0\ncpu3 0\n"})
    for pid, parent, user, buried in processes:
        write(root, {f"proc/{pid}/stat": stat(pid, parent, user, buried, name="a (b) c")})


def test_load_is_split_into_own_other_and_stolen_cores(tmp_path: Path) -> None:
    hz = os.sysconf("SC_CLK_TCK")
    clock = iter([100.0, 102.0])
    snapshot(tmp_path, 0, 0, [(10, 1, 5 * hz, 0), (11, 10, 0, 0), (50, 1, 0, 0)])
    meter = LoadMeter(root=tmp_path, clock=lambda: next(clock)).start(10)
    # In two seconds: the parent one, its child two (ended, so its parent counts it), a grandchild-to-be half.
    snapshot(tmp_path, 5 * hz, hz, [(10, 1, 6 * hz, 2 * hz), (12, 10, hz // 2, 0), (50, 1, hz, 0)])
    load = meter.stop()
    assert load is not None
    assert (load.window_s, load.own_cores, load.other_cores, load.steal_cores, load.cores) == (
        2.0,
        1.75,
        0.75,
        0.5,
        4.0,
    )


def test_a_process_that_is_gone_by_the_end_counts_up_to_the_last_look(tmp_path: Path) -> None:
    hz = os.sysconf("SC_CLK_TCK")
    clock = iter([0.0, 1.0, 2.0])
    snapshot(tmp_path, 0, 0, [(10, 1, 0, 0)])
    meter = LoadMeter(root=tmp_path, clock=lambda: next(clock)).start(10)
    snapshot(tmp_path, hz, 0, [(10, 1, hz, 0)])
    meter.sample()
    snapshot(tmp_path, 4 * hz, 0, [])
    load = meter.stop()
    assert load is not None
    assert (load.window_s, load.own_cores, load.other_cores) == (1.0, 1.0, 0.0)


def test_load_is_not_measured_where_the_kernel_tells_nothing(tmp_path: Path) -> None:
    clock = iter([0.0, 1.0])
    assert LoadMeter(root=tmp_path, clock=lambda: next(clock)).start(1).stop() is None
    with pytest.raises(ValueError, match="not started"):
        LoadMeter(root=tmp_path).stop()
