"""Block reads beside fio: pairs in turn, fresh seeds, ratios of each pair; prints a Markdown table.

    python benchmarks/storage_vs_fio.py FILE [--state STATE.json --limit 120] [--pairs 5] [--seconds 1]
        [--patterns random,sequential] [--blocks 4k,16k,128k,1M] [--depths 1,4,16,64] [--engine auto] [--warm] [--fixed]

FILE should be several GB of real data on the disk to measure; it is only read. With --state, every pair is kept
there and a later call goes on with those that are missing; --limit ends a call after that many seconds, so that
the whole matrix can be measured in slices. fio must be on PATH; it runs with its defaults.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ioprobe.probe.storage_block import choose_engine, measure_block
from ioprobe.units import parse_block_size

FIO_ENGINES = {"preadv": "psync", "io_uring": "io_uring", "libaio": "libaio", "mmap": "mmap"}
TARGETS: dict[str, tuple[float, float]] = {
    "iops": (0.97, 1.03), "p50": (0.95, 1.05), "p99": (0.90, 1.10), "cpu": (0.0, 1.10),
}  # fmt: skip
"""What is measured -> within which ratios to fio the median of the pairs should lie."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Cell:
    """One job of the matrix."""

    pattern: str
    block: str
    depth: int
    engine: str
    warm: bool

    @property
    def key(self) -> str:
        """The cell's name in the state file."""
        return f"{self.pattern} {self.block} x{self.depth} {self.engine} {'warm' if self.warm else 'direct'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--state", type=Path, help="keeps the pairs measured so far")
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin no pair after so many seconds")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--patterns", default="random,sequential")
    parser.add_argument("--blocks", default="4k,16k,128k,1M")
    parser.add_argument("--depths", default="1,4,16,64")
    parser.add_argument("--engine", default="auto")
    parser.add_argument(
        "--fixed", action="store_true", help="let fio's io_uring register buffers and file, as ours does"
    )
    parser.add_argument("--warm", action="store_true", help="through the page cache, warm, instead of O_DIRECT")
    arguments = parser.parse_args()
    cells = [
        Cell(pattern, block, int(depth), engine_of(arguments, int(depth), block), arguments.warm)
        for pattern in arguments.patterns.split(",")
        for block in arguments.blocks.split(",")
        for depth in arguments.depths.split(",")
    ]
    state: dict[str, list[dict[str, Figures]]] = {}
    if arguments.state is not None and arguments.state.exists():
        state = json.loads(arguments.state.read_text())
    measure_missing(arguments, cells, state)
    report(cells, state, arguments.pairs)


def engine_of(arguments: argparse.Namespace, depth: int, block: str) -> str:
    return choose_engine(arguments.engine, depth, not arguments.warm, parse_block_size(block))


def measure_missing(arguments: argparse.Namespace, cells: list[Cell], state: dict[str, Any]) -> None:
    """Measure pair after pair, each of all cells before the next, so that a disk that drifts drifts for all."""
    until = time.monotonic() + arguments.limit
    for number in range(arguments.pairs):
        for cell in cells:
            pairs = state.setdefault(cell.key, [])
            if len(pairs) > number:
                continue
            if time.monotonic() > until:
                return
            sides: list[tuple[str, Callable[[Any, Cell], Figures]]] = [("ours", ours), ("fio", theirs)]
            pairs.append({name: side(arguments, cell) for name, side in sides[:: -1 if number % 2 else 1]})
            if arguments.state is not None:
                arguments.state.write_text(json.dumps(state))


def report(cells: list[Cell], state: dict[str, list[dict[str, Figures]]], wanted: int) -> None:
    print("| job | pairs | ioprobe IOPS | fio IOPS | ratio (min-max) | p50 ratio | p99 ratio | CPU ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    inside = dict.fromkeys(TARGETS, 0)
    complete = 0
    for cell in cells:
        pairs = state.get(cell.key, [])
        if not pairs:
            continue
        ratios = {name: [pair["ours"][name] / pair["fio"][name] for pair in pairs] for name in TARGETS}
        middle = {name: statistics.median(values) for name, values in ratios.items()}
        mine, fios = (statistics.median(pair[who]["iops"] for pair in pairs) for who in ("ours", "fio"))
        shown = {n: f"{v:.2f}" + ("" if within(n, v) else " !") for n, v in middle.items()}
        print(
            f"| {cell.key} | {len(pairs)} | {mine:,.0f} | {fios:,.0f} | {middle['iops']:.3f}"
            f"{'' if within('iops', middle['iops']) else ' !'} ({min(ratios['iops']):.2f}-{max(ratios['iops']):.2f}) | "
            f"{shown['p50']} | {shown['p99']} | {shown['cpu']} |"
        )
        complete += len(pairs) >= wanted
        for name, value in middle.items():
            inside[name] += within(name, value)
    measured = sum(bool(state.get(cell.key)) for cell in cells)
    targets = ", ".join(f"{name} {inside[name]}" for name in TARGETS)
    print(f"\n{complete} of {len(cells)} cells have {wanted} pairs. Of {measured} measured, medians within the target "
          f"(others marked !): {targets}")  # fmt: skip


def within(name: str, ratio: float) -> bool:
    low, high = TARGETS[name]
    return low <= ratio <= high


def ours(arguments: argparse.Namespace, cell: Cell) -> Figures:
    job = measure_block(
        arguments.file,
        pattern=cell.pattern,
        block_bytes=parse_block_size(cell.block),
        depth=cell.depth,
        direct=not cell.warm,
        cache="warm" if cell.warm else "cold",
        seconds=arguments.seconds,
        engine=cell.engine,
    )
    assert job.cpu_s_per_op is not None
    rate = job.ops / job.window_s
    return {"iops": rate, "p50": job.latency_s["p50"], "p99": job.latency_s["p99"], "cpu": job.cpu_s_per_op}


def theirs(arguments: argparse.Namespace, cell: Cell) -> Figures:
    command = [
        "fio", "--name=pair", f"--filename={arguments.file}", "--readonly", "--time_based", "--randrepeat=0",
        f"--rw={'randread' if cell.pattern == 'random' else 'read'}", f"--bs={parse_block_size(cell.block)}",
        f"--iodepth={cell.depth}", f"--ioengine={FIO_ENGINES[cell.engine]}", f"--direct={int(not cell.warm)}",
        f"--runtime={round(arguments.seconds * 1000)}ms", "--ramp_time=300ms", "--invalidate=0", "--lat_percentiles=1",
        "--output-format=json",
    ]  # fmt: skip
    if cell.engine == "io_uring" and arguments.fixed:
        command += ["--fixedbufs=1", "--registerfiles=1"]
    if cell.warm:
        command.append("--size=1g")  # as much as ioprobe warms
    # fio 3.33 sometimes does not end after a short run; subprocess kills it then.
    for _ in range(3):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=10 + 3 * arguments.seconds
            )
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        raise SystemExit("fio does not end")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    read = job["read"]
    percentile = read["lat_ns"]["percentile"]
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * read["runtime"] / 1e3
    return {
        "iops": read["iops"],
        "p50": percentile["50.000000"] / 1e9,
        "p99": percentile["99.000000"] / 1e9,
        "cpu": cpu_s / read["total_ios"],
    }


if __name__ == "__main__":
    main()
