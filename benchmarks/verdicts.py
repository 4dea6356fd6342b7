"""Run `ioprobe analyze` over labelled pipelines and print how its verdicts agree with their truth.

    python benchmarks/verdicts.py [DIR_OR_FILE...] [--seconds 30] [--only WORD] [--state FILE]

A pipeline is a Python file with ``TRUTH``, ``make_loader`` and ``make_step``; files whose name begins with ``_`` are
left out. Without places it takes fixtures/pipelines. With ``--state`` each result is kept as a line of FILE, and a
second call goes on where the first one ended; ``--index`` prints the table of fixtures/pipelines/README.md and runs
nothing. Options that are not known here go to ``ioprobe analyze``. A ``misconfigured`` pipeline counts as right, too,
where the answer is ``data-bound`` and the advice names a cause. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parents[1] / "fixtures" / "pipelines"
LIMIT_S = 60.0
"""An analysis should take no longer."""
ERROR = "no answer"
Row = dict[str, Any]


def truth_of(path: Path) -> dict[str, Any] | None:
    """Read TRUTH from a file's source, without importing it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "TRUTH" for t in node.targets):
            found: dict[str, Any] = ast.literal_eval(node.value)
            return found
    return None


def find(places: Iterable[Path]) -> list[Path]:
    """Return the pipelines in files and folders."""
    files: list[Path] = []
    for place in places:
        if not place.exists():
            raise SystemExit(f"no such file or folder: {place}")
        files += sorted(place.glob("*.py")) if place.is_dir() else [place]
    return [f.resolve() for f in files if not f.name.startswith("_") and truth_of(f) is not None]


def index(paths: Iterable[Path]) -> str:
    """Return pipelines, truths and the first sentence of each as a Markdown table."""
    lines = ["| pipeline | verdict | limiting stage | what it does |", "|---|---|---|---|"]
    for path in paths:
        truth = truth_of(path) or {}
        told = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| {path.stem} | {truth['verdict']} | {truth['limiting_stage'] or '-'} | {told} |")
    return "\n".join(lines) + "\n"


def run_case(path: Path, seconds: float, extra: Sequence[str] = ()) -> Row:
    """Analyze one pipeline in its own process and folder, which holds all of its temporary files."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "ioprobe_cli", "analyze", f"{path}:make_loader", "--step", f"{path}:make_step",
             "--format", "json", "--quiet", "--seconds", str(seconds), "--output", str(Path(folder) / "run"), *extra],
            capture_output=True, text=True, timeout=600, cwd=folder, check=False, env={**os.environ, "TMPDIR": folder},
        )  # fmt: skip
    row: Row = {"name": path.stem, "path": str(path), "truth": truth_of(path), "wall_s": time.monotonic() - began}
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return {**row, "error": (done.stderr.strip().splitlines() or ["no output"])[0]}
    found = report["diagnosis"]
    stall = found["stall_share"]
    return {
        **row,
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
    }


def judge(row: Row, truth: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether verdict and limiting stage agree with the truth."""
    if "error" in row:
        return False, False
    wanted, answer = truth["verdict"], row["verdict"]
    named = wanted == "misconfigured" and answer == "data-bound" and bool(row["codes"])
    return answer == wanted or named, row["limit"] in [truth["limiting_stage"], *truth.get("also_ok", [])]


def finished(state: Path | None) -> list[Row]:
    """Return the rows of a state file; a line that was cut off is left out."""
    rows: list[Row] = []
    for line in state.read_text().splitlines() if state is not None and state.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def line_of(row: Row) -> str:
    """Return a row of the table of results."""
    truth = row["truth"]
    verdict_ok, stage_ok = ("" if ok else "**wrong** " for ok in judge(row, truth))
    return (
        f"| {row['name']} | {truth['verdict']} / {truth['limiting_stage'] or '-'} | "
        f"{verdict_ok}{row.get('verdict', row.get('error'))} | {stage_ok}{row.get('limit') or '-'} | "
        f"{_share(row.get('measured'))} | {_share(row.get('predicted'))} | {row['wall_s']:.0f} |"
    )


