"""Block reads beside fio: pairs in turn, fresh seeds, ratios of each pair; prints a Markdown table.

    python benchmarks/storage_vs_fio.py FILE [--pairs 5] [--seconds 1] [--pattern random] [--blocks 4k,16k,128k,1M]

FILE should be several GB of real data on the disk to measure; it is only read.
With --lock, each block size is measured while that file is locked (for machines that
several people share). fio must be on PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import statistics
import subprocess
from collections.abc import Iterator

from ioprobe.probe.storage_block import choose_engine, measure_block
from ioprobe.units import parse_block_size

FIO_ENGINES = {"preadv": "psync", "io_uring": "io_uring", "libaio": "libaio", "mmap": "mmap"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--pattern", choices=["random", "sequential"], default="random")
    parser.add_argument("--blocks", default="4k,16k,128k,1M")
    parser.add_argument("--depths", default="1,4,16,64")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--warm", action="store_true", help="through the page cache, warm, instead of O_DIRECT")
    parser.add_argument("--lock")
    arguments = parser.parse_args()
    print(f"ioprobe / fio, {arguments.pattern} {'warm' if arguments.warm else 'direct'}, {arguments.pairs} pairs\n")
    print("| block | depth | engine | ioprobe IOPS | fio IOPS | ratio (min-max) | p50 ratio | p99 ratio | CPU ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    ratios = []
    for block in arguments.blocks.split(","):
        with locked(arguments.lock):
            for depth in arguments.depths.split(","):
                ratios.append(cell(arguments, parse_block_size(block), int(depth), block))
    inside = sum(0.97 <= ratio <= 1.03 for ratio in ratios)
    print(f"\n{inside} of {len(ratios)} cells have a median IOPS ratio within 0.97-1.03; "
          f"median of all cells {statistics.median(ratios):.3f}")  # fmt: skip


@contextlib.contextmanager
def locked(path: str | None) -> Iterator[None]:
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cell(arguments: argparse.Namespace, block_bytes: int, depth: int, label: str) -> float:
    pairs = []
    engine = ""
    for number in range(arguments.pairs):
        order = (ours, theirs) if number % 2 == 0 else (theirs, ours)
        found = {}
        for measure in order:
            if measure is ours:
                found["ours"], engine = ours(arguments, block_bytes, depth)
            else:
                engine = engine or choose_engine(arguments.engine, depth, not arguments.warm, block_bytes)
                found["fio"] = theirs(arguments, block_bytes, depth, engine)
        pairs.append(found)
    ratio = {key: [p["ours"][key] / p["fio"][key] for p in pairs] for key in ("iops", "p50", "p99", "cpu")}
    middle = {key: statistics.median(values) for key, values in ratio.items()}
    mine, fios = (statistics.median(p[who]["iops"] for p in pairs) for who in ("ours", "fio"))
    print(
        f"| {label} | {depth} | {engine} | {mine:,.0f} | {fios:,.0f} | {middle['iops']:.3f} "
        f"({min(ratio['iops']):.2f}-{max(ratio['iops']):.2f}) | {middle['p50']:.2f} | {middle['p99']:.2f} | "
        f"{middle['cpu']:.2f} |",
        flush=True,
    )
    return middle["iops"]


def ours(arguments: argparse.Namespace, block_bytes: int, depth: int) -> tuple[dict[str, float], str]:
    job = measure_block(
        arguments.file,
        pattern=arguments.pattern,
        block_bytes=block_bytes,
        depth=depth,
        direct=not arguments.warm,
        cache="warm" if arguments.warm else "cold",
        seconds=arguments.seconds,
        engine=arguments.engine,
    )
    assert job.cpu_s_per_op is not None
    rate = job.ops / job.window_s
    figures = {"iops": rate, "p50": job.latency_s["p50"], "p99": job.latency_s["p99"], "cpu": job.cpu_s_per_op}
    return figures, job.engine


def theirs(arguments: argparse.Namespace, block_bytes: int, depth: int, engine: str) -> dict[str, float]:
    command = [
        "fio", "--name=pair", f"--filename={arguments.file}", "--readonly", "--time_based", "--randrepeat=0",
        f"--rw={'randread' if arguments.pattern == 'random' else 'read'}", f"--bs={block_bytes}",
        f"--iodepth={depth}", f"--ioengine={FIO_ENGINES[engine]}", f"--direct={int(not arguments.warm)}",
        f"--runtime={round(arguments.seconds * 1000)}ms", "--ramp_time=300ms", "--invalidate=0", "--lat_percentiles=1",
        "--output-format=json",
    ]  # fmt: skip
    if arguments.warm:
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
