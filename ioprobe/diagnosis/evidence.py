"""Everything that the verdict rests on, gathered once from a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ioprobe import stats
from ioprobe.diagnosis.costs import WorkerCosts, worker_costs
from ioprobe.diagnosis.steady import Steady, steady
from ioprobe.model.helpers import FULL, helper_cpu_s, threads_compute
from ioprobe.run import Failure, LoaderFacts, LoaderRun, LoaderSettings, Run, StackShares, Stage, StepRun
from ioprobe.stats import Estimate
from ioprobe.units import format_seconds, format_share


@dataclass(frozen=True)
class Communication:
    """What of the step alone no computation hides."""

    share: Estimate
    """Of the step's time [fraction]."""
    text: str
    """How it was found, in words that follow the figure."""

    @property
    def amount(self) -> str:
        """Return the share in words, with its interval where that is wide."""
        low, high = self.share.low, self.share.high
        wide = f" ({format_share(low)} to {format_share(high)})" if high - low > 0.02 else ""
        return format_share(self.share.value) + wide


@dataclass(frozen=True)
class StepEvidence:
    """The step alone."""

    samples_per_s: Estimate
    seconds: float
    """Mean time of a step [s]."""
    communication: Communication | None
    """The larger of what the trace shows and what goes away with gradient synchronisation; None where neither is known.
    """
    transfer_share: float | None
    cores: float | None
    """Cores that the step keeps busy; None where it was not measured."""
    emulated: bool
    pause_share: float
    """Share of the step's time in pauses at least five times the median step (checkpoints, logging)."""
    coupled: bool = False
    """Whether it was timed within the loop, not alone."""


@dataclass(frozen=True)
class Scaling:
    """The loader drained at a second number of workers."""

    num_workers: int
    samples_per_s: Estimate
    ratio: float
    """Rate at the larger number of workers over the rate at the smaller."""
    workers_ratio: float
    """The larger number of workers over the smaller."""

    @property
    def saturated(self) -> bool:
        """Whether more workers brought next to nothing."""
        return self.ratio < 1 + 0.25 * (self.workers_ratio - 1)


