"""What n accelerators reach and ask for: rates, hosts, connections, money. Closed forms only.

R(n) = min(n · step, hosts' cores, hosts' network, store). The least of them
binds. It is the ceiling of a job whose input is fully overlapped with its
steps; start-up, stragglers and bursts come on top.
"""

from __future__ import annotations

import math

import msgspec

PREFETCH = 2
"""Batches that each worker prepares ahead, as in torch."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What one accelerator asks when it never waits."""

    samples_per_s: float
    bytes_per_sample: float | None = None
    """On storage [bytes]."""
    samples_per_file: float | None = None
    batch_size: int | None = None
    batch_bytes: float | None = None
    """In memory [bytes]."""
    cpu_s_per_sample: float | None = None
    """CPU that reading, decoding and collating one sample takes [s]."""
    worker_s_per_sample: float | None = None
    """Wall time of one worker per sample [s]."""
    joules_per_sample: float | None = None
    watts: float | None = None
    """Design power of one accelerator [W]."""


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """What there is; None means no limit is known."""

    storage_bytes_per_s: float | None = None
    """Of the shared store."""
    storage_iops: float | None = None
    """Read requests that the store serves [1/s]."""
    network_bytes_per_s: float | None = None
    """Into one host."""
    cores_per_host: float | None = None
    accelerators_per_host: int = 8
    request_bytes: float = 131072
    """One read request; the kernel's read-ahead asks for 128 KiB."""
    latency_s: float | None = None
    """One request, from asking to the last byte [s]."""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Money [USD]; None is not given and not guessed."""

    accelerator_hour: float | None = None
    gb_s_hour: float | None = None
    """One GB/s of further storage bandwidth for an hour."""
    core_hour: float | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is to do."""

    samples: float | None = None
    """Samples in an epoch."""
    epochs: float = 1
    goodput: float = 1.0
    """Productive share of the elapsed time: restarts, checkpoints and evaluation left out [fraction]."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What n accelerators reach and ask for."""

    n: int
    hosts: int
    wanted_samples_per_s: float
    """n accelerators that never wait."""
    samples_per_s: float
    """What they reach: the least of ``limits``."""
    limits: dict[str, float]
    """Samples/s that each resource allows: ``step``, ``cpu``, ``network``, ``storage-bandwidth``, ``storage-iops``."""

    @property
    def binding(self) -> str:
        """The resource that binds; the step where it ties."""
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def au(self) -> float:
        """Accelerator utilisation at best: reached over wanted [fraction]."""
        return self.samples_per_s / self.wanted_samples_per_s


def requests_per_sample(demand: Demand, supply: Supply) -> float | None:
    """Return read requests per sample, neighbours in a shard merged; at least one for each file opened.

    >>> requests_per_sample(Demand(samples_per_s=1, bytes_per_sample=1 << 20, samples_per_file=1), Supply())
    8.0
    """
    if demand.bytes_per_sample is None:
        return None
    return max(demand.bytes_per_sample / supply.request_bytes, opens_per_sample(demand) or 0.0)


def opens_per_sample(demand: Demand) -> float | None:
    """Return files opened (or objects asked for) per sample, or None where the layout is not known."""
    return None if not demand.samples_per_file else 1 / demand.samples_per_file


def capacity(demand: Demand, supply: Supply, n: int) -> Capacity:
    """Return what n accelerators reach.

    Raises:
        ValueError: n is less than 1, or the demand is not positive.
    """
    if n < 1 or demand.samples_per_s <= 0:
        raise ValueError(f"need at least one accelerator and a positive rate, got {n} and {demand.samples_per_s}")
    hosts = math.ceil(n / supply.accelerators_per_host)
    wanted = n * demand.samples_per_s
    limits = {"step": wanted}
    if supply.cores_per_host is not None and demand.cpu_s_per_sample:
        limits["cpu"] = hosts * supply.cores_per_host / demand.cpu_s_per_sample
    if supply.network_bytes_per_s is not None and demand.bytes_per_sample:
        limits["network"] = hosts * supply.network_bytes_per_s / demand.bytes_per_sample
    if supply.storage_bytes_per_s is not None and demand.bytes_per_sample:
        limits["storage-bandwidth"] = supply.storage_bytes_per_s / demand.bytes_per_sample
    if supply.storage_iops is not None and (requests := requests_per_sample(demand, supply)):
        limits["storage-iops"] = supply.storage_iops / requests
    return Capacity(n=n, hosts=hosts, wanted_samples_per_s=wanted, samples_per_s=min(limits.values()), limits=limits)


