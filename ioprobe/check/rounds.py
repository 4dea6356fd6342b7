"""Measure two loaders in alternating rounds, so that they can be compared pair by pair.

Two equal loaders whose workers live for minutes differ by several per cent for as long as they live (where their
memory lies, which core they got), and the host drifts between two runs. Short rounds with fresh workers, one of
each loader close together, make both fall out of the comparison.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from ioprobe import __version__
from ioprobe.check.targets import shown
from ioprobe.errors import MeasureError
from ioprobe.probe import protocol
from ioprobe.probe.supervise import Supervisor
from ioprobe.run import LoaderFacts, LoaderRun, Run, Workload, now_utc

Progress = Callable[[int, int], None]


def measure_rounds(
    loads: list[protocol.Load],
    *,
    rounds: int = 16,
    seconds: float = 1.0,
    hang_s: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[tuple[LoaderFacts, list[LoaderRun]]]:
    """Return facts and rounds of each loader, in the order given.

    Args:
        loads: What to load; each gets a process of its own. With a step it is measured in the loop, else alone.
        rounds: Measurements of each loader.
        seconds: Length of one measurement [s]; starting the workers comes on top.
        hang_s: Longest time without progress [s].
        seed: Of the order within each round.
        progress: Called with the rounds done and the rounds in all.

    Raises:
        TargetError: a factory failed or hung.
        MeasureError: a measurement broke.
    """
    supervisors = [Supervisor(hang_s=hang_s) for _ in loads]
    try:
        facts = [supervisor.load(load) for supervisor, load in zip(supervisors, loads, strict=True)]
        measured: list[list[LoaderRun]] = [[] for _ in loads]
        order = random.Random(seed)
        for done in range(rounds):
            for k in order.sample(range(len(loads)), len(loads)):
                measured[k].append(_one(supervisors[k], loads[k], seconds))
            if progress:
                progress(done + 1, rounds)
        return list(zip(facts, measured, strict=True))
    finally:
        for supervisor in supervisors:
            supervisor.end()


def _one(supervisor: Supervisor, load: protocol.Load, seconds: float) -> LoaderRun:
    begun_s = time.monotonic()
    coupled = load.step is not None or load.step_s is not None
    # Never stopped early: rounds of one length weigh the same.
    result = supervisor.measure(protocol.Measure(coupled=coupled, seconds=seconds, least_s=seconds, precision=0.0))
    if result.failure is not None:
        raise MeasureError(
            f"measuring '{shown(load.target)}' broke: {result.failure.sentence}",
            hint=result.failure.hint or "run `ioprobe loader` on it",
        )
    result.begun_s = begun_s
    return result


def measure_pair(
    base: protocol.Load, new: protocol.Load, *, rounds: int, seconds: float, hang_s: float, progress: Progress | None
) -> tuple[Run, Run]:
    """Return a run of each of two loaders, measured in alternating rounds; see :func:`measure_rounds`."""
    from ioprobe.probe.host import measure_host

    host = measure_host(with_torch=True)
    created_at = now_utc()
    measured = measure_rounds([base, new], rounds=rounds, seconds=seconds, hang_s=hang_s, progress=progress)
    first, second = (
        Run(
            kind="compare",
            created_at=created_at,
            version=__version__,
            host=host,
            workload=Workload(target=shown(load.target), step=load.step or load.step_source or None, seconds=seconds),
            facts=facts,
            loaders=loaders,
        )
        for load, (facts, loaders) in zip((base, new), measured, strict=True)
    )
    return first, second
