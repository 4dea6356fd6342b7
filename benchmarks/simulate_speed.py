"""Speed of the replay: simulated batches per second on one core.

    python benchmarks/simulate_speed.py

Targets: 50,000 batches/s with 8 workers on contended cores, 300,000 batches/s where nothing contends.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from ioprobe.model.simulate import System, simulate

REPETITIONS = 5


def systems() -> dict[str, tuple[System, int, float]]:
    """Return named systems, batches to replay, and the target [batches/s]."""
    rng = np.random.default_rng(0)
    computing = tuple((float(c), 0.0, 0.0) for c in rng.gamma(20.0, 0.0005, 500))
    mixed = tuple((float(c), float(b), 0.0) for c, b in rng.gamma(20.0, 0.0003, (500, 2)))
    costs = {"feed_cpu_s": 2e-4, "receive_cpu_s": 1e-4, "dispatch_cpu_s": 1e-4}
    contended = System(num_workers=8, rows=(computing,), cores=2.0, **costs)
    free = System(num_workers=8, rows=(mixed,), cores=math.inf, step_s=(0.002,), **costs)
    return {
        "8 workers on 2 cores, CPU only": (contended, 20_000, 50_000),
        "the same, with a step": (replace(contended, step_s=(0.004,)), 20_000, 50_000),
        "8 workers on 2 cores, half waiting": (replace(contended, rows=(mixed,)), 20_000, 50_000),
        "8 workers, a core each (recurrence)": (free, 100_000, 300_000),
        "the same, out of order": (replace(free, in_order=False), 100_000, 300_000),
    }


def speed(system: System, batches: int) -> tuple[float, float]:
    """Return the median and the lowest rate over repetitions [batches/s]."""
    rates = []
    for _ in range(REPETITIONS):
        began = time.process_time()
        simulate(system, batches)
        rates.append(batches / (time.process_time() - began))
    return float(np.median(rates)), min(rates)


def main() -> None:
    """Print one line a system."""
    print(f"{'system':38}  {'batches/s':>10}  {'lowest':>10}  {'target':>9}  ratio")
    for name, (system, batches, target) in systems().items():
        middle, low = speed(system, batches)
        print(f"{name:38}  {middle:>10,.0f}  {low:>10,.0f}  {target:>9,.0f}  {middle / target:.1f}")


if __name__ == "__main__":
    main()
