"""Run `ioprobe analyze` over labelled pipelines and print how its verdicts agree with their truth.

    python benchmarks/cases.py DIR_OR_FILE... [--seconds 40] [--json out.json]

A pipeline is a Python file with ``TRUTH``, ``make_loader`` and ``make_step``; files whose name begins with ``_`` are
left out. A ``misconfigured`` pipeline counts as right, too, where the answer is ``data-bound`` and the advice names a
cause. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np


def truth_of(path: Path) -> dict[str, Any] | None:
    """Read TRUTH from a file's source, without importing it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "TRUTH" for t in node.targets):
            found: dict[str, Any] = ast.literal_eval(node.value)
            return found
    return None


def find(places: list[str]) -> list[Path]:
    """Return the pipelines in files and folders."""
    files: list[Path] = []
    for place in map(Path, places):
        files += sorted(place.glob("*.py")) if place.is_dir() else [place]
    return [f for f in files if not f.name.startswith("_") and truth_of(f) is not None]


def run_case(path: Path, seconds: float, extra: list[str]) -> dict[str, Any]:
    """Analyze one pipeline in its own process and folder."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "ioprobe_cli", "analyze", f"{path}:make_loader", "--step", f"{path}:make_step",
             "--format", "json", "--quiet", "--seconds", str(seconds), "--output", str(Path(folder) / "run"), *extra],
            capture_output=True, text=True, timeout=600, cwd=folder, check=False,
        )  # fmt: skip
    wall_s = time.monotonic() - began
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return {"name": path.stem, "error": (done.stderr.strip().splitlines() or ["no output"])[0], "wall_s": wall_s}
    found = report["diagnosis"]
    stall = found["stall_share"]
    return {
        "name": path.stem,
        "verdict": found["verdict"],
        "limit": found["limiting_stage"],
        "measured": stall["measured"] and stall["measured"]["value"],
        "predicted": stall["predicted"] and stall["predicted"]["value"],
        "codes": [a["code"] for a in report["advice"]],
        "advice": [
            (a["code"], a["settings"], a["gain"] and a["gain"]["value"], a["verified"] and a["verified"]["value"])
            for a in report["advice"]
        ],
        "evidence": found["evidence"],
        "wall_s": wall_s,
    }


def judge(row: dict[str, Any], truth: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether verdict and limiting stage agree with the truth."""
    wanted = truth["verdict"]
    verdict = row.get("verdict") == wanted or (
        wanted == "misconfigured" and row.get("verdict") == "data-bound" and bool(row.get("codes"))
    )
    return verdict, row.get("limit") in [truth["limiting_stage"], *truth.get("also_ok", [])] and "error" not in row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help="substring of the names to run")
    args, extra = parser.parse_known_args()
    rows, right, staged, gaps = [], 0, 0, []
    confusion: Counter[tuple[str, str]] = Counter()
    print("| pipeline | truth | verdict | limiting stage | stall measured | predicted | s |")
    print("|---|---|---|---|---|---|---|")
    for path in find(args.places):
        if args.only and args.only not in path.stem:
            continue
        truth = truth_of(path) or {}
        row = run_case(path, args.seconds, extra)
        verdict_ok, stage_ok = judge(row, truth)
        right, staged = right + verdict_ok, staged + stage_ok
        confusion[truth["verdict"], row.get("verdict", "error")] += 1
        if row.get("measured") is not None and row.get("predicted") is not None:
            gaps.append(abs(row["measured"] - row["predicted"]))
        rows.append({**row, "truth": truth, "verdict_ok": verdict_ok, "stage_ok": stage_ok})
        print(
            f"| {path.stem} | {truth['verdict']} / {truth['limiting_stage']} | {'' if verdict_ok else '**wrong** '}"
            f"{row.get('verdict', row.get('error'))} | {'' if stage_ok else '**wrong** '}{row.get('limit')} | "
            f"{_share(row.get('measured'))} | {_share(row.get('predicted'))} | {row['wall_s']:.0f} |",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    count = len(rows)
    print(f"\nverdict right: {right}/{count}, limiting stage right: {staged}/{count}")
    if gaps:
        median, p95 = np.quantile(gaps, [0.5, 0.95])
        print(f"stall share, predicted against measured: median {100 * median:.1f}, p95 {100 * p95:.1f} points")
    for (truth_word, found), number in sorted(confusion.items()):
        print(f"  {truth_word:22} -> {found:22} {number}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


if __name__ == "__main__":
    main()
