"""``ioprobe tune`` on labelled pipelines, against a grid of their settings measured without any code of ours.

    python benchmarks/tune_cases.py [DIR_OR_FILE...] [--state ROWS.jsonl] [--budget 30]

A pipeline is a Python file with ``TRUTH``, ``make_loader`` and ``make_step`` (fixtures/pipelines without places). Tune
starts from the pipeline's own settings. Then one process runs plain loops at every setting of the grid, at the
pipeline's own and at the pick, in turn, twice; whole epochs where they are short, so that starting workers counts. All
are judged by those loops. With ``--state`` each result is kept as a line, and a second call goes on where the first
one ended. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from verdicts import FIXTURES, find, finished, truth_of

GRID = [(0, 2), *((w, 2) for w in (1, 2, 3, 4, 6, 8)), (1, 4), (2, 1), (2, 4), (4, 1), (4, 4), (8, 4)]
"""(num_workers, prefetch_factor)."""
REPETITIONS = 2
LEAST_S, MOST_S = 1.0, 15.0
"""Window of one loop past its warm-up [s]; whole epochs are waited for up to the second."""
LEAST_BATCHES = 12
SHORT_EPOCH_S = 6.0
"""Of epochs shorter than this, whole ones are counted [s]."""
LIMIT_S = 60.0
Row = dict[str, Any]
Setting = tuple[int, int]


def rate(loader: Any, step: Any, workers: int, depth: int) -> float:
    """Return batches/s of the plain loop: over whole epochs where they are short, else past the prefetched burst."""
    warm, crew = max(4, 2 * depth), max(1, workers)
    ends: list[float] = []
    epochs: list[int] = []
    try:
        length = len(loader)
    except TypeError:  # a stream
        length = 0
    began = time.monotonic()
    while True:
        for batch in loader:
            step(batch)
            ends.append(time.monotonic())
            late = ends[-1] - began > MOST_S
            done = len(ends) - 1 - warm
            if done < LEAST_BATCHES and not (late and done > 0):
                continue
            span = ends[-1] - ends[warm]
            short = epochs or (length and length * span / done < SHORT_EPOCH_S)
            if late or (span >= LEAST_S and done % crew == 0 and not short):
                return done / span
        epochs.append(len(ends))
        span = ends[-1] - ends[epochs[0] - 1]
        if span >= LEAST_S:
            return (len(ends) - epochs[0]) / span


def run_grid(path: Path, settings: Sequence[tuple[int, int, bool | None]]) -> None:
    """Print a line for each repetition of each setting: its rate and the seconds that took. Runs in its own process."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    step = module.make_step()
    for _ in range(REPETITIONS):
        for workers, prefetch, persistent in settings:
            began = time.monotonic()
            wanted: dict[str, Any] = {"num_workers": workers, "prefetch_factor": prefetch}
            if persistent is not None:
                wanted["persistent_workers"] = persistent
            found: float | None = None
            try:
                loader = module.make_loader(**wanted)
                found = rate(loader, step, workers, workers * prefetch)
            except Exception as error:  # a setting that cannot run is an outcome
                print(f"{path.stem} {wanted}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            loader = None
            gc.collect()
            print(json.dumps([workers, prefetch, found, time.monotonic() - began]), flush=True)


def run_case(path: Path, budget_s: float) -> Row:
    """Tune one pipeline, then measure its grid; all temporary files are in a folder that goes."""
    row: Row = {"name": path.stem, "truth": truth_of(path)}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder}
        began = time.monotonic()
        words = ["tune", f"{path}:make_loader", "--step", f"{path}:make_step", "--budget", f"{budget_s:g}"]
        words += ["--max-workers", "8", "--format", "json", "--quiet", "--output", str(Path(folder) / "run")]
        done = subprocess.run(
            [sys.executable, "-m", "ioprobe_cli", *words],
            capture_output=True, text=True, timeout=600, cwd=folder, check=False, env=environment,
        )  # fmt: skip
        row["tune_s"] = time.monotonic() - began
        try:
            found = json.loads(done.stdout)
        except ValueError:
            return {**row, "error": (done.stderr.strip().splitlines() or ["no output"])[0]}
        now, new = found["current"]["settings"], found["recommended"]["settings"]
        start, pick = (
            (settings["num_workers"], settings.get("prefetch_factor") or 2 if settings["num_workers"] else 2)
            for settings in (now, new)
        )
        row |= {"start": start, "pick": pick, "action": found["recommended"]["action"]}
        row["reason"] = found["recommended"]["reason"]
        changed = new.get("persistent_workers") if row["action"] != "no-change" else None
        # The pipeline's own persistence, unless the pick changes it; then the start alone keeps its own.
        settings = [(*s, changed) for s in dict.fromkeys([*GRID, pick])]
        settings += [(*start, None)] if changed is not None or start not in [*GRID, pick] else []
        row["persistent_workers"] = changed
        run = [sys.executable, __file__, str(path), "--grid-of", json.dumps(settings)]
        done = subprocess.run(
            run, capture_output=True, text=True, timeout=900, cwd=folder, check=False, env=environment
        )
        row["measured"] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return row


