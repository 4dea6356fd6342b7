"""What a plan starts from: a published workload or a saved run, every number with its source."""

from __future__ import annotations

import msgspec

from ioprobe import facts, stats
from ioprobe.errors import UsageError
from ioprobe.model.plan import Demand
from ioprobe.run import Caveat, LoaderRun, Run, StorageJob

OPTION = "given"


class Basis(msgspec.Struct, kw_only=True):
    """What a plan starts from, before the options."""

    title: str
    demand: Demand
    sources: dict[str, str]
    """Source of each field of the demand (and of ``cores_per_host``) that is known."""
    unit: str = "samples"
    au_threshold: float | None = None
    samples: float | None = None
    """In an epoch, where known."""
    epochs: float | None = None
    cores_per_host: float | None = None
    accelerators_per_host: int | None = None
    caveats: list[Caveat] = []


def published_basis(workload: str, accelerator: str, batch_size: int | None = None) -> Basis:
    """Return what a published workload asks.

    Raises:
        UsageError: workload or accelerator is not in the tables.
    """
    anchor = facts.workload(workload, accelerator)
    chip = facts.accelerator(accelerator)
    demand = Demand(
        samples_per_s=anchor.samples_per_s,
        bytes_per_sample=anchor.bytes_per_sample,
        samples_per_file=anchor.samples_per_file,
        batch_size=batch_size or anchor.batch_size,
        watts=None if chip is None else chip.tdp_w,
    )
    sources = {"samples_per_s": anchor.source, "bytes_per_sample": anchor.source, "samples_per_file": anchor.source}
    sources["batch_size"] = OPTION if batch_size else anchor.source
    if chip is not None:
        sources["watts"] = f"design power of {chip.id}"
    return Basis(
        title=f"{anchor.id} on {anchor.accelerator}",
        demand=demand,
        sources=sources,
        unit=anchor.unit,
        au_threshold=anchor.au_threshold,
        caveats=_published_caveats(anchor),
    )


def _published_caveats(anchor: facts.Anchor) -> list[Caveat]:
    if anchor.evidence == "emulated":
        text = (
            "the step's time is a benchmark's constant, not a measurement; tuned jobs on the same accelerator can ask"
            " several times as much"
        )
    elif anchor.evidence == "measured":
        text = f"the rate was measured by others ({anchor.source})" + (f": {anchor.note}" if anchor.note else "")
    else:
        text = f"the rate is {anchor.evidence}, not measured" + (f": {anchor.note}" if anchor.note else "")
    return [Caveat("published-rate", text, "ioprobe step on your own accelerator, then ioprobe plan RUN")]


def run_basis(run: Run, name: str) -> Basis:
    """Return what a saved run's step asks, and what its workers took.

    Raises:
        UsageError: the run holds no step.
    """
    step = run.step
    if step is None or not step.durations_s:
        raise UsageError(
            f"run '{name}' holds no measured step, so its demand is not known",
            hint="measure one with 'ioprobe analyze TARGET --step ...', or pass --step-ms",
        )
    rate = stats.periodic_mean(step.durations_s).inverse().scaled(step.samples_per_step)
    sources = {"samples_per_s": f"{name}: {step.source or 'step'}, {len(step.durations_s)} steps"}
    bytes_per_sample, sources["bytes_per_sample"] = _run_bytes(run, name)
    loader = _worker_run(run)
    cpu_s, worker_s = (None, None) if loader is None else _worker_costs(loader)
    sources["cpu_s_per_sample"] = sources["worker_s_per_sample"] = f"{name}: its workers"
    dataset = run.dataset
    per_file = (
        dataset.num_samples / dataset.num_shards
        if dataset is not None and dataset.num_samples and dataset.num_shards
        else None
    )
    sources["samples_per_file"] = f"{name}: dataset"
    joules = None if step.joules_per_step is None else step.joules_per_step / step.samples_per_step
    sources["joules_per_sample"] = f"{name}: the accelerator's energy counter"
    return Basis(
        title=name,
        demand=Demand(
            samples_per_s=rate.value,
            bytes_per_sample=bytes_per_sample,
            samples_per_file=per_file,
            batch_size=step.samples_per_step,
            batch_bytes=None if loader is None else loader.batch_bytes,
            cpu_s_per_sample=cpu_s,
            worker_s_per_sample=worker_s,
            joules_per_sample=joules,
        ),
        sources=sources | {"batch_bytes": f"{name}: its batches", "cores_per_host": f"{name}: its host"},
        unit=run.workload.unit,
        samples=None if dataset is None else dataset.num_samples,
        cores_per_host=run.host.usable_cores,
        accelerators_per_host=max(1, len(run.host.accelerators)) if run.host.accelerators else None,
        caveats=[
            Caveat(
                "emulated-step",
                "the run's step was a constant sleep, so the demand is that of the accelerator it stood for",
                "measure the step on the accelerator",
            )
        ]
        if step.emulated
        else [],
    )


def _run_bytes(run: Run, name: str) -> tuple[float | None, str]:
    dataset = run.dataset
    if dataset is not None and dataset.total_bytes and dataset.num_samples:
        return dataset.total_bytes / dataset.num_samples, f"{name}: dataset"
    jobs: list[StorageJob] = [job for job in run.storage if job.samples and job.bytes_read]
    if jobs:
        return jobs[0].bytes_read / (jobs[0].samples or 1), f"{name}: {jobs[0].name}"
    loader = _worker_run(run)
    if loader is not None and loader.workers is not None and min(loader.workers.read_bytes, default=-1) >= 0:
        return sum(loader.workers.read_bytes) / _worker_samples(loader), f"{name}: bytes that its workers read"
    return None, ""


def _worker_run(run: Run) -> LoaderRun | None:
    for loader in (run.loop(), run.loader_alone()):
        if loader is not None and loader.workers is not None and loader.workers.fetch_wall_s and loader.main.samples:
            return loader
    return None


def _worker_samples(loader: LoaderRun) -> float:
    workers = loader.workers
    per_batch = sum(loader.main.samples) / len(loader.main.samples)
    return per_batch * (len(workers.fetch_wall_s) if workers is not None else 1)


def _worker_costs(loader: LoaderRun) -> tuple[float, float]:
    """CPU and wall time of a worker per sample [s]."""
    workers = loader.workers
    assert workers is not None
    samples = _worker_samples(loader)
    cpu = sum(workers.fetch_cpu_s) + sum(workers.collate_cpu_s) + sum(workers.other_cpu_s)
    cpu += sum(workers.child_cpu_s)
    return cpu / samples, (sum(workers.fetch_wall_s) + sum(workers.collate_wall_s)) / samples