def largest_fed(demand: Demand, supply: Supply, au: float) -> int | None:
    """Return the largest n that all resources feed at an accelerator utilisation, or None where none ends it.

    Args:
        demand: Of one accelerator.
        supply: What there is; hosts are added as accelerators fill them.
        au: Share of the time in which the accelerators must compute [fraction].
    """
    one, full = capacity(demand, supply, 1).limits, supply.accelerators_per_host
    wanted = au * demand.samples_per_s
    shared = min((rate for name, rate in one.items() if name.startswith("storage")), default=math.inf) / wanted
    a_host = min((one[name] for name in ("cpu", "network") if name in one), default=math.inf) / wanted
    most = shared
    if a_host < full:
        # Each host is short by the same amount; so many hosts carry one that is not yet full.
        hosts = math.ceil(full / (full - a_host)) - 1
        most = min(most, hosts * a_host)
    if math.isinf(most):
        return None
    n = math.floor(most * (1 + 1e-12))
    while n > 0 and capacity(demand, supply, n).au < au * (1 - 1e-9):
        n -= 1
    return n


def metrics(demand: Demand, supply: Supply, work: Work, point: Capacity) -> dict[str, float]:
    """Return further figures of a point by name, the unit at the end; what is not known is left out."""
    wanted, per_host = point.wanted_samples_per_s, min(point.n, supply.accelerators_per_host)
    found: dict[str, float] = {"au": point.au}
    if (opens := opens_per_sample(demand)) is not None:
        found["opens_per_s"] = wanted * opens
    if demand.bytes_per_sample is not None:
        found["host_network_bytes_per_s"] = per_host * demand.samples_per_s * demand.bytes_per_sample
    requests = requests_per_sample(demand, supply)
    if supply.latency_s is not None and requests is not None:
        # Little's law: what is in flight is the rate times how long each stays.
        found["requests_in_flight"] = wanted * requests * supply.latency_s
    if demand.worker_s_per_sample is not None:
        workers = math.ceil(demand.samples_per_s * demand.worker_s_per_sample - 1e-9)
        found["workers_per_accelerator"] = workers
        if demand.batch_bytes is not None:
            found["host_shm_bytes"] = per_host * workers * PREFETCH * demand.batch_bytes
    if work.samples is not None:
        found["hours"] = work.samples * work.epochs / (point.samples_per_s * work.goodput) / 3600
    return found


def cost(demand: Demand, supply: Supply, prices: Prices, work: Work, point: Capacity) -> dict[str, float]:
    """Return money and energy of a point by name, the unit at the end; what has no price is left out.

    ``usd_break_even_per_gb_s_hour`` (or ``..._core_hour``) is the most that the
    missing resource may cost and still be cheaper than accelerators that wait.
    """
    found: dict[str, float] = {}
    hours = metrics(demand, supply, work, point).get("hours")
    if prices.accelerator_hour is not None:
        per_hour = prices.accelerator_hour * point.n
        stalled = per_hour * (1 - point.au)
        found["usd_per_million_samples"] = per_hour * 1e6 / (3600 * point.samples_per_s)
        found["usd_per_hour"] = per_hour
        found["usd_stalled_per_hour"] = stalled
        if hours is not None:
            found["usd_total"] = per_hour * hours
        found |= _break_even(demand, supply, prices, point, stalled)
    if demand.joules_per_sample is not None:
        found["joules_per_sample"] = demand.joules_per_sample
    elif demand.watts is not None:
        # Waiting accelerators draw less than their design power, so this is the most.
        found["joules_per_sample_at_design_power"] = demand.watts * point.n / point.samples_per_s
    return found


def _break_even(
    demand: Demand, supply: Supply, prices: Prices, point: Capacity, stalled_per_hour: float
) -> dict[str, float]:
    """What the missing resource may cost, and what the gap costs at the price given for it."""
    missing = missing_resource(demand, supply, point)
    if missing is None:
        return {}
    name, amount = missing
    price = prices.gb_s_hour if name == "gb_s" else prices.core_hour
    found = {f"usd_break_even_per_{name}_hour": stalled_per_hour / amount}
    if price is not None:
        found["usd_saved_per_hour_if_closed"] = stalled_per_hour - price * amount
    return found


def missing_resource(demand: Demand, supply: Supply, point: Capacity) -> tuple[str, float] | None:
    """Return what would have to be added for the binding resource to feed every step, or None where nothing is missing.

    GB/s of storage or cores (over all hosts); the other limits have no price of their own.
    """
    gap = point.wanted_samples_per_s - point.samples_per_s
    if point.binding == "storage-bandwidth" and demand.bytes_per_sample is not None:
        return "gb_s", gap * demand.bytes_per_sample / 1e9
    if point.binding == "cpu" and demand.cpu_s_per_sample is not None:
        return "core", gap * demand.cpu_s_per_sample
    return None
