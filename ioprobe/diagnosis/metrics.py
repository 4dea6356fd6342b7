"""The figures of a run by which budgets and comparisons judge it."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ioprobe import stats
from ioprobe.run import LoaderRun, Run
from ioprobe.stats import Estimate

Floats = NDArray[np.float64]
# Few blocks, so that slow drift of the host shows as spread between them.
BLOCKS = 8


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One figure with what it rests on."""

    name: str
    """Its unit ends its name."""
    better: Literal["higher", "lower"]
    estimate: Estimate
    values: list[float]
    """One per round where the run has several, else one per block of successive batches; one for a single event."""
    scale: Literal["ratio", "points"] = "ratio"
    """Shares are compared by their difference, all else by its ratio."""
    rounds: bool = False
    """True where the values come from separate measurements, each with fresh workers."""
    begun_s: list[float] = []
    """When each round began [s]; empty where that is not known."""


def metrics_of(run: Run, purpose: str = "baseline") -> dict[str, Metric]:
    """Return the figures that a run carries, by name; what it did not measure is absent.

    The coupled loop gives ``samples_per_s stall_share au p99_wait_ms time_to_first_batch_s memory`` (and
    ``tokens_per_s``), the loader alone ``loader_samples_per_s``. Workers give ``fetch_s fetch_cpu_s collate_s`` per
    sample, without the time for which no core was free; CPU alone is steadiest on a busy host. The main process gives
    ``transport_s sampler_s`` per batch, the step ``step_s``.
    """
    found: dict[str, Metric] = {}
    loops = [m for m in run.loaders if m.coupled and m.purpose == purpose and _steady(m) is not None]
    alone = [m for m in run.loaders if not m.coupled and m.purpose == purpose and _steady(m) is not None]
    if loops:
        found.update(_loop_metrics(run, loops))
    if alone:
        found["loader_samples_per_s"] = _rate("loader_samples_per_s", alone)
    source = loops or alone
    if source:
        found.update(_stage_metrics(source))
        found.update(_event_metrics(source))
    if run.step is not None and run.step.durations_s:
        blocks = _means(np.asarray(run.step.durations_s))
        found["step_s"] = Metric(
            name="step_s", better="lower", estimate=stats.mean(run.step.durations_s), values=list(map(float, blocks))
        )
    return found


def _loop_metrics(run: Run, loops: list[LoaderRun]) -> dict[str, Metric]:
    found = {"samples_per_s": _rate("samples_per_s", loops)}
    per_sample = run.workload.tokens_per_sample or (1 if run.workload.unit == "tokens" else None)
    if per_sample:
        base = found["samples_per_s"]
        found["tokens_per_s"] = msgspec.structs.replace(
            base,
            name="tokens_per_s",
            estimate=base.estimate.scaled(per_sample),
            values=[value * per_sample for value in base.values],
        )
    stall = _combined("stall_share", "lower", [(_wait(m), _wall(m)) for m in loops], loops, scale="points")
    found["stall_share"] = stall
    e = stall.estimate
    found["au"] = Metric(
        name="au",
        better="higher",
        estimate=Estimate(1 - e.value, 1 - e.high, 1 - e.low, e.n),
        values=[1 - value for value in stall.values],
        scale="points",
        rounds=stall.rounds,
        begun_s=stall.begun_s,
    )
    waits_ms = np.concatenate([_wait(m) for m in loops]) * 1000
    found["p99_wait_ms"] = Metric(
        name="p99_wait_ms",
        better="lower",
        estimate=quantile(waits_ms, 0.99),
        values=[float(np.quantile(_wait(m), 0.99)) * 1000 for m in loops] if len(loops) > 1 else [],
        rounds=len(loops) > 1,
        begun_s=_begun(loops),
    )
    return found


