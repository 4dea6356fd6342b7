"""What reports with known content are made of."""

from __future__ import annotations

from typing import Any

from ioprobe.diagnosis.types import (
    Diagnosis,
    Report,
    Rung,
    Timeline,
    WhatIfPoint,
)
from ioprobe.run import Host, LoaderSettings, Stage
from ioprobe.stats import Estimate

HOST = Host(
    hostname="node07",
    platform="Linux-6.8",
    cpu_model="AMD EPYC 7763",
    logical_cores=64,
    usable_cores=8.0,
    usable_cores_because="cgroup",
    memory_bytes=64 << 30,
    memory_available_bytes=48 << 30,
    shm_bytes=8 << 30,
    shm_available_bytes=7 << 30,
    accelerators=["NVIDIA H100 80GB HBM3"],
    python="3.11.9",
    torch="2.13.0",
    versions={"webdataset": "1.0.2", "pillow": "13.0.0"},
)
HOSTILE = "train\x1b[31m</script><img src=x onerror=alert(1)>\n\u202e{{ 7*7 }}|`@all`.py"


def about(value: float, relative: float = 0.02, n: int = 40) -> Estimate:
    """An estimate with a symmetric interval."""
    return Estimate(value, value * (1 - relative), value * (1 + relative), n)


def rungs(rates: dict[Stage, Estimate | None], lowest: Stage | None, details: dict[Stage, str]) -> list[Rung]:
    return [
        Rung(stage=stage, samples_per_s=value, lowest=stage is lowest, detail=details.get(stage, ""))
        for stage, value in rates.items()
    ]


def report(diagnosis: Diagnosis, **fields: Any) -> Report:
    values: dict[str, Any] = {
        "kind": "analyze",
        "created_at": "2026-11-28T01:02:03Z",
        "version": "0.1.0",
        "complete": True,
        "target": "data/train-{000..007}.tar",
        "command": "ioprobe analyze 'data/train-{000..007}.tar' --step-ms 20",
        "run": "ioprobe-runs/analyze-20261128-010203/run.json",
        "page": "ioprobe-runs/analyze-20261128-010203/report.html",
        "host": HOST,
        "settings": LoaderSettings(num_workers=2, prefetch_factor=2, batch_size=32),
        "diagnosis": diagnosis,
        **fields,
    }
    return Report(**values)


def timeline(batches: int = 120, warmup: int = 6, wait_s: float = 0.085, step_s: float = 0.0625) -> Timeline:
    start, starts, waits = 0.0, [], []
    for i in range(batches):
        wait = wait_s * (4 if i < warmup else 1 + 0.6 * ((i * 7919) % 13 / 12 - 0.5)) * (3 if i % 37 == 36 else 1)
        starts.append(round(start, 6))
        waits.append(round(wait, 6))
        start += wait + step_s
    return Timeline(
        start_s=starts, wait_s=waits, step_s=[step_s] * batches, warmup=[int(i < warmup) for i in range(batches)]
    )


def what_if() -> list[WhatIfPoint]:
    points = []
    for step_ms in (20, 62.5, 125):
        for prefetch in (2, 4):
            for workers in (0, 1, 2, 3, 4, 6, 8, 10, 12, 16):
                loader = 109.0 * min(workers, 7) * (1 if prefetch == 4 else 0.97) if workers else 92.0
                bound = 32e3 / step_ms
                loop = min(loader, bound) if workers else 1 / (1 / loader + 1 / bound)
                stall = max(0.0, 1 - loop / bound)
                settings = {"num_workers": workers, "prefetch_factor": prefetch, "step_ms": step_ms}
                points.append(
                    WhatIfPoint(
                        settings=settings,
                        samples_per_s=about(loop, 0.04),
                        stall_share=Estimate(stall, max(0, stall - 0.03), min(1, stall + 0.03), 1),
                    )
                )
    now = {"num_workers": 2, "prefetch_factor": 2, "step_ms": 62.5}
    points.append(WhatIfPoint(settings=now, samples_per_s=about(214), stall_share=about(0.582), measured=True))
    points.append(
        WhatIfPoint(
            settings={**now, "num_workers": 6}, samples_per_s=about(505, 0.01), stall_share=about(0.013), measured=True
        )
    )
    return points
