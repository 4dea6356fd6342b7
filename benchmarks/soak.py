"""Does ioprobe grow? Real commands again and again, and what their processes and this host hold meanwhile.

    python benchmarks/soak.py [--minutes 30] [--state ROWS.jsonl]

Throughout, ``ioprobe run`` watches one training job, and one Python process uses the library: it analyzes a small
synthesized dataset with an emulated step, renders the page, reads blocks. Between its rounds storage, check, attach
(to the job), and analyze run as commands. After each round, with no command running, memory (each process's share of
anonymous and shared pages), descriptors and threads of the long-lived processes are read, and what is left in the
temporary folder, in /dev/shm and of processes.
The first fifth is warm-up. After six minutes the rings are full that hold the job's batches in shared memory (4 MB); a
run of a few minutes shows them as growth. The record that ``ioprobe run`` keeps of the job's batches grows by design,
up to 200,000 of them, and is a row of its own. The library's process empties Python's own stores after each round, free
lists and the cache of methods: they fill for hours up to their bounds (some 10 kB a round at first), whatever runs.
What its collector finds then, circles of references, is a row of its own.

Slopes are Theil and Sen's (the median of all pairwise slopes) with their 95% interval; growth is significant where the
interval's lower end, over the time measured, exceeds what a row tolerates. Exit code 1 then. Nothing else should run on
the machine meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from scipy.stats import theilslopes

IOPROBE = [sys.executable, "-m", "ioprobe_cli"]
WARM_UP = 0.2
LEAST_ROUNDS = 8
MIB = 1 << 20
MEMORY = "memory [MiB]"
RECORD = "the job's record [MiB]"
CIRCLES = "objects in circles"
TOLERATED = {MEMORY: 0.5, RECORD: 60.0}
"""Growth over the whole time that is noise or meant, by the kind of row; 0.5 of anything that is counted."""
JOB = """
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 16 * 100_000_000

    def __getitem__(self, number):
        time.sleep(0.001)
        return torch.full((1024,), number % 251, dtype=torch.uint8)


def make_loader(num_workers=2, batch_size=16, timeout=60):
    settings = {"num_workers": num_workers, "batch_size": batch_size, "timeout": timeout}
    return DataLoader(Samples(), persistent_workers=True, **settings)


if __name__ == "__main__":
    for batch in make_loader():
        time.sleep(0.010)
"""
"""A hundred batches a second: each worker's ring of 16,384 rows is full in six minutes, the record not in thirty."""
CHECK = """
[pipelines.train]
target = "job.py:make_loader"
batch_size = 16
num_workers = 2
"""
LIBRARY = """
import gc, sys
from ioprobe.analysis import Request, analyze, report_from_run
from ioprobe.probe.storage_block import measure_block
from ioprobe.report import html

folder = sys.argv[1]
for line in sys.stdin:  # one round for each line
    options = {"num_workers": 1}
    run = analyze(Request(target=folder + "/data/shard-*.tar", step_s=0.02, seconds=6.0, loader_options=options))
    page = html.render(report_from_run(run))
    how = {"pattern": "random", "block_bytes": 4096, "depth": 4, "direct": False, "cache": "warm"}
    measure_block(folder + "/blocks", seconds=0.5, **how)
    del run, page
    circles = gc.collect()
    sys._clear_type_cache()
    print(circles, flush=True)
"""


class Sample(NamedTuple):
    """One quantity at one time."""

    row: str
    kind: str
    time_s: float
    value: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--state", type=Path, help="file that gets every sample, as lines of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ioprobe-soak-") as name, contextlib.ExitStack() as stack:
        soak = Soak(Path(name), stack)
        samples: list[Sample] = []
        until = time.monotonic() + 60 * options.minutes
        while time.monotonic() < until:
            soak.round()
            found = soak.look()
            samples += found
            if options.state is not None:
                with options.state.open("a") as file:
                    file.writelines(json.dumps(sample) + "\n" for sample in found)
    print(f"{soak.rounds} rounds in {options.minutes:g} minutes; commands that ran: {sum(soak.ran.values())} "
          f"({', '.join(f'{name} {count}' for name, count in soak.ran.items())})\n")  # fmt: skip
    return report(samples)


