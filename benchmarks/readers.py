"""Our tar and Parquet readers against webdataset's and pyarrow's own iteration of the same data.

    python benchmarks/readers.py [--samples 4000] [--rounds 7]

Both sides deliver every field of every sample as bytes (or numbers) from a warm
page cache, in one process and one thread, interleaved pair by pair; the figure
is the ratio of rates with a bootstrap interval over the pairs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ioprobe.data.formats import load_format
from ioprobe.data.shards import Shard
from ioprobe.data.spec import Spec
from ioprobe.data.synth import synthesize
from ioprobe.stats import bootstrap_ratio
from ioprobe.units import format_rate

Read = Callable[[list[Path]], Iterator[Any]]


def ours(name: str) -> Read:
    """Return our reader of a format as a function of the shards."""
    module = load_format(name)

    def read(paths: list[Path]) -> Iterator[Any]:
        for path in paths:
            yield from module.read_samples(Shard(str(path), path.stat().st_size))

    return read


def read_webdataset(paths: list[Path]) -> Iterator[Any]:
    """Iterate as webdataset's users do, without a decoder."""
    import webdataset

    yield from webdataset.WebDataset([str(p) for p in paths], shardshuffle=False, empty_check=False)


def read_pyarrow(paths: list[Path]) -> Iterator[Any]:
    """Iterate rows as pyarrow gives them: batch by batch, each row a dict."""
    import pyarrow.parquet as pq

    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(use_threads=False):
                yield from batch.to_pylist()


def measure(read: Read, paths: list[Path], samples: int) -> float:
    """Return the rate of one pass [samples/s]."""
    began = time.perf_counter()
    found = sum(1 for _ in read(paths))
    elapsed = time.perf_counter() - began
    if found != samples:
        raise SystemExit(f"{read.__name__} delivered {found} of {samples} samples")
    return samples / elapsed


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where the data is written for the time being")
    options = parser.parse_args()
    cases: list[tuple[str, str, str, dict[str, Any], Read]] = [
        ("tar, 2 kB tokens", "webdataset", "tokens", {}, read_webdataset),
        ("tar, 30 kB arrays", "webdataset", "array", {"sample_bytes": 30_000}, read_webdataset),
        ("tar, 110 kB arrays", "webdataset", "array", {"sample_bytes": 110_000}, read_webdataset),
        ("Parquet, token lists", "parquet", "tokens", {}, read_pyarrow),
        ("Parquet, 30 kB binary", "parquet", "array", {"sample_bytes": 30_000}, read_pyarrow),
        ("Parquet, 110 kB binary", "parquet", "array", {"sample_bytes": 110_000}, read_pyarrow),
    ]
    print(f"{'case':<24} {'ours':>20} {'theirs':>20}  ours/theirs (95% interval)")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for title, format_name, kind, more, peer in cases:
            spec = Spec(format=format_name, kind=kind, samples=options.samples, **more)
            place = Path(folder) / title.replace(" ", "-")
            synthesize(spec, str(place))
            paths = sorted(p for p in place.iterdir() if not p.name.startswith("."))
            mine, other = [], []
            for number in range(options.rounds + 1):
                pair = (measure(ours(format_name), paths, spec.samples), measure(peer, paths, spec.samples))
                if number:  # the first pair warms cache and imports
                    mine.append(pair[0])
                    other.append(pair[1])
            ratio = bootstrap_ratio(mine, other)
            rates = [format_rate(sum(v) / len(v)) for v in (mine, other)]
            print(f"{title:<24} {rates[0]:>20} {rates[1]:>20}  {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")


if __name__ == "__main__":
    main()