def judge(row: Row) -> Row:
    """Return the figures of the table, all by the grid's loops."""
    of = len(row["measured"]) // REPETITIONS
    rates: dict[tuple[int, int, bool], list[float]] = {}
    for number, (workers, prefetch, found, _) in enumerate(row["measured"]):
        own = row["persistent_workers"] is not None and number % of == of - 1
        if found is not None:
            rates.setdefault((workers, prefetch, own), []).append(found)
    middle = {key: float(np.mean(found)) for key, found in rates.items() if len(found) == REPETITIONS}
    if not middle:
        return {"best": None}
    pick, start = (*row["pick"], False), (*row["start"], row["persistent_workers"] is not None)
    best = max(middle, key=lambda key: middle[key])
    spreads = [max(found) / min(found) - 1 for found in rates.values() if len(found) > 1]
    return {
        "best": best[:2],
        "share": middle.get(pick, 0.0) / middle[best],  # a setting that fails delivers nothing
        "from": middle.get(start, 0.0) / middle[best],
        "noise": float(np.median(spreads)),
        "fewest": min(key[0] for key in middle if middle[key] >= 0.98 * middle[best]),
        "grid_s": sum(spent for *_, spent in row["measured"]),
    }


def line_of(row: Row) -> str:
    """Return a row of the table."""
    if "error" in row:
        return f"| {row['name']} | {row['error']} |"
    found = judge(row)
    picked = " x ".join(map(str, row["pick"])) + (" persistent" if row["persistent_workers"] else "")
    start = " x ".join(map(str, row["start"]))
    if found["best"] is None:
        return f"| {row['name']} | {start} | {picked} | no setting runs |"
    return (
        f"| {row['name']} | {start} | {picked} | {' x '.join(map(str, found['best']))} | {found['from']:.3f} | "
        f"{found['share']:.3f} | {100 * found['noise']:.1f}% | {found['fewest']} | {row['tune_s']:.0f} | "
        f"{found['grid_s']:.0f} |"
    )


def summary(rows: Sequence[Row]) -> str:
    """Return how near to the grid's best the picks are, with how many workers, and the seconds."""
    judged = [(row, judge(row)) for row in rows if "error" not in row]
    judged = [(row, found) for row, found in judged if found["best"] is not None]
    if not judged:
        return "nothing was measured"
    shares = np.array([found["share"] for _, found in judged])
    inside = [found["share"] >= 0.98 or found["share"] >= 1 - found["noise"] for _, found in judged]
    starts = np.array([found["from"] for _, found in judged])
    few = sum(row["pick"][0] <= found["fewest"] for row, found in judged)
    fewer = np.median([row["tune_s"] / found["grid_s"] for row, found in judged])
    spent = [row["tune_s"] for row in rows]
    noise = np.median([found["noise"] for _, found in judged])
    return (
        f"{len(judged)} pipelines: rate at the pick over the grid's best, median {np.median(shares):.3f}, "
        f"10th percentile {np.percentile(shares, 10):.3f}, least {shares.min():.3f} "
        f"(at the start: {np.median(starts):.3f}, {np.percentile(starts, 10):.3f}, {starts.min():.3f}); "
        f"at least 98% or within the grid's own noise in {sum(inside)}; repeat to repeat {100 * noise:.1f}%; "
        f"no more workers than the smallest setting within 2% of the best in {few}; "
        f"tune takes {np.median(spent):.0f} s (most {max(spent):.0f}), {100 * fewer:.0f}% of the grid's time"
    )


def main() -> None:
    """Run what is missing, print the table and its summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, default=[FIXTURES])
    parser.add_argument("--only", default="", help="pipelines whose name holds this word")
    parser.add_argument("--state", type=Path, help="keep results here, and go on from them")
    parser.add_argument("--budget", type=float, default=30.0, help="of ioprobe tune [s]")
    parser.add_argument("--grid-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.grid_of:
        run_grid(options.places[0], [tuple(one) for one in json.loads(options.grid_of)])
        return
    rows = finished(options.state)
    print("| pipeline | starts at | pick | best | start/best | pick/best | noise | fewest | tune s | grid s |")
    print("|---" * 10 + "|")
    told: list[Row] = []
    for path in [p for p in find(options.places) if options.only in p.stem]:
        row = next((r for r in rows if r["name"] == path.stem), None)
        if row is None:
            row = run_case(path, options.budget)
            if options.state is not None:
                with options.state.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        told.append(row)
        print(line_of(row), flush=True)
    print(f"\n{summary(told)}")


if __name__ == "__main__":
    main()