def _stage_metrics(source: list[LoaderRun]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    kept = [(m, columns) for m in source if (columns := _worker_columns(m)) is not None]
    if kept:
        runs = [m for m, _ in kept]
        for k, name in enumerate(("fetch_s", "fetch_cpu_s", "collate_s")):
            pairs = [(columns[k], columns[-1]) for _, columns in kept]
            if sum(float(top.sum()) for top, _ in pairs) > 0:
                found[name] = _combined(name, "lower", pairs, runs)
    for name in ("transport_s", "sampler_s"):
        if all(getattr(m.main, name) for m in source):
            pairs = [(np.asarray(getattr(m.main, name))[_first(m) :], np.ones(_wait(m).size)) for m in source]
            if all(top.size == bottom.size for top, bottom in pairs) and sum(float(t.sum()) for t, _ in pairs) > 0:
                found[name] = _combined(name, "lower", pairs, source)
    return found


def _event_metrics(source: list[LoaderRun]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    firsts = [m.time_to_first_batch_s for m in source if m.time_to_first_batch_s is not None]
    memory = [float(sum(m.worker_pss_bytes)) for m in source if m.worker_pss_bytes]
    for name, values in (("time_to_first_batch_s", firsts), ("memory", memory)):
        if values:
            whole = len(values) == len(source) > 1
            found[name] = Metric(
                name=name,
                better="lower",
                estimate=stats.mean(values),
                values=values,
                rounds=whole,
                begun_s=_begun(source) if whole else [],
            )
    return found


def quantile(values: Floats, q: float) -> Estimate:
    """Return the q-quantile with a distribution-free 95% interval (binomial ranks).

    Its upper end is infinite where too few values lie beyond the quantile to bound it.

    >>> quantile(np.arange(100.0), 0.5)
    Estimate(value=49.5, low=39.0, high=60.0, n=100)
    """
    ordered = np.sort(values)
    n = ordered.size
    half = 1.96 * math.sqrt(n * q * (1 - q))
    low, high = math.floor(n * q - half) - 1, math.ceil(n * q + half)
    return Estimate(
        float(np.quantile(ordered, q)),
        float(ordered[max(0, low)]),
        float(ordered[high]) if high < n else math.inf,
        int(n),
    )


def _rate(name: str, runs: list[LoaderRun]) -> Metric:
    pairs = [(np.asarray(m.main.samples, dtype=np.float64)[_first(m) :], _wall(m)) for m in runs]
    return _combined(name, "higher", pairs, runs)


def _combined(
    name: str,
    better: Literal["higher", "lower"],
    pairs: list[tuple[Floats, Floats]],
    runs: list[LoaderRun],
    scale: Literal["ratio", "points"] = "ratio",
) -> Metric:
    """Return sum over sum: over rounds where there are several, else over blocks of the one."""
    several = len(pairs) > 1
    if several:
        values = [float(top.sum() / bottom.sum()) for top, bottom in pairs]
        estimate = stats.ratio([float(t.sum()) for t, _ in pairs], [float(b.sum()) for _, b in pairs])
    else:
        top, bottom = pairs[0]
        values = [float(t.sum() / b.sum()) for t, b in zip(_split(top), _split(bottom), strict=True) if b.sum() > 0]
        estimate = stats.ratio(top, bottom)
    begun = _begun(runs) if several else []
    return Metric(
        name=name, better=better, estimate=estimate, values=values, scale=scale, rounds=several, begun_s=begun
    )


def _split(values: Floats) -> list[Floats]:
    return list(np.array_split(values, min(BLOCKS, max(1, values.size // 2))))


def _means(values: Floats) -> list[float]:
    return [float(block.mean()) for block in _split(values)]


def _begun(runs: list[LoaderRun]) -> list[float]:
    begun = [m.begun_s for m in runs if m.begun_s is not None]
    return begun if len(begun) == len(runs) else []


def _steady(measured: LoaderRun) -> int | None:
    """Return how many steady batches there are, None where they carry no figure."""
    steady = len(measured.main.wait_s) - measured.warmup_batches
    return steady if steady >= 2 and measured.failure is None else None


def _first(measured: LoaderRun) -> int:
    return measured.warmup_batches


def _wait(measured: LoaderRun) -> Floats:
    return np.asarray(measured.main.wait_s, dtype=np.float64)[_first(measured) :]


def _wall(measured: LoaderRun) -> Floats:
    """Seconds from one batch's request to the next, shape (steady batches,)."""
    main, first = measured.main, _first(measured)
    call = np.asarray(main.call_s, dtype=np.float64)[first:]
    last = main.wait_s[-1] + (main.step_s[-1] if main.step_s else 0.0)
    return np.append(np.diff(call), last)


def _worker_columns(measured: LoaderRun) -> tuple[Floats, Floats, Floats, Floats] | None:
    """Return (fetch, its CPU, collate, samples) per batch, without the time spent waiting for a core."""
    workers = measured.workers
    if workers is None or not workers.start_s or not measured.main.samples:
        return None
    keep = np.asarray(workers.start_s) >= measured.main.call_s[_first(measured)]
    if int(keep.sum()) < 2:
        return None

    def own(name: str) -> Floats:
        wall = np.asarray(getattr(workers, f"{name}_wall_s"))[keep]
        return np.asarray(np.clip(wall - np.asarray(getattr(workers, f"{name}_runq_s"))[keep], 0.0, None))

    # Workers do not count samples; batches are of one size but for the last of an epoch.
    per_batch = float(np.median(measured.main.samples[_first(measured) :]))
    cpu = np.asarray(workers.fetch_cpu_s)[keep]
    return own("fetch"), cpu, own("collate"), np.full(int(keep.sum()), per_batch)