def summary(rows: Sequence[Row]) -> str:
    """Return counts, confusion matrix, errors of the predicted stall share, times and what was left undecided."""
    judged = [judge(row, row["truth"]) for row in rows]
    answers = Counter((row["truth"]["verdict"], row.get("verdict", ERROR)) for row in rows)
    undecided = [row for row in rows if row.get("verdict") == "undecided"]
    parts = [
        f"verdict right {sum(v for v, _ in judged)} of {len(rows)} ({len(undecided)} undecided, "
        f"{sum('error' in row for row in rows)} without an answer), "
        f"limiting stage right {sum(s for _, s in judged)} of {len(rows)}",
        _matrix(answers),
        _gaps(rows),
        _times(rows),
    ]
    wrong = [row for row, (v, s) in zip(rows, judged, strict=True) if not (v and s) and row not in undecided]
    for title, some in (("undecided, and why", undecided), ("wrong, and on what evidence", wrong)):
        if some:
            told = [f"* {row['name']}: {row.get('evidence', row.get('error'))}" for row in some]
            parts.append("\n".join([f"{title}:", "", *told]))
    return "\n\n".join(parts)


def _matrix(answers: Counter[tuple[str, str]]) -> str:
    """Return the truth's verdicts against those given."""
    truths, given = sorted({t for t, _ in answers}), sorted({g for _, g in answers})
    lines = [f"| truth, and what was said | {' | '.join(given)} |", "|---" * (len(given) + 1) + "|"]
    lines += [f"| {truth} | {' | '.join(str(answers[truth, said]) for said in given)} |" for truth in truths]
    return "\n".join(lines)


def _gaps(rows: Sequence[Row]) -> str:
    gaps = {
        row["name"]: 100 * abs(row["measured"] - row["predicted"])
        for row in rows
        if row.get("measured") is not None and row.get("predicted") is not None
    }
    if not gaps:
        return "stall share: none was both measured and predicted"
    median, high = np.quantile(list(gaps.values()), [0.5, 0.95])
    worst = sorted(gaps, key=lambda name: -gaps[name])[:3]
    return (
        f"stall share, predicted against measured: median {median:.1f}, 95th percentile {high:.1f} points "
        f"({len(gaps)} pipelines); worst: {', '.join(f'{name} {gaps[name]:.1f}' for name in worst)}"
    )


def _times(rows: Sequence[Row]) -> str:
    lines = ["time per verdict:", ""]
    for verdict in sorted({row.get("verdict", ERROR) for row in rows}):
        some = [row for row in rows if row.get("verdict", ERROR) == verdict]
        lines.append(f"* {verdict}: median {np.median([row['wall_s'] for row in some]):.0f} s ({len(some)})")
    longest = max(rows, key=lambda row: float(row["wall_s"]))
    lines.append(
        f"* all: median {np.median([row['wall_s'] for row in rows]):.0f} s, longest {longest['wall_s']:.0f} s "
        f"({longest['name']}); over {LIMIT_S:.0f} s: {sum(row['wall_s'] > LIMIT_S for row in rows)}"
    )
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, default=[FIXTURES])
    parser.add_argument("--seconds", type=float, default=30.0, help="time budget of one analysis [s]")
    parser.add_argument("--only", default="", help="substring of the names to run")
    parser.add_argument("--state", type=Path, help="file to keep results in and to go on from")
    parser.add_argument("--index", action="store_true", help="print the pipelines and their truths only")
    args, extra = parser.parse_known_args()
    paths = [path for path in find(args.places) if args.only in path.stem]
    if args.index:
        print(index(paths), end="")
        return
    known = {row["path"]: row for row in finished(args.state)}
    rows: list[Row] = []
    print(
        "| pipeline | truth | verdict | limiting stage | stall measured | predicted | s |", "|---" * 7 + "|", sep="\n"
    )
    for path in paths:
        row = known.get(str(path)) or run_case(path, args.seconds, extra)
        if str(path) not in known and args.state is not None:
            with args.state.open("a") as file:
                file.write(json.dumps(row) + "\n")
        rows.append(row)
        print(line_of(row), flush=True)
    if rows:
        print(f"\n{summary(rows)}")


if __name__ == "__main__":
    main()
