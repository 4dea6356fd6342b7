"""How long static checks take: 100 pipelines in one config, and a listing of 100,000 shards.

    python benchmarks/check_speed.py

Times whole processes (`ioprobe check` as CI runs it, interpreter start included): best and median of five, and CPU.
Targets: under 0.5 s for 100 pipelines, under 5 s for 100,000 shards.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

REPEATS = 5


def seconds_of(arguments: list[str], repeats: int = REPEATS) -> tuple[float, float, float]:
    """Return (best wall time, median wall time, CPU time with children) of a command [s]; it must give a verdict."""
    times = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(repeats):
        begun = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "ioprobe_cli", *arguments], capture_output=True, text=True)
        times.append(time.perf_counter() - begun)
        if done.returncode == 2:
            raise SystemExit(f"no verdict: {done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / repeats
    return min(times), statistics.median(times), cpu_s


def write_pipelines(place: Path, count: int) -> None:
    """Write a config of so many pipelines, half of them with something to object to."""
    lines = ["[host]", "cores = 64", "accelerators = 8", 'memory_bytes = "512GiB"', 'shm_bytes = "64GiB"']
    for n in range(count):
        lines += [
            f"[pipelines.p{n:03d}]",
            f"num_workers = {4 + n % 2 * 100}",
            "prefetch_factor = 4",
            'batch_bytes = "38MiB"',
            "batch_size = 256",
            f'target = "s3://bucket/set{n}-{{0000..{n % 7 + 64:04d}}}.tar"',
            "ranks = 16",
        ]
    place.write_text("\n".join(lines) + "\n")


def write_shards(folder: Path, count: int) -> None:
    """Write so many tiny tar shards; all are links to one file but for their names."""
    first = folder / "000000.tar"
    with tarfile.open(first, "w") as tar:
        tar.addfile(tarfile.TarInfo("0.txt"))
    source, links = first, 1
    for n in range(1, count):
        if links >= 30_000:  # file systems bound the links to one file
            source, links = folder / f"{n:06d}.tar", 1
            source.write_bytes(first.read_bytes())
            continue
        (folder / f"{n:06d}.tar").hardlink_to(source)
        links += 1


def main() -> int:
    """Measure both and print them with their targets."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pipelines(folder / "ioprobe.toml", 100)
        static = seconds_of(["check", str(folder / "ioprobe.toml")])
        floor = seconds_of(["--version"])
        shards = folder / "shards"
        shards.mkdir()
        write_shards(shards, 100_000)
        listing = seconds_of(["check", f"{shards}/*.tar", "-q"], 3)
    for what, (best_s, median_s, cpu_s), target_s in (
        ("interpreter and --version", floor, None),
        ("100 pipelines", static, 0.5),
        ("100,000 shards", listing, 5.0),
    ):
        goal = f"; target {target_s:g} s" if target_s else ""
        print(f"{what}: best {best_s:.2f} s, median {median_s:.2f} s, CPU {cpu_s:.2f} s{goal}")
    # Other processes only ever add to a time, so the best of several is nearest to what the check itself takes.
    return 0 if static[0] < 0.5 and listing[0] < 5 else 1


if __name__ == "__main__":
    sys.exit(main())
