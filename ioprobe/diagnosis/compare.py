"""Two runs, compared: what changed, by how much, and whether that is more than noise.

A change counts as *slower* only when it is significant **and** larger than the noise band. Where two runs were
measured in alternating rounds, each with fresh workers, rounds are paired, so that whatever else the host did
falls out. Two runs made one after the other cannot be paired: between them the host may have changed as much as
it did from block to block within each, so the spread of blocks is not divided by their number.

Several figures are judged at once; Holm's procedure keeps the chance of any false alarm in one comparison at
``FALSE_ALARM`` (Holm, *A simple sequentially rejective multiple test procedure*, 1979).
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ioprobe.config import CompareConfig
from ioprobe.diagnosis.differences import differences_of
from ioprobe.diagnosis.metrics import Metric, metrics_of
from ioprobe.errors import UsageError
from ioprobe.run import Caveat, Run
from ioprobe.stats import Estimate

Floats = NDArray[np.float64]
# Chance that one comparison of equal runs calls anything slower: with 200 of them, one false alarm is rare.
FALSE_ALARM = 0.001
LEAST_VALUES = 4
HEADLINES = ("samples_per_s", "loader_samples_per_s", "step_s")
BOOTSTRAP_ROUNDS = 2000
Change = Literal["slower", "faster", "same", "undecided", "not judged"]


class MetricChange(msgspec.Struct, frozen=True, kw_only=True):
    """One figure in both runs."""

    name: str
    base: Estimate
    new: Estimate
    change: Estimate
    """new / base − 1 [fraction], or new − base for shares [points of 1], with a 95% interval."""
    scale: Literal["ratio", "points"]
    worse_by: float | None
    """The change turned so that worse is positive; a ratio counts as the time that it costs. None: not judged."""
    p_value: float | None
    """Two-sided, corrected for the number of figures; None where it is not judged."""
    effect_size: float | None
    """Mean change over its spread (Cohen's d); None where there is no spread to know."""
    verdict: Change
    large: bool = False
    """True where the change is beyond the large band."""
    paired: bool = False
    values: int = 0
    """Rounds or blocks on the smaller side."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A base and a new run."""

    schema: int = 1
    kind: str = "compare"
    verdict: Change
    """``slower`` where any figure is; else the headline's verdict."""
    headline: str
    """The figure that stands for the whole: loop throughput, else the loader's, else the step's."""
    metrics: list[MetricChange]
    differences: list[str] = []
    """What differs between the two hosts and settings, one line each."""
    unlike: list[str] = []
    """Differences that make the runs unlike; compared by force."""
    noise: float
    large: float
    caveats: list[Caveat] = []

    def exit_code(self, undecided: str = "fail") -> int:
        """Return 1 where something is slower, 2 where the headline is undecided (unless that passes), else 0."""
        if self.verdict == "slower":
            return 1
        return 2 if self.verdict in ("undecided", "not judged") and undecided != "pass" else 0


def compare(base: Run, new: Run, *, bands: CompareConfig | None = None, force: bool = False) -> Comparison:
    """Return how a new run differs from a base run.

    Args:
        base: The run to compare with.
        new: The run to judge.
        bands: Noise bands; 3% and 8% by default.
        force: Compare runs that are unlike (another host, dataset, unit or kind of step).

    Raises:
        UsageError: the runs are unlike and ``force`` is not given, or share no figure.
    """
    bands = bands or CompareConfig()
    differences, unlike = differences_of(base, new)
    if unlike and not force:
        raise UsageError(
            f"the two runs cannot be compared: {'; '.join(unlike)}", hint="compare like with like, or pass --force"
        )
    ours, theirs = metrics_of(base), metrics_of(new)
    shared = [name for name in ours if name in theirs and name != "au"]  # au is stall_share again
    if "tokens_per_s" in shared and "samples_per_s" in shared:
        shared.remove("tokens_per_s")
    if not shared:
        raise UsageError("the two runs share no figure", hint="pass two runs of 'ioprobe analyze' or 'ioprobe loader'")
    raw = [_change(ours[name], theirs[name]) for name in shared]
    judged = _judge(raw, bands)
    headline = next((name for name in HEADLINES if name in shared), shared[0])
    verdict = next(change.verdict for change in judged if change.name == headline)
    if any(change.verdict == "slower" for change in judged):
        verdict = "slower"
    return Comparison(
        verdict=verdict,
        headline=headline,
        metrics=judged,
        differences=differences,
        unlike=unlike,
        noise=bands.noise,
        large=bands.large,
        caveats=_caveats(base, new, judged),
    )


def _caveats(base: Run, new: Run, judged: list[MetricChange]) -> list[Caveat]:
    caveats = []
    paired = any(change.paired for change in judged)
    if not paired:
        caveats.append(
            Caveat(
                "not-interleaved",
                "the runs were made one after the other, so only changes beyond the host's own drift can be seen",
                "ioprobe compare OLD.py:make_loader NEW.py:make_loader measures both in alternating rounds",
            )
        )
    for word, run in (("base", base), ("new", new)):
        measured = run.loop() or run.loader_alone()
        load = measured.load if measured else None
        if load is not None and load.other_cores + load.steal_cores > 0.1 * load.cores:
            caveats.append(
                Caveat(
                    "busy-host",
                    f"other processes used {load.other_cores + load.steal_cores:.1f} of {load.cores:g} cores during "
                    f"the "
                    f"{word} run",
                    "more rounds, or an idle host" if paired else "an idle host, or alternating rounds of both loaders",
                )
            )
    return caveats


class _Raw(msgspec.Struct):
    """A change before it is judged."""

    base: Metric
    new: Metric
    worse: float | None
    p_value: float | None
    interval: Estimate
    effect: float | None
    paired: bool
    count: int


def _change(base: Metric, new: Metric) -> _Raw:
    points = base.scale == "points"
    a, b = np.asarray(base.values, dtype=np.float64), np.asarray(new.values, dtype=np.float64)
    count = min(a.size, b.size)
    point = _relative(base.estimate.value, new.estimate.value, points)
    usable = count >= LEAST_VALUES and (points or (float(a.min()) > 0 and float(b.min()) > 0))
    if not usable or not math.isfinite(point):
        return _Raw(base, new, None, None, Estimate(point, math.nan, math.nan, count), None, False, count)
    pairs = pair_rounds(base, new)
    paired = bool(pairs)
    if paired:
        a, b = a[[i for i, _ in pairs]], b[[j for _, j in pairs]]
        count = len(pairs)
    x, y = (a, b) if points else (np.log(a), np.log(b))
    mean, spread, error, dof = _difference(x, y, paired, base.rounds and new.rounds)
    p_value = _two_sided(mean, error, dof)
    low, high = _bootstrap(a, b, paired, base.rounds and new.rounds, points)
    sign = 1.0 if base.better == "lower" else -1.0
    effect = mean / spread if spread > 0 else None
    centre = mean if points else math.expm1(mean)
    # A rate that falls to r costs 1/r - 1 more time: one yardstick for rates and times.
    worse = sign * mean if points else math.expm1(sign * mean)
    interval = Estimate(centre, min(low, centre), max(high, centre), count)
    return _Raw(base, new, worse, p_value, interval, effect, paired, count)


def pair_rounds(base: Metric, new: Metric) -> list[tuple[int, int]]:
    """Return which rounds of two runs lie next to each other in time, or nothing where they do not alternate.

    A round that broke or carried too few batches leaves its partner unpaired.
    """
    if not (base.rounds and new.rounds and base.begun_s and new.begun_s):
        return []
    events = sorted([(t, 0, i) for i, t in enumerate(base.begun_s)] + [(t, 1, j) for j, t in enumerate(new.begun_s)])
    pairs: list[tuple[int, int]] = []
    at = 0
    while at + 1 < len(events):
        (_, side, i), (_, other, j) = events[at], events[at + 1]
        if side == other:
            at += 1
            continue
        pairs.append((i, j) if side == 0 else (j, i))
        at += 2
    fewest = min(len(base.begun_s), len(new.begun_s))
    return pairs if len(pairs) >= max(LEAST_VALUES, 2 * fewest / 3) else []


def _difference(x: Floats, y: Floats, paired: bool, rounds: bool) -> tuple[float, float, float, float]:
    """Return (mean difference, its spread, its standard error, degrees of freedom)."""
    if paired:
        d = y - x
        spread = float(d.std(ddof=1))
        return float(d.mean()), spread, spread / math.sqrt(d.size), d.size - 1
    vx, vy = float(x.var(ddof=1)), float(y.var(ddof=1))
    spread = math.sqrt((vx + vy) / 2)
    mean = float(y.mean() - x.mean())
    if rounds:  # separate measurements with fresh workers, each a draw of its own
        ex, ey = vx / x.size, vy / y.size
    else:  # one measurement each: the host may drift between them as much as between blocks
        ex, ey = vx, vy
    error = math.sqrt(ex + ey)
    down = ex**2 / (x.size - 1) + ey**2 / (y.size - 1)
    dof = (ex + ey) ** 2 / down if down > 0 else float(x.size + y.size - 2)
    return mean, spread, error, dof


def _two_sided(mean: float, error: float, dof: float) -> float:
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    from scipy.special import stdtr

    return float(2 * stdtr(dof, -abs(mean) / error))


def _relative(base: float, new: float, points: bool) -> float:
    if points:
        return new - base
    return new / base - 1 if base > 0 else math.nan


def _bootstrap(a: Floats, b: Floats, paired: bool, rounds: bool, points: bool) -> tuple[float, float]:
    """Return the 95% interval of the change by resampling rounds (in pairs) or single blocks."""
    rng = np.random.default_rng(0)
    if paired:
        i = j = rng.integers(0, a.size, (BOOTSTRAP_ROUNDS, a.size))
    else:
        take_a, take_b = (a.size, b.size) if rounds else (1, 1)
        i = rng.integers(0, a.size, (BOOTSTRAP_ROUNDS, take_a))
        j = rng.integers(0, b.size, (BOOTSTRAP_ROUNDS, take_b))
    if points:
        changes = b[j].mean(axis=1) - a[i].mean(axis=1)
    else:
        changes = np.expm1(np.log(b)[j].mean(axis=1) - np.log(a)[i].mean(axis=1))
    low, high = np.quantile(changes, [0.025, 0.975])
    return float(low), float(high)


def _judge(raw: list[_Raw], bands: CompareConfig) -> list[MetricChange]:
    """Correct the p-values for their number (Holm, step down) and put each change into a band."""
    order = sorted((r for r in raw if r.p_value is not None), key=lambda r: r.p_value or 0.0)
    corrected: dict[int, float] = {}
    running = 0.0
    for k, item in enumerate(order):
        running = max(running, min(1.0, (item.p_value or 0.0) * (len(order) - k)))
        corrected[id(item)] = running
    return [_verdict(item, corrected.get(id(item)), bands) for item in raw]


def _verdict(item: _Raw, p_value: float | None, bands: CompareConfig) -> MetricChange:
    verdict: Change = "not judged"
    large = False
    if item.worse is not None and p_value is not None:
        # FALSE_ALARM is one-sided: half of a two-sided level of twice its size.
        significant = p_value < 2 * FALSE_ALARM
        large = abs(item.worse) >= bands.large
        halfwidth = (item.interval.high - item.interval.low) / 2
        if significant and abs(item.worse) >= bands.noise:
            verdict = "slower" if item.worse > 0 else "faster"
        elif large or halfwidth > bands.large:
            verdict = "undecided"
        else:
            verdict = "same"
    return MetricChange(
        name=item.base.name,
        base=item.base.estimate,
        new=item.new.estimate,
        change=item.interval,
        scale=item.base.scale,
        worse_by=item.worse,
        p_value=p_value,
        effect_size=item.effect,
        verdict=verdict,
        large=large and verdict in ("slower", "faster"),
        paired=item.paired,
        values=item.count,
    )