@dataclass(frozen=True)
class Evidence:
    """The run, read once."""

    run: Run
    loop: Steady | None
    alone: Steady | None
    step: StepEvidence | None
    costs: WorkerCosts | None
    """From the loader drained alone, else from the loop."""
    loop_costs: WorkerCosts | None
    scaling: Scaling | None
    settings: LoaderSettings | None
    facts: LoaderFacts
    cores: float
    failures: list[Failure]

    @property
    def stall(self) -> float | None:
        """Share of the loop's time lost to the input side: waiting, and freeing what came [fraction]."""
        return None if self.loop is None else self.loop.stall_share.value + self.loop.release_share

    @property
    def ratio(self) -> float | None:
        """Loader's rate alone over the step's rate alone."""
        if self.alone is None or self.step is None:
            return None
        return self.alone.samples_per_s.value / self.step.samples_per_s.value

    @property
    def cpu_bound(self) -> bool:
        """Whether the workers compute for more than half of their time."""
        costs = self.loop_costs or self.costs
        return costs is not None and costs.cpu_share > 0.5

    @property
    def waits_for_data(self) -> bool:
        """Whether the input side costs the loop a noticeable part, or the loader alone is slower than the step."""
        return (self.stall or 0.0) >= 0.08 or (self.ratio or 9.0) < 1.0

    @property
    def workers(self) -> int:
        """``num_workers``; 0 where there are none or it is not known."""
        return self.settings.num_workers if self.settings else 0

    @property
    def other_cores(self) -> float:
        """Cores that neither this loader nor the step used while the loader was drained [cores]."""
        measured = self.run.loader_alone() or self.run.loop()
        load = measured.load if measured else None
        if load is None or self.costs is None or measured is None or self.alone is None:
            return 0.0
        batches_per_s = 1 / self.alone.cycle_s
        main = self.alone.wait_cpu_share
        ours = self.costs.all_cpu_s * batches_per_s + main
        return max(0.0, load.own_cores + load.other_cores - ours - 0.1)

    @property
    def processes_fill_cores(self) -> bool:
        """Whether no core is free while the loader is drained, and most of its own go to processes of the workers.

        Whatever else workers then wait for, more of them find no core.
        """
        measured = self.run.loader_alone() or self.run.loop()
        load, seen = measured.load if measured else None, self.alone or self.loop
        if load is None or seen is None or self.costs is None:
            return False
        full = load.own_cores + load.other_cores >= FULL * self.cores
        return full and self.costs.process_cpu_s / seen.cycle_s >= 0.5 * load.own_cores

    @property
    def worker_cores(self) -> float:
        """Cores that the workers may use: those of their CPU masks, where these are narrower than the job's."""
        measured = self.run.loader_alone() or self.run.loop()
        bound = measured.worker_cores if measured is not None else None
        return self.cores if bound is None else min(self.cores, bound)

    @property
    def foreign_cores(self) -> float:
        """Cores used by processes outside the measured ones [cores]."""
        measured = self.run.loader_alone() or self.run.loop()
        return measured.load.other_cores if measured and measured.load else 0.0

    @property
    def interference(self) -> float | None:
        """The step's time within the loop over its time alone; None where one of them is missing."""
        if self.loop is None or self.loop.step_s is None or self.step is None or self.step.seconds <= 0:
            return None
        if self.step.coupled:
            return None
        return self.loop.step_s / self.step.seconds

    @property
    def threads_compute(self) -> bool:
        """Whether threads of the main process, beside the one that trains, were seen at work and not waiting."""
        run = self.run.loop() or self.run.loader_alone()
        return run is not None and threads_compute(run)

    @property
    def main_alone(self) -> StackShares | None:
        """Stacks of the loop's own thread while the loader ran alone; None for too few."""
        run = self.run.loader_alone()
        main = next((s for s in run.stacks if s.role == "main"), None) if run else None
        return main if main is not None and main.samples >= 12 else None

    def inline_share(self) -> float:
        """Share of the drained loader's time that the loop's own thread works on batches, by its CPU and its stacks."""
        run, main = self.run.loader_alone(), self.main_alone
        computed = sum(run.main.wait_cpu_s) / max(1e-9, sum(run.main.wait_s)) if run is not None else 0.0
        if main is None:
            return min(1.0, computed)
        work = {Stage.SAMPLER, Stage.READ, Stage.DECODE, Stage.TRANSFORM, Stage.COLLATE, Stage.TRANSFER}
        if self.threads_compute:
            work.discard(Stage.READ)  # waiting for a future of theirs looks like reading
        return min(1.0, max(computed, sum(main.stages.get(stage, 0) for stage in work) / main.samples))

    def main_share(self, stage: Stage) -> float:
        """Share of the drained loader's time that the main process spends in a stage (sampler, transport)."""
        alone = self.alone or self.loop
        if alone is None:
            return 0.0
        return {Stage.SAMPLER: alone.sampler_share, Stage.TRANSPORT: alone.transport_share}.get(stage) or 0.0


def gather(run: Run) -> Evidence:
    """Return the evidence in a run."""
    loop_run, alone_run = run.loop(), run.loader_alone()
    loop, alone = steady(loop_run), steady(alone_run)
    settings = next((m.settings for m in (loop_run, alone_run) if m is not None and m.settings), None)
    facts = run.facts or LoaderFacts()
    cores = max(1.0, run.host.usable_cores)
    helpers = helper_cpu_s(alone_run, run.loaders, cores) if alone_run is not None else 0.0
    loop_costs = worker_costs(loop_run, _depth(loop_run), helpers)
    alone_costs = worker_costs(alone_run, _depth(alone_run), helpers)
    return Evidence(
        run=run,
        loop=loop,
        alone=alone,
        step=_step(run.step),
        costs=alone_costs or loop_costs,
        loop_costs=loop_costs or alone_costs,
        scaling=_scaling(run, alone_run, alone),
        settings=settings or facts.settings,
        facts=facts,
        cores=cores,
        failures=[
            *run.failures,
            *(m.failure for m in run.loaders if m.failure is not None and m.purpose == "baseline"),
            *([run.step.failure] if run.step and run.step.failure else []),
        ],
    )


