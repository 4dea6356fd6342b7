"""Fit the error that the model states of itself, and check it on workloads that the fit has not seen.

    python benchmarks/model_intervals.py --results model-results
    python benchmarks/model_intervals.py --results model-results --results results-of-a-busy-host

Takes the cells of benchmarks/model.py. A stated interval is 1.645 standard errors to each side; the variance is the
calibration's own, a relative one for each binding resource (``KNOWN_ERROR``), and one of so many seconds per batch
(``UNEVEN_S``). Each is the least with which the wanted share of the cells is inside, every workload of the same
weight; a resource that binds in few workloads borrows from the others. These come from cells that were measured
while others left the cores alone. ``NEIGHBOURS`` comes from the rest, where others were there at calibration, too.
The share is raised until the intervals hold 85% of the cells of workloads that were left out of the fit.

Last comes how many of the gains that the model predicts over the calibrated setting were there, by their size.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from grid import CALIBRATED_AT, Store
from model import SHORT_S, Error, errors
from workloads import WORKLOADS

from ioprobe.model.predict import CONFIDENCE_90, KNOWN_ERROR

WANTED = 0.90
"""Share of cells that a 90% interval is to hold."""
LEAST = 0.85
"""Share of the cells of workloads left out that it must hold at least."""
ROUNDS = 4
GAINS = (0.02, 0.05, 0.10, 0.20, math.inf)
"""Bands of predicted gains [fraction]."""
BUSY = 0.05
"""Share of the cores used by others from which a calibration tells of neighbours [fraction]."""


@dataclass(frozen=True)
class Fit:
    """Constants of ioprobe.model.predict."""

    known: dict[str, float]
    uneven_s: float
    neighbours: float = 0.0

    def standard_error(self, e: Error) -> float:
        """Return what the fit states for a cell [fraction]."""
        known = self.known.get(e.binding, max(self.known.values()))
        return math.hypot(e.calibration, known, self.uneven_s / e.predicted_s, self.neighbours * e.foreign_share)

    def holds(self, e: Error) -> bool:
        """Whether the interval around the prediction holds the measured rate."""
        # replay is predicted over measured rate, minus 1; the interval lies around the predicted one.
        return abs(1 / (1 + e.replay) - 1) <= CONFIDENCE_90 * self.standard_error(e)


def fit(cells: Sequence[Error], share: float) -> Fit:
    """Return the constants with which that share of the cells is inside, each workload of the same weight."""
    found = Fit(dict.fromkeys(KNOWN_ERROR, 0.0), 0.0)
    for _ in range(ROUNDS):
        known = {name: _known(cells, name, found, share) for name in KNOWN_ERROR}
        found = Fit(known, _uneven(cells, Fit(known, 0.0), share))
    return found


def _known(cells: Sequence[Error], binding: str, so_far: Fit, share: float) -> float:
    """All other resources together weigh as much as one workload."""
    long = [e for e in cells if e.predicted_s >= SHORT_S]
    lacking = [_lacking(e, math.hypot(e.calibration, so_far.uneven_s / e.predicted_s)) for e in long]
    same = [_count(long, lambda o, e=e: o.workload == e.workload and o.binding == binding) for e in long]
    others = sum(1 for e in long if e.binding != binding)
    weight = [1 / n if e.binding == binding else 1 / others for e, n in zip(long, same, strict=True)]
    return _quantile(lacking, weight, share)


def _uneven(cells: Sequence[Error], so_far: Fit, share: float) -> float:
    short = [e for e in cells if e.predicted_s < SHORT_S]
    if not short:
        return 0.0
    lacking = [e.predicted_s * _lacking(e, so_far.standard_error(e)) for e in short]
    return _quantile(lacking, [1 / _count(short, lambda o, e=e: o.workload == e.workload) for e in short], share)


def neighbours(cells: Sequence[Error], known: Fit, share: float) -> float:
    """Return the addition for a host whose cores are all used by others, from cells calibrated beside some."""
    lacking = [_lacking(e, known.standard_error(e)) / e.foreign_share for e in cells]
    return _quantile(lacking, [1 / _count(cells, lambda o, e=e: o.workload == e.workload) for e in cells], share)


def _lacking(e: Error, stated: float) -> float:
    """Standard error that must be added for the cell to be just inside [fraction]."""
    off = abs(1 / (1 + e.replay) - 1) / CONFIDENCE_90
    return math.sqrt(max(0.0, off * off - stated * stated))


def _count(cells: Sequence[Error], alike: Callable[[Error], bool]) -> int:
    return max(1, sum(1 for c in cells if alike(c)))


def _quantile(values: list[float], weights: list[float], share: float) -> float:
    if not values:
        return 0.0
    order = np.argsort(values)
    upto = np.cumsum(np.asarray(weights)[order])
    return float(np.asarray(values)[order][np.searchsorted(upto, share * upto[-1])])


def gains(cells: Sequence[Error]) -> list[tuple[float, float]]:
    """Return predicted and measured gain over the calibrated setting at the same step, of one folder [fractions]."""
    here = {
        (e.workload, e.step_s): e for e in cells if e.step_s and (e.num_workers, e.prefetch_factor) == CALIBRATED_AT
    }
    pairs = [(e, here[e.workload, e.step_s]) for e in cells if (e.workload, e.step_s) in here]
    return [(now.predicted_s / e.predicted_s - 1, now.batch_s / e.batch_s - 1) for e, now in pairs if e is not now]


def gains_told(found: Sequence[tuple[float, float]]) -> str:
    """Return for each band of predicted gains how many were there at all."""
    parts = []
    for low, high in pairwise(GAINS):
        real = [measured > 0 for predicted, measured in found if low < predicted <= high]
        if real:
            band = f"{100 * low:.0f} to {100 * high:.0f}%" if math.isfinite(high) else f"above {100 * low:.0f}%"
            parts.append(f"{band}: {sum(real)} of {len(real)}")
    return "gains that were there, by what was predicted: " + ", ".join(parts)


def left_out(cells: Sequence[Error], share: float) -> list[bool]:
    """Return for each cell whether the fit without its workload holds it."""
    inside = []
    for name in dict.fromkeys(e.workload for e in cells):
        found = fit([e for e in cells if e.workload != name], share)
        inside += [found.holds(e) for e in cells if e.workload == name]
    return inside


def main() -> None:
    """Print the constants, and how often they hold on workloads left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, action="append", required=True, help="folder of benchmarks/model.py")
    parser.add_argument("--quiet", type=float, default=0.12, help="cores that others may use beside a cell")
    parser.add_argument("--tolerance", type=float, default=0.08, help="as in benchmarks/model.py")
    options = parser.parse_args()
    folders = [_cells(folder, options.tolerance) for folder in options.results]
    every = [e for cells in folders for e in cells]
    cells = [e for e in every if e.other_cores <= options.quiet and e.foreign_share <= options.quiet]
    names = {e.workload for e in cells}
    if len(names) < 3:
        parser.error(
            f"cells of {len(names)} workloads measured with at most {options.quiet} cores used by others: too few"
        )
    for share in np.arange(LEAST, 0.99, 0.01):
        inside = left_out(cells, float(share))
        if np.mean(inside) >= LEAST:
            break
    found = fit(cells, float(share))
    print(f"{len(cells)} cells of {len(names)} workloads, share {share:.2f}")
    print(f"workloads left out: intervals hold {100 * np.mean(inside):.0f}%")
    print("KNOWN_ERROR = {" + ", ".join(f'"{k}": {v:.3f}' for k, v in found.known.items()) + "}")
    print(f"UNEVEN_S = {found.uneven_s:.2e}")
    print(gains_told([pair for cells in folders for pair in gains(cells)]))
    busy = [e for e in every if e.foreign_share > BUSY]
    if busy:
        found = Fit(found.known, found.uneven_s, neighbours(busy, found, WANTED))
        print(f"NEIGHBOURS = {found.neighbours:.2f}, from {len(busy)} cells; with it intervals hold", end=" ")
        print(f"{100 * np.mean([found.holds(e) for e in busy]):.0f}% of them")


def _cells(folder: Path, tolerance: float) -> list[Error]:
    store = Store(folder)
    burn_s = min((c.burn_s for c in store.cells()), default=0.0)
    return [e for name in WORKLOADS for e in errors(store, name, burn_s, tolerance)]


if __name__ == "__main__":
    main()
