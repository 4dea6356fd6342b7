"""loadtune and ``ioprobe tune`` on the same loaders; their picks judged by plain DataLoaders, without either's code."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from grid import measure
from peers_environment import Kept, Skipped, environment, run
from workloads import WORKLOADS, Workload, folder

INSTALL = [["torch", "loadtune==0.3.0"]]
PIPELINES = [
    "latency", "long-tail-latency", "slow-worker", "bursts", "jpeg",
    "jpeg-and-latency", "long-tail-cpu", "tokens-gil", "big-tensors", "heavy-collate",
]  # fmt: skip
"""The first ten of workloads.py; loadtune shuffles, so none may be a stream."""
Setting = tuple[int, int]
HERE = Path(__file__).parent
START = (2, 2)
"""(num_workers, prefetch_factor) that both begin with."""
STEP = 0.8
"""Step time over the fastest drained time per batch: only good settings keep such a step fed."""
DRAINED_AT = (0, 1, 2, 4, 8)
REPETITIONS = 3
TIE = 0.02
"""Ratios this near to 1 count as equal."""
THEIR_WORKLOAD = """
import sys, time
sys.path.insert(0, {here!r})
import torch
from workloads import WORKLOADS
from loadtune.workload import Workload

asked = WORKLOADS[{name!r}]


class Shortened(torch.utils.data.Dataset):
    \"\"\"loadtune shuffles, and a shuffle of an endless dataset has no end.\"\"\"

    def __init__(self):
        self.all = asked.dataset()

    def __len__(self):
        return 65536

    def __getitem__(self, number):
        return self.all[number]


def train_step(model, optimizer, batch, device):
    time.sleep({step_s!r})
    return torch.zeros(())


def get_workload():
    return Workload(
        name={name!r},
        make_dataset=Shortened,
        make_model=lambda: torch.nn.Linear(1, 1),
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        train_step=train_step,
        default_batch_size=asked.batch_size,
        collate_fn=asked.collate_fn,
    )
