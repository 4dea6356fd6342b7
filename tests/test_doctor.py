"""What would spoil a measurement, and what doctor says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from ioprobe.diagnosis.doctor import Finding, examine
from ioprobe.probe.surroundings import measure_surroundings
from ioprobe.report.doctor import render
from ioprobe.run import Host, HostLoad, Surroundings
from ioprobe_cli.main import cli

GIB = 1 << 30
HOST = Host(
    hostname="node1",
    platform="Linux-6",
    cpu_model="Fake CPU",
    logical_cores=8,
    usable_cores=8.0,
    usable_cores_because="machine",
    memory_bytes=16 * GIB,
    memory_available_bytes=12 * GIB,
    shm_bytes=8 * GIB,
    shm_available_bytes=8 * GIB,
    open_files_limit=65536,
    accelerators=["NVIDIA A10"],
    python="3.11.1",
    torch="2.9.0",
)
WELL = Surroundings(
    cpu_governor="performance",
    cpu_driver="intel_pstate",
    smt=False,
    numa_nodes=1,
    clock_source="tsc",
    load=HostLoad(window_s=0.5, own_cores=0.0, other_cores=0.1, cores=8.0),
    io_pressure=0.0,
    swap_used_bytes=0,
    ptrace_scope=0,
    may_ptrace=False,
    io_uring=True,
    huge_pages="madvise",
    schedstat=True,
    process_io=True,
    working_filesystem="ext4",
    tools={"py-spy": "0.4.0", "fio": "/usr/bin/fio"},
    torch_accelerator="cuda",
    torch_asked=True,
)


def changed(value: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(value, **changes)


def test_a_quiet_host_has_nothing_to_complain_about() -> None:
    assert {f.status for f in examine(HOST, WELL)} == {"ok"}


@pytest.mark.parametrize(
    ("host", "around", "code", "status", "words"),
    [
        (
            {"usable_cores": 2.5, "usable_cores_because": "cgroup"},
            {},
            "cores",
            "warn",
            "2.5 of 8 cores usable: a cgroup",
        ),
        ({"usable_cores": 2.0, "usable_cores_because": "slurm"}, {}, "cores", "note", "2 of 8 cores usable"),
        (
            {"usable_cores": 2.0},
            {"environment": {"OMP_NUM_THREADS": "8"}},
            "threads",
            "warn",
            "OMP_NUM_THREADS=8 with 2",
        ),
        ({"memory_available_bytes": GIB}, {}, "memory", "warn", "1.0 GiB of 16.0 GiB"),
        ({"shm_bytes": 64 << 20}, {}, "shm", "warn", "free of 64.0 MiB"),
        ({"shm_available_bytes": 1 << 20}, {}, "shm", "warn", "1.0 MiB free"),
        ({"shm_bytes": None}, {}, "shm", "warn", "no /dev/shm"),
        ({"open_files_limit": 1024}, {}, "open-files", "warn", "1,024 open files"),
        ({"accelerators": []}, {}, "accelerator", "note", "no accelerator"),
        ({}, {"torch_accelerator": None}, "accelerator", "warn", "1 x NVIDIA A10, but torch 2.9.0 cannot use it"),
        ({"torch": None}, {}, "torch", "warn", "not installed"),
        ({}, {"cpu_governor": "powersave", "cpu_driver": "acpi-cpufreq"}, "governor", "warn", "powersave"),
        ({}, {"clock_source": "hpet"}, "clock-source", "warn", "hpet"),
        (
            {},
            {"load": HostLoad(window_s=1, own_cores=0, other_cores=4, cores=8)},
            "other-load",
            "warn",
            "4.0 of 8 cores",
        ),
        (
            {},
            {"load": HostLoad(window_s=1, own_cores=0, other_cores=0, steal_cores=0.4, cores=8)},
            "steal",
            "warn",
            "0.40 cores",
        ),
        ({}, {"io_pressure": 0.25}, "io-pressure", "warn", "25.0% of the time"),
        ({}, {"swap_used_bytes": GIB}, "swap", "warn", "1.0 GiB swapped out"),
        ({}, {"huge_pages": "always"}, "huge-pages", "note", "always"),
        ({}, {"smt": True}, "smt", "note", "share a physical one"),
        ({}, {"numa_nodes": 2}, "numa", "note", "2 memory nodes"),
        ({}, {"ptrace_scope": 1}, "ptrace", "warn", "ptrace_scope is 1 and the process lacks CAP_SYS_PTRACE"),
        ({}, {"ptrace_scope": 3, "may_ptrace": True}, "ptrace", "warn", "ptrace_scope is 3"),
        ({}, {"tools": {"py-spy": None, "fio": "x"}}, "py-spy", "warn", "not installed"),
        ({}, {"tools": {"py-spy": "0.4", "fio": None}}, "fio", "note", "not installed"),
        ({}, {"io_uring": False}, "io-uring", "note", "not allowed"),
        ({}, {"schedstat": False}, "proc", "note", "/proc/self/schedstat cannot be read"),
        ({}, {"working_filesystem": "tmpfs"}, "working-directory", "warn", "on tmpfs"),
        ({}, {"working_filesystem": "overlay"}, "working-directory", "note", "on overlay"),
        ({}, {"working_filesystem": "nfs4"}, "working-directory", "note", "another machine"),
        ({}, {"home_writable": False}, "read-only", "note", "the home cannot be written"),
        ({}, {"working_writable": False}, "read-only", "warn", "the working directory cannot be written"),
        ({}, {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}, "environment", "warn", "CUDA_LAUNCH_BLOCKING=1"),
        ({}, {"system": "Darwin"}, "system", "warn", "Darwin: no /proc"),
    ],
)
def test_what_spoils_a_measurement_is_named_with_what_it_limits_and_a_fix(
    host: dict[str, Any], around: dict[str, Any], code: str, status: str, words: str
) -> None:
    findings = examine(changed(HOST, **host), changed(WELL, **around))
    found = [f for f in findings if f.code == code and f.status != "ok"]
    assert len(found) == 1
    assert found[0].status == status
    assert words in found[0].found
    assert found[0].limits
    assert found[0].fix or status == "note"
    others = [f for f in findings if f.status != "ok" and f is not found[0]]
    assert others == []


@pytest.mark.parametrize(
    "around",
    [
        {"ptrace_scope": 1, "may_ptrace": True},
        {"ptrace_scope": None},
        {"cpu_governor": "powersave", "cpu_driver": "intel_pstate"},
        {"cpu_governor": None},
        {"load": None},
        {"environment": {"CUDA_LAUNCH_BLOCKING": "0", "OMP_NUM_THREADS": "1"}},
    ],
)
def test_what_only_looks_bad_is_no_complaint(around: dict[str, Any]) -> None:
    assert {f.status for f in examine(HOST, changed(WELL, **around))} == {"ok"}


def test_what_spoils_most_comes_first() -> None:
    around = changed(WELL, huge_pages="always", swap_used_bytes=GIB)
    assert [f.status for f in examine(HOST, around)][:2] == ["warn", "note"]


def test_the_page_says_what_is_found_limited_and_mended() -> None:
    findings = [
        Finding(code="shm", status="warn", found="/dev/shm is \x1b[31msmall", limits="workers die", fix="enlarge it"),
        Finding(code="torch", status="ok", found="torch 2.9.0"),
    ]
    text = render(HOST, findings, width=80, unicode=False)
    assert text.splitlines()[-7:] == [
        "Spoils measurements here",
        "! /dev/shm is \\x1b[31msmall",
        "     limits   workers die",
        "     fix      enlarge it",
        "",
        "Well",
        "+ torch 2.9.0",
    ]


def test_surroundings_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    files = {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq\n",
        "sys/devices/system/cpu/smt/active": "1\n",
        "sys/devices/system/node/node0/cpulist": "0\n",
        "sys/devices/system/node/node1/cpulist": "1\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "proc/pressure/io": "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=1.00 total=1\n",
        "proc/meminfo": "SwapTotal: 4000 kB\nSwapFree: 1000 kB\n",
        "proc/sys/kernel/yama/ptrace_scope": "1\n",
        "proc/self/status": "CapEff:\t0000000000080000\n",
        "proc/self/schedstat": "1 2 3\n",
        "proc/self/io": "rchar: 1\nread_bytes: 2\n",
        "proc/self/mountinfo": "1 1 0:1 / / rw - overlay overlay rw\n",
        ".dockerenv": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    around = measure_surroundings(
        root=tmp_path,
        environ={"HOME": str(tmp_path), "OMP_NUM_THREADS": "4", "SECRET_KEY": "x"},
        load_s=0,
        io_uring=lambda: False,
    )
    assert (around.cpu_governor, around.cpu_driver, around.smt, around.numa_nodes) == (
        "schedutil",
        "acpi-cpufreq",
        True,
        2,
    )
    assert (around.clock_source, around.huge_pages, around.io_pressure) == ("hpet", "always", 0.125)
    assert (around.swap_used_bytes, around.ptrace_scope, around.may_ptrace) == (3000 * 1024, 1, True)
    assert (around.schedstat, around.process_io, around.working_filesystem) == (True, True, "overlay")
    assert (around.container, around.io_uring, around.load) == (True, False, None)
    assert around.environment == {"OMP_NUM_THREADS": "4"}


def test_what_the_kernel_does_not_tell_is_none(tmp_path: Path) -> None:
    around = measure_surroundings(root=tmp_path, environ={}, load_s=0, io_uring=lambda: True)
    assert (around.cpu_governor, around.smt, around.numa_nodes, around.clock_source) == (None, None, None, None)
    assert (around.io_pressure, around.swap_used_bytes, around.ptrace_scope, around.may_ptrace) == (None,) * 4
    assert (around.schedstat, around.process_io) == (False, False)


def test_doctor_prints_json_for_scripts() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--format", "json", "--no-torch"])
    assert result.exit_code == 0
    page = json.loads(result.stdout)
    assert (page["schema"], page["kind"]) == (1, "doctor")
    assert page["host"]["logical_cores"] >= 1
    assert {f["status"] for f in page["findings"]} <= {"ok", "note", "warn"}
    assert "cores" in {f["code"] for f in page["findings"]}


def test_doctor_prints_a_page_for_people() -> None:
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 0
    assert "cores usable" in result.stdout
    assert "torch" in result.stdout
