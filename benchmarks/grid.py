"""Measure loaders at many settings, and keep what was measured: ``cells.jsonl`` and one calibration run each.

Every cell is a plain DataLoader, without any instrument of ours, drained or
coupled with an emulated step, past its warm-up, over whole cycles of its data and
whole rounds of its workers.
A file lock, where one is named, keeps other timed work of the machine away.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import gc
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from workloads import Workload, burn

from ioprobe import __version__
from ioprobe.instrument.facts import loader_facts, settings_of
from ioprobe.model.calibrate import calibrate, slow_step_s
from ioprobe.probe.host import measure_host
from ioprobe.probe.load import LoadMeter
from ioprobe.probe.loader_source import shut_down
from ioprobe.probe.loop import LoopMeter
from ioprobe.probe.step import EmulatedStep
from ioprobe.run import LoaderRun, Run, dumps, loads
from ioprobe.run import Workload as Asked

SETTINGS = [(0, 2), (1, 2), (2, 2), (3, 2), (4, 2), (6, 2), (8, 2), (2, 1), (4, 1), (1, 4), (2, 8), (4, 8)]
"""(num_workers, prefetch_factor)."""
CALIBRATED_AT = (2, 2)
STEPS = (0.0, 0.75, 1.4)
"""Step time over the best loader's time per batch; 0 drains the loader."""
QUIET = 0.04
"""Cores that others may use before a cell is measured again."""


@dataclass(frozen=True)
class Cell:
    """One measured setting of one workload."""

    workload: str
    num_workers: int
    prefetch_factor: int
    step_s: float
    repetition: int
    batch_s: float
    """Wall time per batch, steady state [s]."""
    stall_share: float
    batches: int
    first_batch_s: float
    other_cores: float
    """Cores that other processes used meanwhile."""
    spent_s: float
    """Whole measurement, start-up included [s]."""
    burn_s: float
    """CPU time of a fixed piece of work just before and after, the longer of the two: caches, clocks [s]."""

    @property
    def setting(self) -> tuple[int, int, float]:
        """Key of the setting."""
        return self.num_workers, self.prefetch_factor, self.step_s


def fixed_work() -> float:
    """Return the CPU time of a fixed piece of work [s]; it grows when neighbours take caches, memory or the core."""
    best = 1.0
    for _ in range(3):
        began = time.thread_time()
        burn(1.0)
        best = min(best, time.thread_time() - began)
    return best


def wait_for_quiet(most_s: float = 15.0) -> bool:
    """Wait until nothing else computes on this machine; False when it never was."""
    began = time.perf_counter()
    while time.perf_counter() - began < most_s:
        load = LoadMeter().start()
        time.sleep(0.15)
        used = load.stop()
        if used is None or used.other_cores < 0.14:
            return True
    return False


@contextlib.contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """Hold a file lock, so that timed stretches do not overlap."""
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(
    workload: Workload, workers: int, prefetch: int, step_s: float, repetition: int, least_s: float, **changes: Any
) -> Cell:
    """Measure one cell; drained or with an emulated step of constant length."""
    loader = workload.loader(workers, prefetch, **changes)
    step = EmulatedStep(step_s)
    gc.collect()
    burnt = fixed_work()
    load = LoadMeter().start()
    began = time.perf_counter()
    calls: list[float] = []
    returns: list[float] = []
    batch: Any = None
    iterator = iter(loader)
    warm = max(6, 3 * workers * prefetch)
    while True:
        calls.append(time.perf_counter())
        following = next(iterator)
        returns.append(time.perf_counter())
        batch = following  # frees the batch before; that is no waiting
        if step_s:
            step(batch)
        if len(returns) > warm + 1 and _enough(returns, warm, workload.cycle, max(1, workers), least_s):
            break
    spent = time.perf_counter() - began
    used = load.stop()
    del batch, following, iterator
    shut_down(loader)
    call, back = np.array(calls), np.array(returns)
    span = back[-1] - back[warm]
    return Cell(
        workload.name,
        workers,
        prefetch,
        step_s,
        repetition,
        float(span / (len(back) - 1 - warm)),
        float((back - call)[warm + 1 :].sum() / span),
        len(back) - 1 - warm,
        float(back[0] - began),
        used.other_cores if used else 0.0,
        spent,
        max(burnt, fixed_work()),
    )


def _enough(returns: list[float], warm: int, cycle: int, workers: int, least_s: float) -> bool:
    """Whether the window holds whole cycles and rounds of workers, and is long enough."""
    done = len(returns) - 1 - warm
    unit = math.lcm(cycle, workers)  # workers that started together finish together: batches come in rounds
    return done >= 24 and done % unit == 0 and returns[-1] - returns[warm] >= least_s


