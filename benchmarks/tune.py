"""``ioprobe tune`` against the exhaustive grid that people measure by hand.

    python benchmarks/tune.py --results tune-results              # all workloads; an hour and a half
    python benchmarks/tune.py --only jpeg,lock --budget 25

For each workload: every setting of the grid is measured in the loop with an emulated step, three times (or
``--repetitions``) in turn, by plain DataLoaders; then ``ioprobe tune`` starts from num_workers=2 and prefetch_factor=2.
Its pick's throughput comes from the grid, so both are judged by the same measurements; a pick that is not in the grid
is measured after it, in the same way. Repeats of one setting tell the grid's own noise; the best of many noisy settings
looks better than it is, so a pick as good as it seems worse.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from grid import Cell, Store, alone, measure
from workloads import WORKLOADS, Workload, folder

GRID = [(0, 2), *((w, p) for w in (1, 2, 3, 4, 6, 8) for p in (1, 2, 4))]
"""(num_workers, prefetch_factor)."""
STEP = 0.8
"""Step time over the best drained time per batch."""


@dataclass(frozen=True)
class Outcome:
    """Tune against the grid, one workload."""

    workload: str
    pick: tuple[int, int]
    best: tuple[int, int]
    share: float
    """Throughput at the pick over the grid's best [fraction]."""
    noise: float
    """Median over settings of largest over smallest repetition, minus 1 [fraction]."""
    tune_s: float
    grid_s: float
    fewest: int
    """Workers of the smallest setting within 2% of the best."""


def fill(
    workload: Workload,
    store: Store,
    settings: list[tuple[int, int]],
    step_s: float,
    repetitions: int,
    least_s: float,
    lock: Path | None,
) -> list[Cell]:
    """Measure what is missing of some settings, in turn, and return all that was measured with this step."""
    for repetition in range(repetitions):
        cells = [c for c in store.cells() if c.workload == workload.name and c.repetition == repetition]
        done = [c.setting for c in cells]
        for workers, prefetch in (s for s in settings if (*s, step_s) not in done):
            with alone(lock):
                store.add(measure(workload, workers, prefetch, step_s, repetition, least_s))
    return [c for c in store.cells() if c.workload == workload.name and c.step_s == step_s]


def tune(target: str, step: list[str], budget_s: float, output: Path, lock: Path | None) -> dict[str, object]:
    """Run ``ioprobe tune`` in a process of its own and return what it printed."""
    words = [sys.executable, "-m", "ioprobe_cli", "tune", target, *step, "--budget", f"{budget_s:g}"]
    words += ["--max-workers", "8", "--format", "json", "--quiet", "--output", str(output)]
    with alone(lock):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"tune of {target} failed: {done.stderr.strip()}")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def pick_of(found: dict[str, object]) -> tuple[int, int]:
    """Return (num_workers, prefetch_factor) that tune recommends; without workers as the grid names that."""
    settings = found["recommended"]["settings"]  # type: ignore[index]
    workers = settings["num_workers"]
    return (workers, settings.get("prefetch_factor") or 2) if workers else (0, 2)


def judge(workload: Workload, cells: list[Cell], found: dict[str, object]) -> Outcome:
    """Return how the pick compares, all by the grid's measurements."""
    times: dict[tuple[int, int], list[float]] = {}
    for cell in cells:
        times.setdefault((cell.num_workers, cell.prefetch_factor), []).append(cell.batch_s)
    middle = {setting: float(np.median(t)) for setting, t in times.items()}
    best = min(middle, key=lambda s: middle[s])
    pick = pick_of(found)
    good = [s for s in middle if middle[s] <= 1.02 * middle[best]]
    return Outcome(
        workload.name,
        pick,
        best,
        middle[best] / middle[pick],
        float(np.median([max(t) / min(t) - 1 for t in times.values()])),
        float(found["spent_s"]),  # type: ignore[arg-type]
        sum(c.spent_s for c in cells if (c.num_workers, c.prefetch_factor) in GRID),
        min(s[0] for s in good),
    )


def line(o: Outcome) -> str:
    """Return an outcome as a line of the table."""
    return (
        f"{o.workload:18}  {o.pick[0]:>2} x {o.pick[1]:<2}  {o.best[0]:>2} x {o.best[1]:<2}  {100 * o.share:>5.1f}%  "
        f"{100 * o.noise:>5.1f}%  {o.fewest:>6}  {o.tune_s:>6.1f}  {o.grid_s:>6.1f}  {100 * o.tune_s / o.grid_s:>5.1f}%"
    )


def summary(found: list[Outcome]) -> str:
    """Return how near to the grid's best the picks are, with how many workers, and the seconds."""
    shares = np.array([o.share for o in found])
    near = sum(o.share >= min(0.98, 1 - o.noise) for o in found)
    few = sum(o.pick[0] <= o.fewest for o in found)
    spent, part = [o.tune_s for o in found], [o.tune_s / o.grid_s for o in found]
    return (
        f"{len(found)} workloads: throughput at the pick over the grid's best, median {100 * np.median(shares):.1f}%, "
        f"least {100 * shares.min():.1f}%; 98% or within the grid's own noise in {near}; "
        f"no more workers than the smallest setting within 2% of the best in {few}; "
        f"tune took {np.median(spent):.0f} s (most {max(spent):.0f}), {100 * np.median(part):.0f}% of the grid's time"
    )


def main() -> None:
    """Measure what is missing, tune, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("tune-results"), help="folder to keep and go on from")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, by comma")
    parser.add_argument("--budget", type=float, default=30.0, help="of ioprobe tune [s]")
    parser.add_argument("--repetitions", type=int, default=3, help="of each setting of the grid")
    parser.add_argument("--seconds", type=float, default=3.0, help="least window of a setting of the grid")
    parser.add_argument("--lock", type=Path, help="file to lock while measuring")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := sorted(set(names) - set(WORKLOADS)):
        parser.error(f"no such workload: {', '.join(unknown)}")
    store = Store(options.results)
    folder()
    print(f"{'':18}  workers x prefetch  of grid's          fewest  seconds")
    header = f"{'workload':18}  {'pick':>6}  {'best':>7}  {'best':>6}  {'noise':>6}  {'at 2%':>6}"
    print(f"{header}  {'tune':>6}  {'grid':>6}  share")
    found: list[Outcome] = []
    for name in names:
        workload = WORKLOADS[name]
        drained = fill(workload, store, [(w, p) for w, p in GRID if p == 2], 0.0, 1, options.seconds, options.lock)
        step_s = round(STEP * min(c.batch_s for c in drained), 5)
        how = (step_s, options.repetitions, options.seconds, options.lock)
        fill(workload, store, GRID, *how)
        kept = options.results / f"tune-{name}.json"
        if not kept.exists():
            target = f"{Path(__file__).with_name('workloads.py')}:make_{name.replace('-', '_')}"
            step = ["--step-ms", f"{1e3 * step_s:g}"]
            output = options.results / f"run-{name}"
            kept.write_text(json.dumps(tune(target, step, options.budget, output, options.lock)))
        answer = json.loads(kept.read_text())
        cells = fill(workload, store, [pick_of(answer)], *how)
        found.append(judge(workload, cells, answer))
        print(line(found[-1]), flush=True)
    print(f"\n{summary(found)}")


if __name__ == "__main__":
    main()