class Soak:
    """The job that is watched, the process that uses the library, and the commands between."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self.rounds, self.ran = folder, 0, dict.fromkeys(("storage", "check", "attach", "analyze"), 0)
        self.circles = 0
        self.scratch = folder / "tmp"
        self.scratch.mkdir()
        self.environ = {**os.environ, "TMPDIR": str(self.scratch)}
        (folder / "job.py").write_text(JOB)
        (folder / "ioprobe.toml").write_text(CHECK)
        (folder / "blocks").write_bytes(os.urandom(64 * MIB))
        self.command("synth", "data", "--format", "webdataset", "--samples", "256")
        watch = [*IOPROBE, "run", "-q", "-o", "watched", "--", sys.executable, "job.py"]
        self.watcher = stack.enter_context(self.started(watch))
        self.library = stack.enter_context(self.started([sys.executable, "-c", LIBRARY, str(folder)]))
        self.began = time.monotonic()

    @contextlib.contextmanager
    def started(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        """Start a process that lasts; it is ended as Ctrl-C and the end of its input would."""
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            for one in [*reversed(psutil.Process(process.pid).children(recursive=True)), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.terminate()
            process.communicate()

    def command(self, *words: str) -> None:
        """Run an ``ioprobe`` command to its end; it must pass."""
        done = subprocess.run(
            [*IOPROBE, *words],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"ioprobe {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")

    def round(self) -> None:
        """Let the library work once, then each command once."""
        assert self.library.stdin is not None
        assert self.library.stdout is not None
        self.library.stdin.write("\n")
        self.library.stdin.flush()
        line = self.library.stdout.readline()
        if not line:
            raise SystemExit("the process that uses the library ended")
        self.circles = int(line)
        data = "data/shard-*.tar"
        trainer = self.trainer()
        for words in (
            ("storage", data, "--seconds", "1"),
            ("check",),
            ("attach", str(trainer.pid), "--duration", "2s", "-o", "runs/attach"),
            ("analyze", data, "--step-ms", "20", "--seconds", "6", "-o", "runs/analyze"),
        ):
            self.command(*words, "-q")
            self.ran[words[0]] += 1
        shutil.rmtree(self.folder / "runs")
        self.rounds += 1

    def trainer(self) -> psutil.Process:
        """Return the main process of the watched job."""
        for _ in range(100):
            for one in psutil.Process(self.watcher.pid).children():
                if len(one.children()) >= 2:  # its workers
                    return one
            time.sleep(0.1)
        raise SystemExit("the watched job does not run")

    def look(self) -> list[Sample]:
        """Read what everything holds now; no command runs."""
        now = time.monotonic() - self.began
        trainer = self.trainer()
        workers = trainer.children()
        watched = {
            "ioprobe run": [psutil.Process(self.watcher.pid)],
            "its job, main process": [trainer],
            "its job, workers": workers,
            "library": family(self.library.pid),
        }
        found = [
            Sample(row, kind, now, sum(read(one) for one in processes))
            for row, processes in watched.items()
            for kind, read in READINGS.items()
        ]
        found.append(Sample("library", CIRCLES, now, float(self.circles)))
        # Folders and sockets count, too.
        left = {path: path.lstat().st_size for path in self.scratch.rglob("*")}
        record = {path: size for path, size in left.items() if path.suffix == ".rec"}
        mine = family(os.getpid())
        counts = {
            "files": len(left),
            "bytes in files [MiB]": (sum(left.values()) - sum(record.values())) / MIB,
            RECORD: sum(record.values()) / MIB,
            "files in /dev/shm": len(list(Path("/dev/shm").iterdir())),
            "processes": len(mine),
        }
        return found + [Sample("left on the host", kind, now, float(value)) for kind, value in counts.items()]


def family(pid: int) -> list[psutil.Process]:
    """Return a process with all below it."""
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def memory_mib(one: psutil.Process) -> float:
    """Return a process's share of anonymous and shared memory [MiB].

    Pages of files are left out: how much of libpython's is a process's own share depends on who else runs Python, and
    the job's record is a row of its own.
    """
    rollup = Path(f"/proc/{one.pid}/smaps_rollup").read_text()
    values = dict(line.split(":", 1) for line in rollup.splitlines() if line.startswith("Pss_"))
    return sum(int(values[kind].split()[0]) for kind in ("Pss_Anon", "Pss_Shmem")) / 1024


READINGS = {
    MEMORY: memory_mib,
    "descriptors": lambda one: one.num_fds(),
    "threads": lambda one: one.num_threads(),
}


def report(samples: list[Sample]) -> int:
    """Print the table; returns 1 where something grew."""
    grown = 0
    series: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        series.setdefault((sample.row, sample.kind), []).append(sample)
    print("| of | what | start | middle | end | slope per hour (95%) | grew |\n|---|---|---|---|---|---|---|")
    for (row, kind), points in series.items():
        steady = points[int(WARM_UP * len(points)) :]
        if len(steady) < LEAST_ROUNDS:
            raise SystemExit(f"only {len(steady)} rounds after the warm-up; {LEAST_ROUNDS} are needed: raise --minutes")
        values, times = [p.value for p in steady], [p.time_s for p in steady]
        slope, _, low, high = theilslopes(values, times)
        grew = low * (times[-1] - times[0]) > TOLERATED.get(kind, 0.5)
        grown += grew
        third = len(values) // 3
        parts = (values[:third], values[third:-third], values[-third:])
        shown = " | ".join(f"{statistics.median(part):.1f}" for part in parts)
        print(f"| {row} | {kind} | {shown} | {3600 * slope:+.2f} ({3600 * low:+.2f} to {3600 * high:+.2f}) | "
              f"{'**yes**' if grew else 'no'} |")  # fmt: skip
    print(f"\n{len(next(iter(series.values())))} rounds; start, middle and end: medians of thirds after the warm-up; "
          f"{grown} of {len(series)} rows grew")  # fmt: skip
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
