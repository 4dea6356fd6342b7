"""The loader model's error at settings that were never measured, on this machine.

    python benchmarks/model.py --results model-results                 # everything; half an hour
    python benchmarks/model.py --results model-results --only jpeg,lock --repetitions 1
    python benchmarks/model.py --results model-results --report        # from what is there

Each workload is calibrated at one setting (num_workers=2, prefetch_factor=2): drained, then shortly with a slow
emulated step, and shortly in the main process. Then plain DataLoaders without our instruments are measured at 12
settings x 3 step times and compared with the replay, with the closed form, and with the naive model
max(step, loader). The calibrated setting itself and the drained num_workers=0 are no predictions and left out.
A stopped run goes on where it ended. Name a file with --lock where other timed work shares the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from grid import CALIBRATED_AT, Cell, Store, collect
from workloads import WORKLOADS, folder

from ioprobe.model.bounds import bounds
from ioprobe.model.calibrate import calibrate
from ioprobe.model.predict import calibration_error, predict
from ioprobe.model.profile import Profile, Setting

SHORT_S = 0.002
"""Batches shorter than this have targets of their own [s]."""


@dataclasses.dataclass(frozen=True)
class Error:
    """One setting: measured against three models."""

    workload: str
    num_workers: int
    prefetch_factor: int
    step_s: float
    batch_s: float
    stall_share: float
    spread: float
    """Largest over smallest repetition, minus 1 [fraction]; nan for one."""
    replay: float
    """Predicted over measured throughput, minus 1 [fraction]."""
    closed: float
    naive: float
    replay_stall: float
    """Predicted minus measured stall share [fraction]."""
    closed_stall: float
    naive_stall: float
    inside: bool
    """Whether the stated 90% interval holds the measured throughput."""
    binding: str
    predicted_s: float
    """Predicted time per batch [s]."""
    calibration: float
    """Standard error that the calibration knows of itself [fraction]."""
    foreign_share: float
    """Share of the cores that others used while it was calibrated [fraction]."""
    other_cores: float
    """Cores that others used while it was measured."""


def errors(store: Store, name: str, burn_s: float, tolerance: float) -> list[Error]:
    """Return the errors at all measured settings of a workload; disturbed repetitions are left out."""
    run = store.run(name)
    if run is None:
        return []
    profile = calibrate(run)
    groups: dict[tuple[int, int, float], list[Cell]] = defaultdict(list)
    for cell in store.cells():
        if cell.workload == name:
            groups[cell.setting].append(cell)
    drained = {(c[0].num_workers, c[0].prefetch_factor): _middle(c) for k, c in groups.items() if not k[2]}
    found = []
    for (workers, prefetch, step_s), cells in sorted(groups.items(), key=lambda g: (g[0][2], g[0])):
        if not step_s and (workers == 0 or (workers, prefetch) == CALIBRATED_AT):
            continue
        quiet = [c for c in cells if c.burn_s <= burn_s * (1 + tolerance)] or cells
        loader_s = drained.get((workers, prefetch))
        if loader_s is not None:
            found.append(_error(profile, quiet, workers, prefetch, step_s, loader_s))
    return found


def _middle(cells: Sequence[Cell]) -> float:
    return float(np.median([c.batch_s for c in cells]))


def _error(profile: Profile, cells: list[Cell], workers: int, prefetch: int, step_s: float, loader_s: float) -> Error:
    batch_s, stall = _middle(cells), float(np.median([c.stall_share for c in cells]))
    setting = Setting(workers, prefetch, step_s=step_s)
    found, ceiling = predict(profile, setting), bounds(profile, setting)
    samples = profile.samples_per_batch
    rate, closed = samples / batch_s, ceiling.samples_per_s
    # The naive model knows the loader at this very setting and is still only asked about the coupling.
    naive_s = (loader_s + step_s) if workers == 0 else max(loader_s, step_s)
    times = [c.batch_s for c in cells]
    return Error(
        cells[0].workload,
        workers,
        prefetch,
        step_s,
        batch_s,
        stall,
        max(times) / min(times) - 1 if len(times) > 1 else float("nan"),
        found.samples_per_s.value / rate - 1,
        closed / rate - 1,
        batch_s / naive_s - 1,
        found.stall_share.value - stall,
        max(0.0, 1 - step_s * closed / samples) - stall,
        max(0.0, 1 - step_s / naive_s) - stall,
        found.samples_per_s.low <= rate <= found.samples_per_s.high,
        found.binding,
        samples / found.samples_per_s.value,
        calibration_error(profile, found.binding),
        profile.foreign_share,
        float(np.median([c.other_cores for c in cells])),
    )


def report(store: Store, names: Sequence[str], tolerance: float) -> None:
    """Print one line a workload and the totals against the targets."""
    burn_s = min((c.burn_s for c in store.cells()), default=0.0)
    every: list[Error] = []
    groups = "throughput error: median/p95/max %          stall error: median/p95 points"
    print(f"{'':18} {'':>3}  {'batch':>8}  {'repeat':>6}  {groups}")
    header = f"{'workload':18} {'n':>3}  {'ms':>8}  {'%':>6}  {'replay':>15}  {'closed form':>11}  {'naive':>9}"
    print(f"{header}  {'replay':>10}  {'closed':>10}  {'naive':>10}  in 90%")
    for name in names:
        found = errors(store, name, burn_s, tolerance)
        if found:
            every += found
            print(_line(name, found))
    long = [e for e in every if e.batch_s >= SHORT_S]
    short = [e for e in every if e.batch_s < SHORT_S]
    for title, part, target in (
        (f"batches >= {1e3 * SHORT_S:g} ms", long, "target 3 / 10; stall 2 / 5"),
        (f"batches < {1e3 * SHORT_S:g} ms", short, "target 8 / 30"),
    ):
        if part:
            print(_line(title, part), f" ({target})")
    if every:
        inside = np.mean([e.inside for e in every])
        print(f"90% intervals hold {100 * inside:.0f}% of {len(every)} measured values (target 85 to 95)")
        spreads = [e.spread for e in every if np.isfinite(e.spread)]
        if spreads:
            middle, high = np.percentile(spreads, [50, 95])
            print(f"repeat to repeat, same setting: median {100 * middle:.1f}%, p95 {100 * high:.1f}%")


def _line(name: str, found: Sequence[Error]) -> str:
    def throughput(values: list[float], most: bool = False) -> str:
        a = 100 * np.abs(values)
        text = f"{np.median(a):.1f}/{np.percentile(a, 95):.1f}"
        return f"{text}/{a.max():.1f}" if most else text

    coupled = [e for e in found if e.step_s] or list(found)
    spreads = [e.spread for e in found if np.isfinite(e.spread)]
    spread = f"{100 * np.median(spreads):.1f}" if spreads else "-"
    batch = 1e3 * float(np.median([e.batch_s for e in found]))
    return (
        f"{name:18} {len(found):>3}  {batch:>8.2f}  {spread:>6}  {throughput([e.replay for e in found], True):>15}"
        f"  {throughput([e.closed for e in found]):>11}  {throughput([e.naive for e in coupled]):>9}"
        f"  {throughput([e.replay_stall for e in coupled]):>10}  {throughput([e.closed_stall for e in coupled]):>10}"
        f"  {throughput([e.naive_stall for e in coupled]):>10}  {100 * np.mean([e.inside for e in found]):.0f}%"
    )


def cells_of(store: Store, names: Sequence[str], tolerance: float) -> None:
    """Print every setting of some workloads."""
    burn_s = min((c.burn_s for c in store.cells()), default=0.0)
    for name in names:
        for e in errors(store, name, burn_s, tolerance):
            print(
                f"{name:18} workers {e.num_workers:>2} prefetch {e.prefetch_factor} step {1e3 * e.step_s:6.2f} ms  "
                f"batch {1e3 * e.batch_s:7.2f} ms  replay {100 * e.replay:+6.1f}%  closed {100 * e.closed:+6.1f}%  "
                f"stall {e.stall_share:.3f} replay {100 * e.replay_stall:+5.1f}"
            )


def main() -> None:
    """Measure what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("model-results"), help="folder to keep and go on from")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, by comma")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.8, help="least window of a setting")
    parser.add_argument("--calibrate-seconds", type=float, default=4.0)
    parser.add_argument("--lock", type=Path, help="file to lock while measuring")
    parser.add_argument("--passes", type=int, default=3, help="how often disturbed settings are measured again")
    parser.add_argument(
        "--tolerance", type=float, default=0.08, help="excess of the fixed work's time that is a disturbance"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--cells", action="store_true", help="print every setting")
    options = parser.parse_args()
    names = [n for n in options.only.split(",") if n]
    unknown = sorted(set(names) - set(WORKLOADS))
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}")
    store = Store(options.results)
    if not options.report:
        folder()
        # One workload after the other: the machine's speed drifts, and a calibration tells of the minutes around it.
        for name in names:
            for _ in range(options.passes):
                if not collect(
                    WORKLOADS[name],
                    store,
                    options.repetitions,
                    options.seconds,
                    options.calibrate_seconds,
                    options.lock,
                ):
                    break
    if options.cells:
        cells_of(store, names, options.tolerance)
    report(store, names, options.tolerance)


if __name__ == "__main__":
    main()
