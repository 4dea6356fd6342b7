"""What ``ioprobe tune`` found: the pick, what it is worth by model and by measurement, and what else would help."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ioprobe import stats
from ioprobe.diagnosis.forecast import ForecastPoint
from ioprobe.errors import RunFileError
from ioprobe.model.rates import throughput
from ioprobe.plausible import complaint
from ioprobe.run import Caveat, Failure, LoaderRun
from ioprobe.stats import Estimate, bootstrap_ratio, quotient

TUNING_SCHEMA = 1
ACTIONS = ("change", "fewer-workers", "no-change")
NOISE = 0.01
"""Differences below this are no difference [fraction]."""

Knobs = tuple[int, int, bool, bool]
"""num_workers, prefetch_factor, persistent_workers, in_order."""


class Recommended(msgspec.Struct, frozen=True, kw_only=True):
    """The setting to use."""

    settings: dict[str, Any]
    """DataLoader settings, ready to pass on."""
    action: str
    """One of :data:`ACTIONS`."""
    reason: str
    predicted: ForecastPoint
    samples_per_s: Estimate | None = None
    """Measured at these settings [samples/s]."""
    verified: Estimate | None = None
    """Measured throughput over that at the current settings, minus 1 [fraction]; None where it was not run."""


class Help(msgspec.Struct, frozen=True, kw_only=True):
    """Something other than a setting."""

    code: str
    text: str
    gain: float
    """Predicted, over the recommended setting [fraction]."""


class GridRow(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a measured grid."""

    settings: dict[str, Any]
    samples_per_s: list[float]
    """One value a repetition, warm [samples/s]."""
    cold_samples_per_s: float | None = None
    """First pass after the files were dropped from the page cache [samples/s]; None where it was not possible."""
    stall_share: float | None = None
    """Median over the repetitions [fraction]; None without a step."""
    failure: str = ""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``ioprobe tune``."""

    schema: int = TUNING_SCHEMA
    kind: str = "tune"
    target: str
    unit: str = "samples"
    run: str | None = None
    """Path of the run file."""
    coupled: bool = True
    """True where loops with the step were compared, False where the loader was drained."""
    counted: str = "steady state"
    """Of rates and stall shares: ``steady state``, or ``whole epochs`` where the loop saw some."""
    current: ForecastPoint
    recommended: Recommended
    candidates: list[ForecastPoint] = []
    """Best first."""
    also: list[Help] = []
    grid: list[GridRow] = []
    spent_s: float
    measured_settings: int = 0
    """Different settings that were run."""
    caveats: list[Caveat] = []
    failures: list[Failure] = []


def loads(data: bytes, name: str) -> Tuning:
    """Return the answer in a file's bytes.

    Raises:
        RunFileError: it is none, is damaged, or is of a newer schema.
    """
    try:
        found = msgspec.json.decode(data, type=Tuning)
        wrong = complaint(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFileError(
            f"'{name}' is damaged: {error}", hint="tune again, or remove it to see the measurements alone"
        ) from None
    if found.schema > TUNING_SCHEMA:
        raise RunFileError(f"'{name}' has schema {found.schema}; this ioprobe reads {TUNING_SCHEMA}", hint="upgrade")
    wrong = wrong or _incomplete(found)
    if wrong is not None:
        raise RunFileError(
            f"'{name}' is damaged: {wrong}", hint="tune again, or remove it to see the measurements alone"
        )
    return found


def _incomplete(found: Tuning) -> str | None:
    """Return what an answer lacks, None where it is whole."""
    if found.recommended.action not in ACTIONS:
        return f"no such action '{found.recommended.action}'"
    points = [found.current, found.recommended.predicted, *found.candidates]
    if not all(_counts(p.settings, "num_workers", "prefetch_factor") for p in points):
        return "a point has no settings"
    return None if all(_counts(row.settings, "num_workers") for row in found.grid) else "a row has no settings"


def _counts(settings: dict[str, Any], *names: str) -> bool:
    return all(isinstance(settings.get(name), int) for name in names)


def knobs(run: LoaderRun) -> Knobs | None:
    """Return the knobs of a measurement; None where it has no settings."""
    s = run.settings
    if s is None:
        return None
    return s.num_workers, (s.prefetch_factor or 2) if s.num_workers else 2, s.persistent_workers, s.in_order


def measured_at(runs: list[LoaderRun], wanted: Knobs, *, coupled: bool) -> list[Estimate]:
    """Return the throughput of all runs at some knobs, in the order measured [samples/s].

    A loop that lived on prefetched batches to its end, as behind a first step of seconds, tells of no rate. The very
    first of all runs may have read what caches hold since: it counts only until its setting ran again.
    """
    mine = [run for run in runs if run.coupled == coupled and run.failure is None and _same(knobs(run), wanted)]
    told = [
        (run, rate) for run in mine if not stats.undrained(run.main.ready) and (rate := throughput(run)) is not None
    ]
    if len(told) > 1 and told[0][0] is runs[0]:
        told = told[1:]
    return [rate for _, rate in told]


def _same(found: Knobs | None, wanted: Knobs) -> bool:
    if found is None or found[0] != wanted[0]:
        return False
    return found[0] == 0 or found == wanted


def pooled(seen: list[Estimate]) -> Estimate | None:
    """Return the throughput over several measurements of one setting [samples/s]; None where there are none."""
    if not seen:
        return None
    if len(seen) == 1:
        return seen[0]
    rates = [rate.value for rate in seen]
    middle = math.fsum(rates) / len(rates)
    # Between runs (other tenants, clocks, placement) and within them: the larger of the two speaks.
    spread = math.sqrt(math.fsum((r - middle) ** 2 for r in rates) / (len(rates) - 1) / len(rates))
    within = max(rate.high - rate.low for rate in seen) / 2 / math.sqrt(len(seen))
    half = max(2.0 * spread, within)
    return Estimate(middle, middle - half, middle + half, sum(s.n for s in seen))


def gain_between(new: list[Estimate], old: list[Estimate]) -> Estimate | None:
    """Return measured throughput of one setting over another, minus 1, with its interval [fraction]."""
    a, b = pooled(new), pooled(old)
    if a is None or b is None or b.value <= 0:
        return None
    count = min(len(new), len(old))
    over = quotient(a, b)
    value, wide = over.value, over.high / over.value - 1
    if count >= 3:
        pairs = bootstrap_ratio([rate.value for rate in new[-count:]], [rate.value for rate in old[-count:]])
        wide = max((pairs.high - pairs.low) / 2 / value, 0.3 * wide)
    return Estimate(value - 1, value / (1 + wide) - 1, value * (1 + wide) - 1, count)
