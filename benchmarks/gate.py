"""Does ``compare`` cry wolf, and does it see a wolf? Real measurements on this machine, noise included.

Every group measures five loaders in alternating rounds with fresh workers: four that are equal, and one whose decode
takes 10% more CPU time, by working on for a tenth of what each image took. That makes two A/A comparisons, which share
no data, and one with a planted slowdown, whose base is that of the first A/A comparison. No measurement is used in two
groups.

Rounds are many and short, since what makes equal workers differ most is what each keeps for life: 18 of a fifth of a
second, worker start and end included, about 19 s a group and 32 min in all.

    python benchmarks/gate.py --state /tmp/gate                # measures what is missing to 100 groups, then judges
    python benchmarks/gate.py --state /tmp/gate --minutes 2    # goes on for two minutes, then judges what is there
    python benchmarks/gate.py --state /tmp/gate --groups 0     # judges what is there

Target: at most 1 of 200 A/A comparisons called slower, at least 95 of 100 planted slowdowns caught.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import io
import math
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from ioprobe import run as runs
from ioprobe.diagnosis.compare import compare
from ioprobe.instrument.facts import settings_of
from ioprobe.probe import loop

ARMS = ("a1", "a2", "a3", "a4", "slow")
PAIRS = (("a1", "a2", False), ("a3", "a4", False), ("a1", "slow", True))


SIDE = 384
"""Of an image [pixels]: ten decode in about 20 ms."""


def picture(seed: int = 0) -> bytes:
    """Return a JPEG that decodes roughly like a photograph."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.int16)
    grain = rng.integers(-12, 12, (SIDE, SIDE, 3), dtype=np.int16)
    out = io.BytesIO()
    Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=88)
    return out.getvalue()


class Pictures(Dataset[torch.Tensor]):
    """Decodes one JPEG per sample; where asked to be slow, works on for a tenth of the CPU time that it took."""

    def __init__(self, slow: bool) -> None:
        self.data, self.slow = picture(), slow

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, i: int) -> torch.Tensor:
        begun_s = time.thread_time()
        image = Image.open(io.BytesIO(self.data)).convert("RGB").resize((224, 224))
        if self.slow:
            until_s = time.thread_time() + 0.1 * (time.thread_time() - begun_s)
            while time.thread_time() < until_s:
                pass
        return torch.from_numpy(np.array(image))


def measure_group(rounds: int, seconds: float, seed: int) -> dict[str, runs.Run]:
    """Measure the five loaders in alternating rounds; returns one run per loader."""
    loaders = {arm: DataLoader(Pictures(arm == "slow"), batch_size=10, num_workers=1) for arm in ARMS}
    measured: dict[str, list[runs.LoaderRun]] = {arm: [] for arm in ARMS}
    order = random.Random(seed)
    for _ in range(rounds):
        for arm in order.sample(ARMS, len(ARMS)):
            begun_s = time.monotonic()
            loader = loaders[arm]
            meter = loop.LoopMeter(
                loader,
                None,
                settings=settings_of(loader),
                seconds=seconds,
                least_s=seconds,
                precision=0,
                stacks_hz=0,
            )
            result = meter.run()
            result.begun_s = begun_s
            measured[arm].append(result)
    host, workload = runs.Host(), runs.Workload(target="gate")
    return {
        arm: runs.Run(kind="loader", created_at="", version="", host=host, workload=workload, loaders=measured[arm])
        for arm in ARMS
    }


def save(group: dict[str, runs.Run], place: Path) -> None:
    """Write a group's runs, whole or not at all."""
    temporary = place.with_suffix(".tmp")
    with gzip.open(temporary, "wb") as file:
        for arm in ARMS:
            file.write(runs.dumps(group[arm]) + b"\n")
    temporary.replace(place)


def load(place: Path) -> dict[str, runs.Run]:
    """Read a group's runs."""
    with gzip.open(place, "rb") as file:
        return {arm: runs.loads(line) for arm, line in zip(ARMS, file.read().splitlines(), strict=True)}


def judge(state: Path) -> int:
    """Print the figures of all groups in a folder; 0 where both targets are kept."""
    alarms, equal, caught, planted, undecided = 0, 0, 0, 0, 0
    changes: list[float] = []
    for place in sorted(state.glob("group-*.gz")):
        group = load(place)
        for base, new, slow in PAIRS:
            result = compare(group[base], group[new])
            fetch = next(change for change in result.metrics if change.name == "fetch_cpu_s")
            if slow:
                planted += 1
                caught += result.verdict == "slower"
                changes.append(fetch.change.value)
            else:
                equal += 1
                alarms += result.verdict == "slower"
                undecided += result.verdict in ("undecided", "not judged")
    if not equal:
        print("no group was measured yet")
        return 2
    print(f"A/A: {alarms} of {equal} called slower ({undecided} headline undecided); target at most 1 of 200")
    print(
        f"planted +10% decode: {caught} of {planted} caught; target at least 95 of 100; "
        f"measured change {100 * np.mean(changes):+.1f}% (sd {100 * np.std(changes):.1f}%)"
    )
    return 0 if alarms * 200 <= equal and caught * 100 >= 95 * planted else 1


def main() -> int:
    """Measure what is missing, then judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100, help="groups wanted in all; those in --state count")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no further group after this")
    parser.add_argument("--rounds", type=int, default=18, help="rounds of each loader in a group")
    parser.add_argument("--seconds", type=float, default=0.08, help="length of one round, its worker's end apart [s]")
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "ioprobe-gate")
    args = parser.parse_args()
    args.state.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    # What is imported by now lives for ever; a collection before each round need not look at it.
    gc.collect()
    gc.freeze()
    # Rounds are shorter than the meter's usual time between two looks at the clock.
    loop._CHECK_EVERY_S = 0.01
    begun = time.monotonic()
    there = len(list(args.state.glob("group-*.gz")))
    for number in range(there, args.groups):
        if time.monotonic() - begun > 60 * args.minutes:
            break
        save(measure_group(args.rounds, args.seconds, number), args.state / f"group-{number:03d}.gz")
    return judge(args.state)


if __name__ == "__main__":
    sys.exit(main())
