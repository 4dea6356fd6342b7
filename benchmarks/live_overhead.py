"""What observing costs a job: `ioprobe run` and `ioprobe attach` against the bare job, in paired rounds.

    python benchmarks/live_overhead.py --rounds 8

Each round runs the same loop of fixed steps bare, under `ioprobe run`, and bare with `ioprobe attach` beside it, in an
order that changes from round to round; the ratios of their mean step times within a round are compared.
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

from ioprobe import stats

JOB = """
import json, sys, time, torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
steps, work, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
data = [torch.ones(16)] * (4 * steps)
a = torch.randn(128, 128)
cycles = []
last = time.perf_counter()
for batch in DataLoader(data, batch_size=4, num_workers=int(sys.argv[4])):
    for _ in range(work):  # the same work each time: what slows it down shows
        a @ a
    now = time.perf_counter()
    cycles.append(now - last)
    last = now
json.dump(sorted(cycles[20:]), open(out, "w"))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--no-attach", action="store_true", help="run against bare only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(options, Path(name))


def measure(options: argparse.Namespace, folder: Path) -> None:
    job = folder / "job.py"
    job.write_text(JOB)
    ways = ["bare", "run"] + ([] if options.no_attach else ["attach"])
    options.work = work_of(options.step_ms / 1e3)
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(options.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            found[way].append(step_s(way, job, folder, options))
    print(f"step of {options.step_ms:g} ms, {options.steps} steps, {options.rounds} rounds, {os.cpu_count()} cores")
    for way in ways:
        print(f"{way:7} {1e3 * sum(found[way]) / len(found[way]):.4f} ms a step")
    for way in ways[1:]:
        ratios = [a / b for a, b in zip(found[way], found["bare"], strict=True)]
        ratio = stats.mean(ratios)
        median = stats.percentile(ratios, 0.5)
        print(f"{way} / bare: {ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}], median {median:.4f}")


def work_of(seconds: float) -> int:
    """Return how many matrix products of the job take about so long."""
    code = (
        "import time, torch; torch.set_num_threads(1); a = torch.randn(128, 128); best = 1e9\n"
        "for _ in range(20):\n"
        "    begin = time.perf_counter()\n"
        "    for _ in range(100): a @ a\n"
        "    best = min(best, (time.perf_counter() - begin) / 100)\n"
        "print(best)"
    )
    one_s = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    return max(1, round(seconds / one_s))


def step_s(way: str, job: Path, folder: Path, options: argparse.Namespace) -> float:
    """Return the mean time per step, the slowest half (other load on the machine) left out [s]."""
    out = folder / "cycles.json"
    command = [sys.executable, str(job), str(options.steps), str(options.work), str(out)]
    command.append(str(options.num_workers))
    probe = [sys.executable, "-m", "ioprobe_cli"]
    if way == "run":
        subprocess.run([*probe, "run", "-q", "-o", tempfile.mkdtemp(dir=folder), "--", *command], check=True)
    else:
        process = subprocess.Popen(command)
        if way == "attach":
            time.sleep(2.0)
            seconds = f"{max(1.0, options.steps * options.step_ms / 1e3 - 0.5):g}s"
            attach = [*probe, "attach", str(process.pid), "--duration", seconds, "-q"]
            subprocess.run(attach, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if process.wait() != 0:
            raise SystemExit("the job failed")
    cycles = json.loads(out.read_text())
    kept = cycles[: len(cycles) // 2]
    return sum(kept) / len(kept)


if __name__ == "__main__":
    main()
