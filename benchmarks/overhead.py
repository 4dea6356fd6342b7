"""What the instrumentation costs: the same loader with and without it, paired, interleaved, as a ratio.

    python benchmarks/overhead.py [--pairs 12] [--seconds 2]

Prints time per batch with the hooks over time without them, for short and long batches, CPU-bound and waiting, drained
and coupled with a step, with a bootstrap interval over the pairs. 1.005 is the promise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, Dataset

from ioprobe.instrument.hooks import Recorder, install
from ioprobe.instrument.stacks import StackSampler
from ioprobe.probe.loader_source import shut_down
from ioprobe.stats import bootstrap_ratio


class Work(Dataset[torch.Tensor]):
    """Samples that take a given CPU time or wait."""

    def __init__(self, cpu_s: float, wait_s: float) -> None:
        self.cpu_s, self.wait_s = cpu_s, wait_s

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.thread_time() + self.cpu_s
        while time.thread_time() < end:
            pass
        if self.wait_s:
            time.sleep(self.wait_s)
        return torch.full((1024,), index % 251, dtype=torch.uint8)


CASES: dict[str, tuple[dict[str, float], float]] = {
    "5 ms batches, CPU, drained": ({"cpu_s": 0.005 / 8, "wait_s": 0.0}, 0.0),
    "5 ms batches, waiting, drained": ({"cpu_s": 0.0, "wait_s": 0.005 / 8}, 0.0),
    "20 ms batches, CPU, drained": ({"cpu_s": 0.020 / 8, "wait_s": 0.0}, 0.0),
    "5 ms batches, 5 ms step": ({"cpu_s": 0.0, "wait_s": 0.005 / 16}, 0.005),
    "20 ms batches, 20 ms step": ({"cpu_s": 0.010 / 8, "wait_s": 0.0}, 0.020),
}


def time_per_batch(dataset: Work, step_s: float, seconds: float, *, instrumented: bool) -> float:
    """Return seconds per batch in steady state."""
    loader = DataLoader(dataset, batch_size=8, num_workers=1, prefetch_factor=2)
    uninstall: Callable[[], None] = lambda: None  # noqa: E731
    sampler, recorder = StackSampler(), Recorder()
    if instrumented:
        uninstall = install(recorder)
        sampler.start()
    try:
        began = ended = 0.0
        count = 0
        for k, _ in enumerate(loader):
            if step_s:
                time.sleep(step_s)
            if k == 10:
                began = time.perf_counter()
            elif k > 10:
                # Read here: leaving the loop ends the workers, which is no part of a batch.
                count, ended = k - 10, time.perf_counter()
                if ended - began >= seconds:
                    break
        return (ended - began) / count
    finally:
        if instrumented:
            sampler.stop()
            uninstall()
        shut_down(loader)
        recorder.forget()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    print("| case | bare ms/batch | instrumented / bare | 95% interval | pairs |\n|---|---|---|---|---|")
    for name, (costs, step_s) in CASES.items():
        bare, timed = [], []
        for k in range(args.pairs):
            for instrumented in (k % 2 == 0, k % 2 == 1):  # which comes first alternates
                found = time_per_batch(Work(**costs), step_s, args.seconds, instrumented=instrumented)
                (timed if instrumented else bare).append(found)
        ratio = bootstrap_ratio(timed, bare)
        mean_ms = 1e3 * sum(bare) / len(bare)
        print(f"| {name} | {mean_ms:.3f} | {ratio.value:.4f} | {ratio.low:.4f} to {ratio.high:.4f} | {args.pairs} |",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
