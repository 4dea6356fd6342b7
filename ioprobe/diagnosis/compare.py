"""Two runs, compared: what changed, by how much, and whether that is more than noise.

From first principles, with the change turned so that worse is positive and its 95% interval:

- *slower*: significant at :data:`FALSE_ALARM`, **and** larger than the noise band. It fails builds, so false alarms
  are what must be rare.
- *faster*: the whole interval lies on the better side, and its centre beyond the noise band. Nothing fails by it.
- *same*: the interval lies within the large band, and what it is centred on is below the noise band or not
  distinguishable from nothing: no change that matters can hide.
- *undecided*: everything else; a change that matters may be there, and more must be measured.

Several figures are judged at once; Holm's procedure keeps the chance of any false alarm in one comparison at
``FALSE_ALARM`` (Holm, *A simple sequentially rejective multiple test procedure*, 1979).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ioprobe.config import CompareConfig
from ioprobe.diagnosis.contrast import Contrast, contrast
from ioprobe.diagnosis.differences import differences_of
from ioprobe.diagnosis.metrics import metrics_of
from ioprobe.errors import UsageError
from ioprobe.run import Caveat, Run, json_schema
from ioprobe.stats import Estimate
from ioprobe.units import format_points, format_share

# Chance that one comparison of equal runs calls anything slower: with 200 of them, one false alarm is rare.
FALSE_ALARM = 0.001
HEADLINES = ("samples_per_s", "loader_samples_per_s", "step_s")
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

    @property
    def word(self) -> str:
        """The verdict as it is shown."""
        return f"much {self.verdict}" if self.large else self.verdict

    @property
    def size(self) -> str:
        """The change with its sign and unit."""
        return self._shown(self.change.value)

    @property
    def interval(self) -> str:
        """The 95% interval in the same unit."""
        low, high = self._shown(self.change.low), self._shown(self.change.high)
        return f"{low.removesuffix(' points')} to {high}"

    def _shown(self, value: float) -> str:
        if self.scale == "points":
            return format_points(value)
        return f"{'+' if value >= 0 else ''}{format_share(value)}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A base and a new run."""

    schema: int = 1
    kind: str = "compare"
    verdict: Change
    """``slower`` where any figure is; else the headline's verdict."""
    headline: str
    """The figure that stands for the whole: loop throughput, else the loader's, else the step's."""
    metrics: list[MetricChange]
    same_run: bool = False
    """True where both are one and the same measurement."""
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


def compare_schema() -> dict[str, Any]:
    """Return the JSON Schema of a comparison."""
    return json_schema(Comparison)


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
    contrasts = [contrast(ours[name], theirs[name], bands.noise) for name in shared]
    same_run = base == new
    judged = [_nothing(item) for item in contrasts] if same_run else _judge(contrasts, bands)
    headline = next((name for name in HEADLINES if name in shared), shared[0])
    verdict = next(change.verdict for change in judged if change.name == headline)
    if any(change.verdict == "slower" for change in judged):
        verdict = "slower"
    return Comparison(
        verdict=verdict,
        headline=headline,
        metrics=judged,
        same_run=same_run,
        differences=differences,
        unlike=unlike,
        noise=bands.noise,
        large=bands.large,
        caveats=[_SAME_RUN] if same_run else _caveats(base, new, judged),
    )


_SAME_RUN = Caveat(
    "same-run",
    "both are one and the same run, so nothing is learned about noise",
    "compare two measurements, or two targets in alternating rounds",
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
                    f"the {word} run",
                    "more rounds, or an idle host" if paired else "an idle host, or alternating rounds of both loaders",
                )
            )
    return caveats


def _judge(contrasts: list[Contrast], bands: CompareConfig) -> list[MetricChange]:
    """Correct the p-values for their number (Holm, step down) and put each change into a band."""
    order = sorted((c for c in contrasts if c.p_value is not None), key=lambda c: c.p_value or 0.0)
    corrected: dict[str, float] = {}
    running = 0.0
    for k, item in enumerate(order):
        running = max(running, min(1.0, (item.p_value or 0.0) * (len(order) - k)))
        corrected[item.base.name] = running
    return [_verdict(item, corrected.get(item.base.name), bands) for item in contrasts]


def _verdict(item: Contrast, p_value: float | None, bands: CompareConfig) -> MetricChange:
    if p_value is None:
        return _changed(item, "not judged", None, None)
    worse = item.worse
    beyond_noise = abs(worse.value) >= bands.noise
    verdict: Change = "undecided"
    # FALSE_ALARM is one-sided: half of a two-sided level of twice its size.
    if beyond_noise and worse.value > 0 and p_value < 2 * FALSE_ALARM:
        verdict = "slower"
    elif beyond_noise and worse.high < 0:
        verdict = "faster"
    elif -bands.large < worse.low and worse.high < bands.large:
        covers_nothing = worse.low <= 0 <= worse.high
        verdict = "same" if covers_nothing or not beyond_noise else "undecided"
    return _changed(item, verdict, worse.value, p_value, abs(worse.value) >= bands.large)


def _nothing(item: Contrast) -> MetricChange:
    """The change between a run and itself."""
    zero = msgspec.structs.replace(item, change=Estimate(0.0, 0.0, 0.0, item.count), effect=None, paired=False)
    return _changed(zero, "same", 0.0, None)


def _changed(
    item: Contrast, verdict: Change, worse_by: float | None, p_value: float | None, large: bool = False
) -> MetricChange:
    return MetricChange(
        name=item.base.name,
        base=item.base.estimate,
        new=item.new.estimate,
        change=item.change,
        scale=item.base.scale,
        worse_by=worse_by,
        p_value=p_value,
        effect_size=item.effect,
        verdict=verdict,
        large=large and verdict in ("slower", "faster"),
        paired=item.paired,
        values=item.count,
    )
