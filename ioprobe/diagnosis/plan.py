"""A plan for some numbers of accelerators: points, summary, inputs with their sources, what to read with care."""

from __future__ import annotations

from collections.abc import Sequence

from ioprobe.diagnosis.plan_basis import OPTION, Basis
from ioprobe.diagnosis.types import Plan, PlanInput, PlanPoint
from ioprobe.model import plan as model
from ioprobe.model.plan import Demand, Prices, Supply, Work
from ioprobe.run import Caveat
from ioprobe.units import format_bandwidth, format_bytes, format_count, format_rate, format_seconds, format_share

_THRESHOLD = 0.9
"""Utilisation that counts as fed where no rule names another [fraction]."""


def make_plan(
    basis: Basis,
    counts: Sequence[int],
    *,
    supply: Supply,
    prices: Prices,
    work: Work,
    au: float | None = None,
    given: dict[str, str] | None = None,
    created_at: str,
    version: str,
) -> Plan:
    """Return the plan for some numbers of accelerators.

    Args:
        basis: From a publication or a run.
        counts: Numbers of accelerators; each at least 1.
        supply: What there is.
        prices: Money.
        work: How much there is to do.
        au: Utilisation that counts as fed; the benchmark's threshold, or 0.9, by default [fraction].
        given: Source of supply, prices and work by field; ``given`` where none is named.
        created_at: UTC, ISO 8601.
        version: Of ioprobe.
    """
    demand = basis.demand
    threshold = au if au is not None else basis.au_threshold if basis.au_threshold is not None else _THRESHOLD
    points = [_point(demand, supply, prices, work, threshold, n) for n in sorted(set(counts))]
    return Plan(
        title=basis.title,
        summary=_summary(demand, supply, threshold, points),
        created_at=created_at,
        version=version,
        unit=basis.unit,
        points=points,
        inputs=_inputs(basis, supply, prices, work, given or {}, threshold, given_au=au is not None),
        caveats=[*basis.caveats, *_caveats(demand, supply)],
    )


def _point(demand: Demand, supply: Supply, prices: Prices, work: Work, threshold: float, n: int) -> PlanPoint:
    point, one = model.capacity(demand, supply, n), model.capacity(demand, supply, 1)
    wanted = point.wanted_samples_per_s
    requests = model.requests_per_sample(demand, supply)
    further = model.metrics(demand, supply, work, point)
    further["fed"] = float(point.au >= threshold * (1 - 1e-12))
    return PlanPoint(
        n=n,
        samples_per_s=point.samples_per_s,
        storage_bytes_per_s=None if demand.bytes_per_sample is None else wanted * demand.bytes_per_sample,
        iops=None if requests is None else wanted * requests,
        cores=None if demand.cpu_s_per_sample is None else wanted * demand.cpu_s_per_sample,
        hosts=point.hosts,
        binding=point.binding,
        scaling_efficiency=point.samples_per_s / (n * one.samples_per_s),
        cost=model.cost(demand, supply, prices, work, point),
        metrics=further,
    )


def _summary(demand: Demand, supply: Supply, threshold: float, points: Sequence[PlanPoint]) -> str:
    each = f"each accelerator asks {format_rate(demand.samples_per_s)}"
    if demand.bytes_per_sample is not None:
        each += f", {format_bandwidth(demand.samples_per_s * demand.bytes_per_sample)} of storage"
    fed = model.largest_fed(demand, supply, threshold)
    at = f"at {format_share(threshold)} utilisation"
    if fed is None:
        return f"{each}; no limit that is known here ends the scaling"
    beyond = model.capacity(demand, supply, fed + 1)
    if fed == 0:
        return f"{each}; not one accelerator is fed {at}: {beyond.binding} gives {format_rate(beyond.samples_per_s)}"
    short = [p.n for p in points if p.n > fed]
    text = f"{each}; up to {fed:,} are fed {at}, beyond it {beyond.binding} binds"
    return text + (f": too little for {', '.join(f'{n:,}' for n in short)}" if short else "")


