"""Residency of many files, and dropping them: time and proof; prints a Markdown table.

python benchmarks/pagecache.py [--files 20000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from ioprobe.probe import pagecache

BYTES = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        paths = write(Path(folder), arguments.files)
        report(paths)


def write(folder: Path, count: int) -> list[str]:
    data = os.urandom(BYTES)
    paths = []
    for number in range(count):
        path = folder / f"{number % 100:02d}" / f"{number}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        paths.append(str(path))
    os.sync()
    return paths


def report(paths: list[str]) -> None:
    print(f"{len(paths)} files of {BYTES} bytes\n")
    print("| what | seconds (best, median of 5) | resident before | after |")
    print("| --- | --- | --- | --- |")
    row("residency by cachestat", lambda: pagecache.residency(paths))

    def missing(fd: int, offset: int = 0, length: int = 0) -> tuple[int, int]:
        raise OSError(38, "as before Linux 6.5")

    with mock.patch.object(pagecache, "cachestat", missing):
        row("residency by mincore", lambda: pagecache.residency(paths))
    began = time.perf_counter()
    dropped = pagecache.drop(paths)
    seconds = time.perf_counter() - began
    print(f"| dropping, both looks included | {seconds:.3f} | {dropped.before:.3f} | {dropped.after:.3f} |")


def row(what: str, measure: Callable[[], pagecache.Residency]) -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        found = measure()
        times.append(time.perf_counter() - began)
    print(f"| {what} | {min(times):.3f}, {statistics.median(times):.3f} | {found.share:.3f} | |")


if __name__ == "__main__":
    main()