def _depth(run: LoaderRun | None) -> int:
    return run.settings.num_workers if run is not None and run.settings else 0


def _step(run: StepRun | None) -> StepEvidence | None:
    if run is None or not run.durations_s:
        return None
    durations = np.asarray(run.durations_s, dtype=np.float64)
    total = float(durations.sum())
    if total <= 0:
        return None
    parts = sum(run.parts_s.values())
    median = float(np.median(durations))
    pauses = durations[durations > 5 * median] if durations.size >= 8 else durations[:0]
    cpu = np.asarray(run.cpu_s, dtype=np.float64)
    return StepEvidence(
        samples_per_s=stats.periodic_mean(durations).inverse().scaled(float(run.samples_per_step)),
        seconds=total / durations.size,
        communication=communication_of(run, total / durations.size),
        transfer_share=run.parts_s.get("transfer", 0.0) / parts if parts > 0 else None,
        cores=float(cpu.sum()) / total if cpu.size == durations.size and cpu.size else None,
        emulated=run.emulated,
        pause_share=float(pauses.sum()) / total,
        coupled=run.coupled,
    )


def communication_of(run: StepRun, seconds: float) -> Communication | None:
    """Return the exposed communication of a step.

    A trace sees every collective, but slows what it watches; the difference is free of that, and sees gradients only.
    So the larger one is the better lower bound.

    Args:
        run: The step.
        seconds: Its mean [s].
    """
    found = []
    parts = sum(run.parts_s.values())
    if parts > 0:
        share = run.parts_s.get("communication", 0.0) / parts
        text = f"communication that no computation hides, by a trace of {run.parts_steps} steps"
        found.append(Communication(Estimate(share, share, share, max(1, run.parts_steps)), text))
    saved = saved_without_sync(run)
    if saved is not None and run.sync is not None:
        mean_s = sum(run.sync.without_s) / len(run.sync.without_s)
        text = f"gradient synchronisation: without it ({run.sync.switch}) a step takes {format_seconds(mean_s)}"
        text += f" instead of {format_seconds(mean_s + saved.value)}, weights held still in both"
        if run.sync.sharded:
            text += "; gathering the parameters comes on top"
        found.append(Communication(_clipped(saved.scaled(1 / seconds)), text))
    return max(found, key=lambda c: c.share.value, default=None)


def saved_without_sync(run: StepRun) -> Estimate | None:
    """Return what a step saves without gradient synchronisation, from pairs of rounds [s]; None where not measured."""
    sync = run.sync
    if sync is None or len(sync.with_s) < 2 or len(sync.with_s) != len(sync.without_s):
        return None
    return stats.mean_of_rounds(np.subtract(sync.with_s, sync.without_s))


def _clipped(share: Estimate) -> Estimate:
    low, value, high = (min(1.0, max(0.0, x)) for x in (share.low, share.value, share.high))
    return Estimate(value, low, high, share.n)


def _scaling(run: Run, baseline: LoaderRun | None, alone: Steady | None) -> Scaling | None:
    if baseline is None or alone is None or baseline.settings is None or not baseline.settings.num_workers:
        return None
    for other in run.loaders:
        if other.purpose != "calibrate" or other.coupled or other.settings is None or not other.settings.num_workers:
            continue
        seen = steady(other)
        here, there = baseline.settings.num_workers, other.settings.num_workers
        if seen is None or here == there:
            continue
        if bool(seen.whole_epochs) != bool(alone.whole_epochs) and max(seen.edge_share, alone.edge_share) > 0.1:
            continue  # one rate has what epochs begin with in it, the other has not
        more, less = (alone, seen) if here > there else (seen, alone)
        return Scaling(
            num_workers=there,
            samples_per_s=seen.samples_per_s,
            ratio=more.samples_per_s.value / less.samples_per_s.value,
            workers_ratio=max(here, there) / min(here, there),
        )
    return None