def _inputs(
    basis: Basis,
    supply: Supply,
    prices: Prices,
    work: Work,
    given: dict[str, str],
    threshold: float,
    *,
    given_au: bool,
) -> list[PlanInput]:
    """Every number that the plan rests on; what is not known is not listed."""
    demand, default = basis.demand, "default"
    rows: list[tuple[str, str | None, str]] = [
        ("step", f"{format_count(demand.samples_per_s)} {basis.unit}/s", basis.sources.get("samples_per_s", OPTION)),
        ("bytes per sample", _text(demand.bytes_per_sample, format_bytes), basis.sources.get("bytes_per_sample", "")),
        ("samples per file", _text(demand.samples_per_file, format_count), basis.sources.get("samples_per_file", "")),
        ("batch size", _text(demand.batch_size, format_count), basis.sources.get("batch_size", OPTION)),
        ("batch in memory", _text(demand.batch_bytes, format_bytes), basis.sources.get("batch_bytes", OPTION)),
        (
            "CPU per sample",
            _text(demand.cpu_s_per_sample, format_seconds),
            basis.sources.get("cpu_s_per_sample", OPTION),
        ),
        (
            "worker per sample",
            _text(demand.worker_s_per_sample, format_seconds),
            basis.sources.get("worker_s_per_sample", OPTION),
        ),
        (
            "energy",
            _text(demand.joules_per_sample, "{:.3g} J/sample".format),
            basis.sources.get("joules_per_sample", ""),
        ),
        ("power", _text(demand.watts, "{:g} W".format), basis.sources.get("watts", "")),
        ("fed means", f"{format_share(threshold)} utilisation", OPTION if given_au else _threshold_source(basis)),
        ("request size", format_bytes(supply.request_bytes), given.get("request_bytes", default)),
        ("accelerators per host", str(supply.accelerators_per_host), given.get("accelerators_per_host", default)),
        ("cores per host", _text(supply.cores_per_host, "{:g}".format), given.get("cores_per_host", OPTION)),
        ("storage", _text(supply.storage_bytes_per_s, format_bandwidth), given.get("storage_bytes_per_s", OPTION)),
        ("storage requests", _text(supply.storage_iops, _per_second), given.get("storage_iops", OPTION)),
        ("network of a host", _text(supply.network_bytes_per_s, format_bandwidth), OPTION),
        ("latency", _text(supply.latency_s, format_seconds), given.get("latency_s", OPTION)),
        ("accelerator", _text(prices.accelerator_hour, "{:g} USD/h".format), given.get("accelerator_hour", OPTION)),
        ("storage price", _text(prices.gb_s_hour, "{:g} USD/h per GB/s".format), given.get("gb_s_hour", OPTION)),
        ("core price", _text(prices.core_hour, "{:g} USD/h".format), given.get("core_hour", OPTION)),
        ("samples in an epoch", _text(work.samples, format_count), given.get("samples", OPTION)),
    ]
    if work.samples is not None:
        rows.append(("epochs", f"{work.epochs:g}", given.get("epochs", default)))
        rows.append(("goodput", format_share(work.goodput), given.get("goodput", default)))
    return [PlanInput(name=name, value=value, source=source) for name, value, source in rows if value is not None]


def _threshold_source(basis: Basis) -> str:
    return basis.sources["samples_per_s"] if basis.au_threshold is not None else "default"


def _per_second(value: float) -> str:
    return f"{format_count(value)}/s"


def _text(value: float | None, form: object) -> str | None:
    return None if value is None else str(form(value))  # type: ignore[operator]


def _caveats(demand: Demand, supply: Supply) -> list[Caveat]:
    found = []
    if set(model.capacity(demand, supply, 1).limits) == {"step"}:
        found.append(
            Caveat(
                "no-limits",
                "neither store, network nor cores are limited here: the figures are demand, not what would be reached",
                "pass --storage, --network or --cores-per-host",
            )
        )
    if demand.cpu_s_per_sample is None:
        found.append(
            Caveat(
                "cores-unknown",
                "what decoding takes of the CPU is not known, so cores and workers are not planned",
                "pass --cpu-ms-per-sample, or measure with 'ioprobe analyze' and plan from that run",
            )
        )
    return found
