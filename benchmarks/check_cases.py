"""Run `ioprobe check` over labelled pipelines: it should flag the misconfigured ones, and no healthy one.

    python benchmarks/check_cases.py [DIR_OR_FILE...] [--measure S] [--all]

A pipeline is a Python file with ``TRUTH``, ``make_loader`` and ``make_step``; without places it takes
fixtures/pipelines. Those whose truth is ``misconfigured`` or whose cause begins with ``healthy`` are checked, with
``--all`` the others, too. Prints the codes that failed for each. Without ``--measure`` no loader is iterated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from verdicts import FIXTURES, find, truth_of


def kind_of(truth: dict[str, Any]) -> str:
    """Return misconfigured, healthy or other."""
    if truth["verdict"] == "misconfigured":
        return "misconfigured"
    return "healthy" if str(truth.get("cause", "")).startswith("healthy") else "other"


def check(path: Path, measure_s: float | None) -> dict[str, Any]:
    """Return the report of `ioprobe check` for one pipeline, with its exit code.

    Raises:
        subprocess.TimeoutExpired: it took two minutes longer than it should.
    """
    command = [sys.executable, "-m", "ioprobe_cli", "check", f"{path}:make_loader", "--format", "json", "--quiet"]
    if measure_s:
        command += ["--measure", str(measure_s), "--step", f"{path}:make_step"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120 + 4 * (measure_s or 0), check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        report = {"outcomes": [], "error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    report["exit_code"] = done.returncode
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, default=[FIXTURES])
    parser.add_argument("--measure", type=float, metavar="S")
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    print("| pipeline | truth | exit | failed |\n|---|---|---|---|")
    flagged: dict[str, list[bool]] = {}
    for path in find(args.places):
        truth = truth_of(path) or {}
        kind = kind_of(truth)
        if kind == "other" and not args.all:
            continue
        report = check(path, args.measure)
        failed = [o["name"] for o in report["outcomes"] if o["status"] == "failed"]
        flagged.setdefault(kind, []).append(bool(failed))
        what = " ".join(failed) or report.get("error", "-")
        print(f"| {path.stem} | {kind}: {truth.get('cause', '')} | {report['exit_code']} | {what} |", flush=True)
    for kind, found in flagged.items():
        print(f"\n{kind}: {sum(found)} of {len(found)} flagged", end="")
    print()


if __name__ == "__main__":
    main()
