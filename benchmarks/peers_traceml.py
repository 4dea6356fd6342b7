"""TraceML and ``ioprobe run`` around one training script: what each says of it, and what it costs."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers_environment import Kept, environment, run

from ioprobe import stats

INSTALL = [["torch", "traceml-ai==0.5.0"]]
ROUNDS = 4
TRUTHS = {
    "waits": ("data-bound", "each sample waits 3 ms, two workers, step 10 ms"),
    "decodes": ("data-bound", "about 2 ms of CPU for each sample, one worker, step 10 ms"),
    "computes": ("compute-bound", "samples from memory, about 12 ms of matrix products in forward"),
}
"""What the script does -> its verdict by construction."""
JOB = """
import contextlib, json, sys, time
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset

case, out = sys.argv[1:3]
torch.set_num_threads(1)
noise = np.random.default_rng(0).random(6000, dtype=np.float32)


class Samples(Dataset):
    def __len__(self):
        return 16 * 300

    def __getitem__(self, number):
        if case == "waits":
            time.sleep(0.003)
        if case == "decodes":
            for _ in range(32):
                np.sort(noise)
        return torch.full((64,), float(number % 7))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(64, 8)
        self.weight = torch.randn(256, 256)

    def forward(self, x):
        if case == "computes":
            for _ in range(40):
                self.weight @ self.weight
        else:
            time.sleep(0.010)  # an accelerator computes
        return self.head(x)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
traced = contextlib.nullcontext
if "--traceml" in sys.argv:
    import traceml_ai

    traceml_ai.init(mode="auto")
    traced = lambda: traceml_ai.trace_step(model)
ends = []
for batch in DataLoader(Samples(), batch_size=16, num_workers=2 if case == "waits" else 1):
    with traced():
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    ends.append(time.perf_counter())
with open(out, "w") as file:
    json.dump((ends[-1] - ends[20]) / (len(ends) - 21), file)
"""


def table(kept: Kept, envs: Path, seconds: float) -> Iterator[str]:
    """Yield the lines of the table, each as soon as it is measured.

    Raises:
        Skipped: TraceML cannot be installed, or a job failed.
        OutOfTime: the rest is for a later call.
    """
    programs = environment(envs / "traceml", INSTALL)
    yield f"{ROUNDS} rounds in turn, 300 steps each; 'step': its time under the tool over the bare one's (±95%);"
    yield "'more' is what the whole command takes beyond the bare script, start-up and report included, median.\n"
    yield "| script | truth | TraceML 0.5.0 says | step | more | ioprobe run says | step | more |"
    yield "|---|---|---|---|---|---|---|---|"
    for case, (truth, what) in TRUTHS.items():
        rounds = [
            kept.once(f"traceml-{case}-{number}", one_round, case, number, programs, seconds)
            for number in range(ROUNDS)
        ]
        columns = [f"{says(rounds, who)} | {cost(rounds, who)}" for who in ("traceml", "ioprobe")]
        yield f"| {case}: {what} | {truth} | {' | '.join(columns)} |"


def says(rounds: list[dict[str, Any]], who: str) -> str:
    """Return the verdicts of all rounds, the most frequent first."""
    found = [r[who]["says"] for r in rounds]
    return ", ".join(
        f"{verdict} ({found.count(verdict)} of {len(found)})" for verdict in sorted(set(found), key=found.count)[::-1]
    )


def cost(rounds: list[dict[str, Any]], who: str) -> str:
    """Return the ratio of step times and what the whole takes more [s]."""
    ratio = stats.mean([r[who]["step_s"] / r[f"bare {who}"]["step_s"] for r in rounds])
    more = statistics.median(r[who]["took_s"] - r[f"bare {who}"]["took_s"] for r in rounds)
    return f"{ratio.value:.3f} (±{(ratio.high - ratio.low) / 2:.3f}) | {more:.1f} s"


def one_round(case: str, number: int, programs: Path, seconds: float) -> dict[str, Any]:
    """Run the script bare and under each tool, in the tool's own environment; the order changes from round to round."""
    with tempfile.TemporaryDirectory(prefix="ioprobe-peers-") as name:
        folder = Path(name)
        job, out = folder / "job.py", folder / "step.json"
        job.write_text(JOB)
        words = [case, out]
        ours = [sys.executable, "-m", "ioprobe_cli", "run", "--format", "json", "-q", "-o", folder / "run", "--"]
        ways: dict[str, list[Any]] = {
            "bare traceml": [programs / "python", job, *words],
            "traceml": [programs / "traceml", "run", job, "--logs-dir", folder / "logs", "--run-name", "peer",
                        "--args", *words, "--traceml"],
            "bare ioprobe": [sys.executable, job, *words],
            "ioprobe": [*ours, sys.executable, job, *words],
        }  # fmt: skip
        found: dict[str, Any] = {}
        for way in list(ways)[:: -1 if number % 2 else 1]:
            _, took_s = run(ways[way], seconds, cwd=folder)
            found[way] = {"took_s": took_s, "step_s": json.loads(out.read_text())}
        summary = json.loads((folder / "logs" / "peer" / "final_summary.json").read_text())
        found["traceml"]["says"] = summary["primary_diagnosis"]["status"]
        report, _ = run([sys.executable, "-m", "ioprobe_cli", "report", folder / "run", "--format", "json"], seconds)
        diagnosis = json.loads(report)["diagnosis"]
        found["ioprobe"]["says"] = f"{diagnosis['verdict']}, {diagnosis['limiting_stage'] or '-'}"
        return found