"""


def table(kept: Kept, envs: Path, pipelines: list[str], seconds: float) -> Iterator[str]:
    """Yield the lines of the table, each as soon as it is measured.

    Raises:
        Skipped: loadtune cannot be installed.
        OutOfTime: the rest is for a later call.
    """
    programs = environment(envs / "loadtune", INSTALL)
    torch.set_num_threads(1)
    folder()
    yield f"Both start from num_workers={START[0]}; samples/s of the setting each recommends, median (least to most)"
    yield f"of {REPETITIONS} plain runs in turn; ratio of the medians. 'took' is the whole command, by its defaults.\n"
    yield "| pipeline | step | start | loadtune picks | samples/s | took | ioprobe picks | samples/s | took | ratio |"
    yield "|---" * 10 + "|"
    rows = []
    for name in pipelines:
        rows.append(compare(kept, name, programs, seconds))
        yield line_of(rows[-1])
    yield f"\n{summary(rows)}"


def compare(kept: Kept, name: str, programs: Path, seconds: float) -> dict[str, Any]:
    """Measure one pipeline, or take what is kept of it."""
    key, workload = f"loadtune-{name}", WORKLOADS[name]
    step_s = kept.once(f"{key}-step", step_of, workload)
    theirs = kept.once(f"{key}-theirs", their_pick, name, step_s, kept.folder, programs, seconds)
    ours = kept.once(f"{key}-ours", our_pick, name, step_s, kept.folder, seconds)
    rates = kept.once(f"{key}-rates", judge, workload, step_s, theirs["pick"], ours["pick"])
    middle = {who: statistics.median(found) for who, found in rates.items()}
    ratio = middle["ours"] / middle["theirs"] if {"ours", "theirs"} <= {*middle} else None
    return {"name": name, "step_s": step_s, "theirs": theirs, "ours": ours, "rates": rates, "ratio": ratio}


def line_of(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    cells = [row["name"], f"{1e3 * row['step_s']:.1f} ms", f"{statistics.median(row['rates']['start']):.0f}"]
    for who in ("theirs", "ours"):
        found = row[who]
        cells.append(" x ".join(str(part) for part in found["pick"]) if found["pick"] else found["reason"])
        rates = row["rates"].get(who)
        cells.append(f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})" if rates else "-")
        cells.append(f"{found['took_s']:.0f} s")
    cells.append("-" if row["ratio"] is None else f"{row['ratio']:.2f}")
    return f"| {' | '.join(cells)} |"


def summary(rows: list[dict[str, Any]]) -> str:
    """Return how often who was ahead, and the seconds of all."""
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    took = {who: sum(row[who]["took_s"] for row in rows) for who in ("ours", "theirs")}
    middle = f"median {statistics.median(ratios):.2f}, " if ratios else ""
    return (
        f"ioprobe over loadtune: {middle}{sum(r > 1 + TIE for r in ratios)} better and "
        f"{sum(r < 1 - TIE for r in ratios)} worse by more than {100 * TIE:.0f}%, of {len(ratios)} judged; "
        f"{took['ours']:.0f} s against {took['theirs']:.0f} s."
    )


def step_of(workload: Workload) -> float:
    """Return the emulated step of a workload [s]."""
    return round(STEP * min(measure(workload, w, 2, 0.0, 0, 1.5).batch_s for w in DRAINED_AT), 5)


def their_pick(name: str, step_s: float, place: Path, programs: Path, seconds: float) -> dict[str, Any]:
    """Run ``loadtune tune`` as its README says; its charts are left out, they cost time and settle nothing."""
    script = place / f"their_{name.replace('-', '_')}.py"
    script.write_text(THEIR_WORKLOAD.format(here=str(HERE), name=name, step_s=step_s))
    command = [programs / "loadtune", "tune", script, "--workers", START[0], "--out", place / "report.md", "--no-plots"]
    try:
        text, took_s = run(command, seconds)
    except Skipped as error:
        return {"pick": None, "reason": str(error), "took_s": seconds}
    best = re.search(r"best overall: workers=(\d+)(?:, prefetch=(\d+))?", text)
    pick = START if best is None else (int(best[1]), int(best[2] or 2))
    return {"pick": pick, "took_s": took_s, "text": text}


def our_pick(name: str, step_s: float, place: Path, seconds: float) -> dict[str, Any]:
    """Run ``ioprobe tune`` with its defaults."""
    target = f"{HERE / 'workloads.py'}:make_{name.replace('-', '_')}"
    command = [sys.executable, "-m", "ioprobe_cli", "tune", target, "--step-ms", f"{1e3 * step_s:g}"]
    command += ["--format", "json", "--quiet", "--output", str(place / f"tune-{name}")]
    try:
        text, took_s = run(command, seconds)
    except Skipped as error:
        return {"pick": None, "reason": str(error), "took_s": seconds}
    settings = json.loads(text)["recommended"]["settings"]
    return {"pick": (settings["num_workers"], settings.get("prefetch_factor", 2)), "took_s": took_s}


def judge(workload: Workload, step_s: float, theirs: Setting | None, ours: Setting | None) -> dict[str, list[float]]:
    """Return samples/s at the start and at each pick; a repetition measures every setting, the same one once."""
    picks = {who: tuple(pick) for who, pick in (("start", START), ("theirs", theirs), ("ours", ours)) if pick}
    found: dict[str, list[float]] = {who: [] for who in picks}
    for repetition in range(REPETITIONS):
        rates = {
            (workers, prefetch): workload.samples
            / measure(workload, workers, prefetch, step_s, repetition, 3.0).batch_s
            for workers, prefetch in sorted(set(picks.values()), reverse=repetition % 2 == 1)
        }
        for who, setting in picks.items():
            found[who].append(rates[setting])
    return found
