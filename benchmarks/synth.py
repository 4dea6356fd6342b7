"""How fast synth writes, and how close its JPEGs are to photographs.

    python benchmarks/synth.py [--folder DIR] [--megabytes 1024] [--rounds 5]

Three figures, each a ratio within one run:

- write: bytes/s of raw samples against ``dd bs=4M conv=fsync`` writing the same
  number of bytes to the same file system; both sides end with fsync.
- cores: CPU seconds of the writer processes over wall seconds times cores, for
  image shards. Start-up and the base images are within the wall time.
- photographs: bytes/pixel and decode seconds/pixel of synthesized JPEGs over
  those of scikit-image's photographs at the same quality; decoding interleaved.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ioprobe.data.samples import JPEG_QUALITY, make_sample
from ioprobe.data.spec import Spec, resolve
from ioprobe.data.synth import synthesize
from ioprobe.data.writers import usable_cores
from ioprobe.stats import Estimate, bootstrap_ratio
from ioprobe.units import format_bandwidth, format_share

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png")


def write_rate_of_dd(folder: Path, size: int) -> float:
    """Return bytes/s of dd with fsync."""
    place = folder / "dd"
    began = time.perf_counter()
    command = ["dd", "if=/dev/zero", f"of={place}", "bs=4M", f"count={size >> 22}", "conv=fsync", "status=none"]
    subprocess.run(command, check=True)
    elapsed = time.perf_counter() - began
    place.unlink()
    return (size >> 22 << 22) / elapsed


def write_rate_of_synth(folder: Path, size: int, workers: int) -> float:
    """Return bytes/s of raw samples, 1 MiB each, in shards of 64 MiB."""
    spec = Spec(kind="array", samples=size >> 20, sample_bytes=1 << 20, shard_bytes=64 << 20)
    place = folder / "synth"
    began = time.perf_counter()
    written = synthesize(spec, str(place), workers=workers)
    elapsed = time.perf_counter() - began
    shutil.rmtree(place)
    return written.total_bytes / elapsed


def compare_writes(folder: Path, size: int, rounds: int) -> None:
    """Print the write ratio, pairs in alternating order."""
    workers = usable_cores()
    for name, count in (("one process", 0), (f"{workers} processes", workers)):
        mine: list[float] = []
        other: list[float] = []
        for number in range(rounds):
            if number % 2:
                other.append(write_rate_of_dd(folder, size))
            mine.append(write_rate_of_synth(folder, size, count))
            if not number % 2:
                other.append(write_rate_of_dd(folder, size))
        ratio = bootstrap_ratio(mine, other)
        print(f"write, {name}: synth {_mean(mine)}, dd {_mean(other)}; synth/dd {_text(ratio)}")


def measure_cores(folder: Path, samples: int) -> None:
    """Print the share of all cores that the writers of image shards use."""
    cores = usable_cores()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time()
    busy = _busy_of_others()
    began = time.perf_counter()
    synthesize(Spec(samples=samples, shard_samples=max(1, samples // 32)), str(folder / "images"), workers=cores)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + time.process_time() - own
    others = max(0.0, _busy_of_others() - busy - used)
    shutil.rmtree(folder / "images")
    print(
        f"cores: {samples / wall:.0f} images/s; {format_share(used / (wall * cores))} of {cores} cores, "
        f"{format_share(used / (wall * cores - others))} of what other processes left"
    )


def _busy_of_others() -> float:
    """Return CPU seconds that the whole machine has used (user, nice, system, interrupts)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = sum(int(fields[i]) for i in (0, 1, 2, 5, 6, 7))
    return ticks / os.sysconf("SC_CLK_TCK")


def compare_photographs(rounds: int) -> None:
    """Print bytes/pixel and decode time of synthesized JPEGs over those of photographs."""
    import skimage
    from PIL import Image

    folder = Path(skimage.__file__).parent / "data"
    real = []
    for name in PHOTOGRAPHS:
        out = io.BytesIO()
        Image.open(folder / name).convert("RGB").save(out, "JPEG", quality=JPEG_QUALITY)
        real.append(out.getvalue())
    spec = resolve(Spec(samples=24))
    made = [make_sample(spec, i)["image"] for i in range(spec.samples)]
    times = [(_decode_s_per_pixel(made), _decode_s_per_pixel(real)) for _ in range(rounds)]
    ratio = bootstrap_ratio([t[0] for t in times], [t[1] for t in times])
    sizes = (_bytes_per_pixel(made), _bytes_per_pixel(real))
    print(
        f"photographs at quality {JPEG_QUALITY}: synth {sizes[0]:.3f} bytes/pixel, real {sizes[1]:.3f}, "
        f"ratio {sizes[0] / sizes[1]:.2f}; decode time per pixel, synth/real {_text(ratio)}"
    )


def _bytes_per_pixel(blobs: Sequence[bytes]) -> float:
    return sum(len(b) / _pixels(b) for b in blobs) / len(blobs)


def _pixels(blob: bytes) -> int:
    from PIL import Image

    with Image.open(io.BytesIO(blob)) as image:
        return image.width * image.height


def _decode_s_per_pixel(blobs: Sequence[bytes]) -> float:
    """Return the mean over images of the fastest of three decodings, per pixel [s]."""
    from PIL import Image

    total = 0.0
    for blob in blobs:
        best = float("inf")
        for _ in range(3):
            began = time.perf_counter()
            Image.open(io.BytesIO(blob)).convert("RGB")
            best = min(best, time.perf_counter() - began)
        total += best / _pixels(blob)
    return total / len(blobs)


def _mean(rates: Sequence[float]) -> str:
    return format_bandwidth(sum(rates) / len(rates))


def _text(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where to write for the time being")
    parser.add_argument("--megabytes", type=int, default=1024, help="MiB written a round and side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=4096)
    options = parser.parse_args()
    compare_photographs(options.rounds)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure_cores(Path(folder), options.images)
        compare_writes(Path(folder), options.megabytes << 20, options.rounds)


if __name__ == "__main__":
    main()