def calibration(workload: Workload, workers: int, prefetch: int, seconds: float, **changes: Any) -> Run:
    """Measure the loader with ioprobe's instruments: drained at one setting, then shortly with a slow step there.

    And shortly in the main process: what it costs to fill shared memory shows nowhere else.
    """
    run = Run(
        kind="loader",
        created_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        version=__version__,
        host=measure_host(),
        workload=Asked(target=workload.name),
        facts=loader_facts(workload.loader(workers, prefetch, **changes)),
    )
    run.loaders.append(_meter(workload.loader(workers, prefetch, **changes), None, workload, seconds, "baseline"))
    slow = slow_step_s(calibrate(run))
    if slow is not None:
        most = min(seconds, (2 * workers * prefetch + 20) * slow + 0.3)
        loader = workload.loader(workers, prefetch, **changes)
        run.loaders.append(_meter(loader, EmulatedStep(slow), workload, most, "calibrate"))
    run.loaders.append(_meter(workload.loader(0, **changes), None, workload, 0.8, "calibrate"))
    return run


def _meter(loader: Any, step: Any, workload: Workload, seconds: float, purpose: str) -> LoaderRun:
    meter = LoopMeter(
        loader,
        step,
        settings=settings_of(loader),
        seconds=seconds,
        least_s=seconds,
        purpose=purpose,
        batch_samples=workload.samples,
    )
    return meter.run()


def others(run: Run) -> float:
    """Return the cores that other processes used while the loader was measured."""
    return max((m.load.other_cores for m in run.loaders if m.load), default=0.0)


class Store:
    """A folder of results that a later call goes on with."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._cells = folder / "cells.jsonl"

    def cells(self) -> list[Cell]:
        """Return everything measured so far."""
        if not self._cells.exists():
            return []
        return [Cell(**json.loads(line)) for line in self._cells.read_text().splitlines()]

    def add(self, cell: Cell) -> None:
        """Append a cell."""
        with open(self._cells, "a") as file:
            file.write(json.dumps(asdict(cell)) + "\n")

    def run(self, workload: str, name: str = "calibration") -> Run | None:
        """Return a workload's calibration run."""
        path = self.folder / f"{name}-{workload}.json"
        return loads(path.read_bytes(), str(path)) if path.exists() else None

    def add_run(self, workload: str, run: Run, name: str = "calibration") -> None:
        """Keep a workload's calibration run."""
        (self.folder / f"{name}-{workload}.json").write_bytes(dumps(run))


def missing(workload: str, cells: list[Cell], repetitions: int) -> list[tuple[int, int, float]]:
    """Return the settings of a workload that lack quiet repetitions; coupled ones once all drained ones were seen."""
    mine = [c for c in cells if c.workload == workload]
    quiet: dict[tuple[int, int, float], int] = {}
    for cell in mine:
        quiet[cell.setting] = quiet.get(cell.setting, 0) + (cell.other_cores < QUIET)
    drained = [c.batch_s for c in mine if c.step_s == 0 and c.other_cores < QUIET]
    known = sum(1 for w, p in SETTINGS if (w, p, 0.0) in quiet)
    steps = sorted({c.step_s for c in mine if c.step_s})
    if len(steps) < len(STEPS) - 1 and known == len(SETTINGS) and drained:
        steps = [round(fraction * min(drained), 5) for fraction in STEPS[1:]]
    todo = [(w, p, s) for s in (0.0, *steps) for w, p in SETTINGS]
    return [t for t in todo if quiet.get(t, 0) < repetitions]


def collect(
    workload: Workload, store: Store, repetitions: int, least_s: float, calibrate_s: float, lock: Path | None
) -> int:
    """Go once over what is missing of a workload; returns how many settings still lack quiet repetitions."""
    torch.set_num_threads(1)
    before = store.run(workload.name)
    if before is None or others(before) > QUIET:
        with alone(lock):
            wait_for_quiet()
            run = calibration(workload, *CALIBRATED_AT, seconds=calibrate_s)
        if before is None or others(run) < others(before):
            store.add_run(workload.name, run)
    tried: list[tuple[int, int, float]] = []
    # Short stretches: others want the machine, too. Steps follow once the drained loader's times are known.
    while todo := [t for t in missing(workload.name, store.cells(), repetitions) if t not in tried][:12]:
        tried += todo
        with alone(lock):
            for workers, prefetch, step_s in todo:
                wait_for_quiet()
                seen = sum(
                    1 for c in store.cells() if c.workload == workload.name and c.setting == (workers, prefetch, step_s)
                )
                store.add(measure(workload, workers, prefetch, step_s, seen, least_s))
    return len(missing(workload.name, store.cells(), repetitions))
