"""From the options of ``ioprobe plan`` to a plan: which basis, what was given, what stays a default."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import msgspec

from ioprobe import __version__
from ioprobe.data.dlio import load_workload
from ioprobe.diagnosis.plan import make_plan
from ioprobe.diagnosis.plan_basis import OPTION, Basis, published_basis, run_basis
from ioprobe.diagnosis.types import Plan
from ioprobe.errors import UsageError
from ioprobe.model.plan import Demand, Prices, Supply, Work
from ioprobe.run import load
from ioprobe.units import parse_bandwidth, parse_bytes, parse_seconds


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, as it was written; None is not given."""

    run: Path | None = None
    workload: str | None = None
    accelerator: str | None = None
    dlio: Path | None = None
    counts: str = "1,8,64,512"
    step_ms: float | None = None
    au: float | None = None
    storage: str | None = None
    storage_iops: float | None = None
    network: str | None = None
    latency: str | None = None
    request_size: str = "128KiB"
    accelerators_per_host: int | None = None
    cores_per_host: float | None = None
    cpu_ms_per_sample: float | None = None
    accelerator_price: str | None = None
    """USD for an hour, with its source behind an @ where that is told; so are the other prices."""
    storage_price: str | None = None
    core_price: str | None = None
    samples: float | None = None
    epochs: float | None = None
    goodput: float = 1.0


def plan_from(request: PlanRequest) -> Plan:
    """Return the plan that was asked for.

    Raises:
        UsageError: not exactly one basis, an unknown name, or a number that cannot be read.
        RunFileError: the run cannot be read.
        ConfigError: the DLIO file cannot be read.
    """
    basis = _with_options(_basis(request), request)
    given: dict[str, str] = {}
    for field in ("accelerators_per_host", "cores_per_host"):
        if getattr(request, field) is None and getattr(basis, field) is not None:
            given[field] = basis.sources.get("cores_per_host", "")
        elif getattr(request, field) is not None:
            given[field] = OPTION
    given |= {name: OPTION for name in ("epochs",) if request.epochs is not None}
    given |= {"goodput": OPTION} if request.goodput != 1 else {}
    given |= {"request_bytes": OPTION} if request.request_size != "128KiB" else {}
    if request.samples is None and basis.samples is not None:
        given["samples"] = basis.sources.get("samples", basis.sources.get("samples_per_file", ""))
    if request.epochs is None and basis.epochs is not None:
        given["epochs"] = basis.sources["samples_per_s"]
    prices = {
        field: parse_price(text)
        for field, text in (
            ("accelerator_hour", request.accelerator_price),
            ("gb_s_hour", request.storage_price),
            ("core_hour", request.core_price),
        )
        if text is not None
    }
    given |= {field: source for field, (_, source) in prices.items()}
    return make_plan(
        basis,
        parse_counts(request.counts),
        supply=Supply(
            storage_bytes_per_s=None if request.storage is None else parse_bandwidth(request.storage),
            storage_iops=request.storage_iops,
            network_bytes_per_s=None if request.network is None else parse_bandwidth(request.network),
            cores_per_host=request.cores_per_host or basis.cores_per_host,
            accelerators_per_host=request.accelerators_per_host or basis.accelerators_per_host or 8,
            request_bytes=float(parse_bytes(request.request_size)),
            latency_s=None if request.latency is None else parse_seconds(request.latency),
        ),
        prices=Prices(**{field: usd for field, (usd, _) in prices.items()}),
        work=Work(
            samples=request.samples or basis.samples,
            epochs=request.epochs or basis.epochs or 1,
            goodput=request.goodput,
        ),
        au=request.au,
        given=given,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        version=__version__,
    )


def parse_price(text: str) -> tuple[float, str]:
    """Return a price and its source.

    >>> parse_price("2.5"), parse_price("2.5@vendor's list, November 2026")
    ((2.5, 'given'), (2.5, "vendor's list, November 2026"))

    Raises:
        UsageError: it is no positive number.
    """
    number, _, source = text.partition("@")
    try:
        usd = float(number)
    except ValueError:
        usd = 0.0
    if not 0 < usd < 1e9:
        raise UsageError(f"cannot read price '{text}'", hint="write it like 2.5 or '2.5@price list of 2026-11'")
    return usd, source.strip() or OPTION


def parse_counts(text: str) -> list[int]:
    """Return numbers of accelerators written as ``8,64,512``.

    >>> parse_counts("8, 64,512")
    [8, 64, 512]
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"cannot read numbers of accelerators '{text}'", hint="write them like -n 8,64,512")
    return [int(word) for word in words]


def _basis(request: PlanRequest) -> Basis:
    asked = [name for name in ("run", "workload", "dlio") if getattr(request, name) is not None]
    if len(asked) != 1:
        found = " and ".join(asked) or "neither"
        raise UsageError(
            f"a plan starts from a run, a published workload or a DLIO file; found {found}",
            hint="pass RUN, or --workload unet3d --accelerator h100, or --dlio workload.yaml",
        )
    if request.run is not None:
        return run_basis(load(request.run), str(request.run))
    if request.workload is not None:
        if request.accelerator is None:
            raise UsageError("--workload needs an accelerator", hint="pass --accelerator h100")
        return published_basis(request.workload, request.accelerator)
    assert request.dlio is not None
    return dlio_basis(request.dlio)


def dlio_basis(path: Path) -> Basis:
    """Return what a DLIO workload file asks."""
    workload = load_workload(path)
    source = str(path)
    return Basis(
        title=f"{workload.model} ({path.name})",
        demand=Demand(
            samples_per_s=workload.batch_size / workload.computation_time_s,
            bytes_per_sample=workload.record_length_bytes,
            samples_per_file=workload.num_samples_per_file,
            batch_size=workload.batch_size,
        ),
        sources=dict.fromkeys(
            ("samples_per_s", "bytes_per_sample", "samples_per_file", "batch_size", "samples"), source
        ),
        au_threshold=workload.au,
        samples=float(workload.num_files_train * workload.num_samples_per_file),
        epochs=workload.epochs,
    )


def _with_options(basis: Basis, request: PlanRequest) -> Basis:
    """Options win over what run or publication say, and their source is the option."""
    demand, sources = basis.demand, dict(basis.sources)
    if request.step_ms is not None:
        if demand.batch_size is None:
            raise UsageError("--step-ms needs a batch size, and the source gives none", hint="leave out --step-ms")
        demand = msgspec.structs.replace(demand, samples_per_s=demand.batch_size / (request.step_ms / 1000))
        sources["samples_per_s"] = f"--step-ms {request.step_ms:g}, batch {demand.batch_size}"
    if request.cpu_ms_per_sample is not None:
        demand = msgspec.structs.replace(demand, cpu_s_per_sample=request.cpu_ms_per_sample / 1000)
        sources["cpu_s_per_sample"] = OPTION
    return msgspec.structs.replace(basis, demand=demand, sources=sources)
