"""Time and memory to load, diagnose and render the run of a large job, and the size of its page.

    python benchmarks/large_run.py                          # 64 ranks, 1e6 batches in all
    python benchmarks/large_run.py --ranks 8 --batches 80000

The run file is generated: every batch of every rank with all columns of the main process and of the worker that made
it, times with all their digits, one rank late. It is written rank by rank, then read by a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from ioprobe.run import (
    Host,
    LoaderFacts,
    LoaderRun,
    LoaderSettings,
    MainBatches,
    Run,
    StackShares,
    Stage,
    StepRun,
    WorkerBatches,
    Workload,
)

LIMITS = {"seconds": 20.0, "peak_bytes": 2e9, "page_bytes": 8e6}
WORKERS = 4
STEP_S = 0.050

READ = """
import json, resource, sys, time
import ioprobe.analysis.reporting as reporting, ioprobe.report.html as html, ioprobe.run as run_file
marks = [time.perf_counter()]
run = run_file.load(sys.argv[1]); marks.append(time.perf_counter())
report = reporting.report_from_run(run, run_path=sys.argv[1]); marks.append(time.perf_counter())
page = html.render(report); marks.append(time.perf_counter())
late = [r.rank for r in report.ranks if r.late]
print(json.dumps({
    "load_s": marks[1] - marks[0], "diagnose_s": marks[2] - marks[1], "render_s": marks[3] - marks[2],
    "seconds": marks[3] - marks[0], "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "page_bytes": len(page.encode()), "ranks": len(report.ranks), "late": late,
    "cpu_s": time.process_time(), "verdict": report.diagnosis.verdict.value,
}))
"""


def rank_run(rank: int, ranks: int, batches: int, late: int, rng: np.random.Generator) -> Run:
    """Return one rank's run: a loop of so many batches, in which the late rank waits for its data."""
    slow = 3.0 if rank == late else 1.0
    fetch = rng.gamma(20.0, slow * 0.9 * WORKERS * STEP_S / 20.0, batches)
    wait = np.maximum(2e-4, rng.normal(0.02 if rank == late else 2e-4, 1e-4, batches))
    pace = STEP_S + 0.02 + 5e-4
    step = np.maximum(0.01, pace - wait + rng.normal(0.0, 1e-4, batches))
    meeting = np.maximum(1e-3, step - STEP_S + 0.005)
    call = np.cumsum(wait + step + 3e-5)
    collate = rng.gamma(20.0, 5e-5, batches)
    ints = np.arange(batches)
    main = MainBatches(
        call_s=call.tolist(),
        wait_s=wait.tolist(),
        wait_cpu_s=(0.1 * wait).tolist(),
        sampler_s=rng.gamma(9.0, 2e-6, batches).tolist(),
        transport_s=rng.gamma(9.0, 2e-5, batches).tolist(),
        release_s=rng.gamma(9.0, 3e-6, batches).tolist(),
        step_s=step.tolist(),
        samples=[32] * batches,
        ready=rng.integers(0, 8, batches).tolist(),
        epoch=(ints // 5000).tolist(),
        meeting_s=meeting.tolist(),
    )
    start = np.maximum(0.0, call - fetch)
    workers = WorkerBatches(
        worker=(ints % WORKERS).tolist(),
        index=ints.tolist(),
        start_s=start.tolist(),
        idle_s=rng.gamma(9.0, 1e-4, batches).tolist(),
        fetch_wall_s=fetch.tolist(),
        fetch_cpu_s=(0.8 * fetch).tolist(),
        fetch_runq_s=(0.02 * fetch).tolist(),
        collate_wall_s=collate.tolist(),
        collate_cpu_s=collate.tolist(),
        collate_runq_s=[0.0] * batches,
        other_cpu_s=rng.gamma(9.0, 1e-5, batches).tolist(),
        put_s=(start + fetch).tolist(),
        nbytes=[19_267_584] * batches,
        read_bytes=rng.integers(3_000_000, 4_000_000, batches).tolist(),
        read_ops=rng.integers(30, 40, batches).tolist(),
    )
    settings = LoaderSettings(num_workers=WORKERS, prefetch_factor=2, batch_size=32, persistent_workers=True)
    stages = {Stage.READ: 900, Stage.DECODE: 7000, Stage.TRANSFORM: 2100}
    return Run(
        kind="analyze",
        created_at="2026-11-28T00:00:00+00:00",
        version="0",
        host=Host(hostname=f"node{rank // 8}", logical_cores=64, usable_cores=8.0, memory_available_bytes=400 << 30),
        workload=Workload(target="train.py:make_loader", command="ioprobe analyze train.py:make_loader"),
        facts=LoaderFacts(kind="map", settings=settings),
        loaders=[
            LoaderRun(
                coupled=True,
                settings=settings,
                main=main,
                workers=workers,
                warmup_batches=8,
                stacks=[StackShares(role="worker", samples=10_000, stages=stages)],
                batch_bytes=19_267_584,
            )
        ],
        step=StepRun(durations_s=rng.normal(STEP_S, 5e-4, 400).tolist(), samples_per_step=32, device="cuda:0"),
        rank=rank,
        world_size=ranks,
        local_ranks=8,
    )


def generate(place: Path, ranks: int, batches: int) -> None:
    """Write the run file, one rank at a time."""
    rng = np.random.default_rng(0)
    each = batches // ranks
    with open(place, "wb") as file:
        head = msgspec.json.encode(rank_run(0, ranks, each, ranks // 3, rng))
        body, empty = head.removesuffix(b"}"), b'"ranks":[]'
        assert body.endswith(empty)
        file.write(body.removesuffix(b"]"))
        for rank in range(1, ranks):
            file.write(b"," * (rank > 1) + msgspec.json.encode(rank_run(rank, ranks, each, ranks // 3, rng)))
        file.write(b"]}")


def main() -> int:
    """Generate, read, print; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--batches", type=int, default=1_000_000, help="of all ranks together")
    parser.add_argument("--keep", type=Path, help="leave the run file here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.keep or Path(folder) / "run.json"
        began = time.perf_counter()
        if not place.exists():
            generate(place, options.ranks, options.batches)
        made_s, size = time.perf_counter() - began, place.stat().st_size
        done = subprocess.run([sys.executable, "-c", READ, str(place)], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    print(f"{options.batches} batches over {options.ranks} ranks: a run file of {size / 1e6:.0f} MB ({made_s:.0f} s)")
    print(f"verdict {found['verdict']}, {found['ranks']} ranks in the report, late: {found['late']}")
    for name in ("load_s", "diagnose_s", "render_s", "cpu_s"):
        print(f"{name:<12} {found[name]:8.2f}")
    missed = 0
    for name, limit in LIMITS.items():
        scale, unit = (1.0, "s") if name == "seconds" else (1e6, "MB")
        print(
            f"{name:<12} {found[name] / scale:8.2f} {unit} of {limit / scale:.0f} allowed, {found[name] / limit:.2f}x"
        )
        missed += found[name] > limit
    print(f"command: python {' '.join(sys.argv)}; {os.cpu_count()} cores")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
