"""Calibrate once, search the model, run the pick against the present setting, correct, and stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ioprobe.analysis.choice import changes, decide, grid_settings, knobs_of, settings_of
from ioprobe.analysis.request import Request
from ioprobe.analysis.session import describe_step, load_command, new_run
from ioprobe.diagnosis.advice import copies_seen, limits_of
from ioprobe.diagnosis.evidence import gather
from ioprobe.diagnosis.forecast import point
from ioprobe.diagnosis.modelled import as_counted, counted
from ioprobe.diagnosis.steady import steady
from ioprobe.diagnosis.tuning import (
    GridRow,
    Help,
    Knobs,
    Recommended,
    Tuning,
    gain_between,
    knobs,
    measured_at,
    pooled,
)
from ioprobe.errors import IoprobeError, MeasureError, UsageError
from ioprobe.model.calibrate import calibrate
from ioprobe.model.company import setting_of
from ioprobe.model.predict import predict
from ioprobe.model.profile import Prediction, Profile, Setting
from ioprobe.model.search import Limits, SearchResult, Seen, search
from ioprobe.probe import protocol
from ioprobe.probe.supervise import Supervisor
from ioprobe.run import Caveat, Failure, LoaderRun, Run
from ioprobe.stats import Estimate

Progress = Callable[[str, float, float], None]

NARROW = 0.02
"""Half-width of the measured gain at which it is known well enough [fraction]."""
MOST_ROUNDS = 4
"""Interleaved repetitions of pick and present setting."""
FEWEST_BATCHES = 16
"""Batches past the prefetched burst that a measurement should see."""
MOST_PICKS = 3
"""Settings that are run before the search gives in."""
SURPRISE = 0.05
"""Error of a prediction that makes the search look again [fraction]."""


@dataclass(frozen=True)
class TuneOptions:
    """How to tune."""

    budget_s: float = 60.0
    """Bound of the whole measurement [s], start-up of processes left out."""
    max_workers: int = 32
    ranks_per_host: int = 1
    tolerance: float = 0.01
    grid: bool = False
    """Measure the whole grid instead of trusting the model."""
    repetitions: int = 3
    """Of each setting of the grid."""


def tune(request: Request, options: TuneOptions, *, progress: Progress | None = None) -> tuple[Run, Tuning | None]:
    """Return the run and what it says of the settings to use; no answer where it was interrupted, but the run.

    Raises:
        TargetError: the loader or the step cannot be made.
        MeasureError: the loader fails, or delivers too little to calibrate from.
    """
    run = new_run(request, with_torch=True)
    tuner = _Tuner(request, options, run, progress or (lambda text, done, of: None))
    try:
        return run, tuner.tune()
    except KeyboardInterrupt:
        run.complete = False
        run.failures.append(
            Failure(phase="tune", kind="interrupted", message=f"interrupted while measuring: {tuner.text}")
        )
        return run, None
    finally:
        tuner.supervisor.retire()


class _Tuner:
    def __init__(self, request: Request, options: TuneOptions, run: Run, progress: Progress) -> None:
        self.request, self.options, self.run = request, options, run
        self.coupled = request.has_step
        self.failed = ""
        self.text = "starting: importing your code, making the loader"
        self.begun = time.monotonic()
        self.show = progress
        log = request.folder / "target.log" if request.folder else None
        self.supervisor = Supervisor(log=log, progress=self._report, hang_s=request.hang_s)

    def _report(self, text: str, done_s: float, of_s: float) -> None:
        self.show(self.text, self._spent(), self.options.budget_s)

    def _spent(self) -> float:
        return time.monotonic() - self.begun

    def _left(self) -> float:
        return self.options.budget_s - self._spent()

    def tune(self) -> Tuning:
        """Do it all; every measurement is in the run as soon as it is done."""
        self._load()
        profile = self._calibrate()
        limits = self._limits()
        if self.options.grid:
            return self._by_grid(profile, limits)
        current = profile.current
        seen: list[Seen] = []
        best = search(profile, current, limits=limits, tolerance=self.options.tolerance)
        first = best
        tried: list[Prediction] = []
        while len(tried) < MOST_PICKS and best.action != "no-change" and profile.adaptable:
            again = any(knobs_of(p.setting) == knobs_of(best.recommended) for p in tried)
            # The first pick runs whatever the clock says: an answer that nobody ran is a guess.
            if again or (tried and self._left() < 1.0):
                break
            plain = predict(profile, best.recommended)
            tried.append(plain)
            if not self._compare(best.recommended, current, last=len(tried) == MOST_PICKS):
                break
            surprise = self._note(self._counted(plain), seen)
            surprise |= self._note(self._counted(predict(profile, current)), seen)
            if not surprise:
                break
            limits = self._limits()  # a run with more workers than the stream has shards tells how many it has
            best = search(profile, current, limits=limits, tolerance=self.options.tolerance, seen=seen)
        return self._answer(profile, first, best, tried, [])

    # -- measuring --------------------------------------------------------

    def _load(self) -> None:
        request = self.request
        self.show(self.text, 0.0, 0.0)
        facts = self.run.facts = self.supervisor.load(load_command(request))
        if facts.settings is None:
            raise UsageError(
                "cannot tune: the loader is no DataLoader and holds none, so it has no settings",
                hint="'ioprobe analyze' tells what limits it",
            )
        self.begun = time.monotonic()

    def _measure(self, text: str, seconds: float, *, coupled: bool, purpose: str, **changes: Any) -> LoaderRun:
        self.text = text
        self._report(text, 0.0, 0.0)
        least_s = min(1.5, seconds / 2)
        # Workers that all read the same stream seem to be faster, the more there are.
        repeats = self.run.facts is not None and self.run.facts.kind == "iterable"
        command = protocol.Measure(
            coupled=coupled, purpose=purpose, seconds=seconds, least_s=least_s, changes=changes, repeats=repeats
        )
        found = self.supervisor.measure(command)
        if found.settings is None and not changes and self.run.facts is not None:
            found.settings = self.run.facts.settings
        self.run.loaders.append(found)
        return found

    def _calibrate(self) -> Profile:
        """Measure the present setting, the loader alone, and a little of another setting."""
        budget, run = self.options.budget_s, self.run
        if self.coupled:
            loop = self._measure("the present setting", max(2.0, 0.1 * budget), coupled=True, purpose="baseline")
            self._refuse(loop)
            self.text = "the step alone"
            run.step = describe_step(self.supervisor.step(protocol.Step(seconds=max(0.5, 0.04 * budget))), self.request)
        alone = self._measure("the loader alone", self._seconds(0.08), coupled=False, purpose="baseline")
        self._refuse(alone)
        settings, facts = alone.settings, run.facts
        if facts is not None and facts.adaptable and settings is not None:
            # One setting cannot tell a lock or a full link from latency, nor busy neighbours from slow code.
            other = 2 if settings.num_workers < 2 else max(1, settings.num_workers // 2)
            text = f"the loader alone with {other} workers"
            seconds = self._seconds(0.05)
            with suppress(MeasureError):  # where the factory cannot be called again the model goes without
                self._measure(text, seconds, coupled=False, purpose="calibrate", num_workers=other)
            if settings.num_workers:
                # Without workers nothing is copied into shared memory: no other setting tells what that saves.
                text = "the loader alone without workers"
                self._measure(text, 0.5 * seconds, coupled=False, purpose="calibrate", num_workers=0)
        profile = calibrate(run)
        # A measurement that began too late to tell is no reason to take another one's setting for the present.
        if profile.adaptable and settings is not None:
            profile = replace(profile, current=setting_of(settings, profile.step, alone))
        return profile

    @staticmethod
    def _refuse(found: LoaderRun) -> None:
        if found.failure is not None:
            raise MeasureError(f"cannot tune: {found.failure.sentence}", hint=found.failure.hint)

    def _limits(self) -> Limits:
        most, settings = self.options.max_workers, self.run.facts.settings if self.run.facts else None
        if copies_seen(self.run.loaders) and settings is not None:
            most = min(most, max(1, settings.num_workers))
        return replace(limits_of(self.run), max_workers=most, ranks_per_host=self.options.ranks_per_host)

    def _compare(self, pick: Setting, current: Setting, *, last: bool) -> bool:
        """Run pick and present setting in turn until the gain is known; False where the pick fails."""
        seconds = max(self._seconds(0.06, pick), self._seconds(0.06, current))
        text = f"verifying num_workers={pick.num_workers}, prefetch_factor={pick.prefetch_factor}"
        for round_ in range(MOST_ROUNDS):
            if round_ and self._left() < 2 * seconds:
                break
            try:
                found = self._measure(text, seconds, coupled=self.coupled, purpose="verify", **changes(pick, current))
                failed = found.failure.sentence if found.failure is not None else ""
            except MeasureError as error:
                failed = error.message
            if failed:
                self.failed = f"the setting that the model prefers failed when it was run: {failed}"
                return False
            if current.num_workers < pick.num_workers and copies_seen(self.run.loaders):
                self.failed = f"more workers only deliver copies: {copies_seen(self.run.loaders)}"
                return False
            if len(self._seen(current)) <= round_ + (0 if last else 1):
                again = self._measure("the present setting again", seconds, coupled=self.coupled, purpose="baseline")
                if again.failure is not None:
                    self.failed = f"the present setting failed when it was run again: {again.failure.sentence}"
                    return False
            gain = gain_between(self._seen(pick), self._seen(current))
            if gain is not None and round_ and (gain.high - gain.low) / 2 < max(NARROW, 0.25 * abs(gain.value)):
                break
        return True

    def _seconds(self, share: float, setting: Setting | None = None) -> float:
        """Return a measurement's length: a share of the budget, more where batches are slow."""
        base = max(1.5, share * self.options.budget_s)
        rates = [s for m in self.run.loaders if (s := steady(m)) is not None]
        if not rates:
            return base
        depth = 8 if setting is None else setting.depth
        return min(max(base, (2 * depth + FEWEST_BATCHES) * rates[-1].cycle_s), 0.2 * self.options.budget_s)

    def _seen(self, setting: Setting) -> list[Estimate]:
        return measured_at(self.run.loaders, knobs_of(setting), coupled=self.coupled)

    def _counted(self, predicted: Prediction) -> Prediction:
        """Return a prediction over what the loop was measured over: whole epochs where they are short."""
        return as_counted(predicted, gather(self.run))

    def _note(self, predicted: Prediction, seen: list[Seen]) -> bool:
        """Write down how far a prediction was off; True where it was a surprise."""
        rate = pooled(self._seen(predicted.setting))
        if rate is None or predicted.samples_per_s.value <= 0:
            return False
        s = predicted.setting
        ratio = rate.value / predicted.samples_per_s.value
        seen.append(Seen(s.num_workers, s.prefetch_factor, ratio))
        return abs(ratio - 1) > max(SURPRISE, rate.relative_halfwidth)

    # -- answering --------------------------------------------------------

    def _answer(
        self,
        profile: Profile,
        first: SearchResult,
        best: SearchResult,
        tried: list[Prediction],
        grid: list[GridRow],
    ) -> Tuning:
        current = profile.current
        evidence = gather(self.run)
        first, best = (
            replace(
                found,
                current=as_counted(found.current, evidence),
                predicted=as_counted(found.predicted, evidence),
                candidates=tuple(as_counted(p, evidence) for p in found.candidates),
            )
            for found in (first, best)
        )
        old = self._seen(current)
        ran = [(as_counted(p, evidence), self._seen(p.setting)) for p in tried]
        most = max(1, current.num_workers) if copies_seen(self.run.loaders) else math.inf
        ran = [(p, s) for p, s in ran if s and p.setting.num_workers <= most]
        (cold,) = measured_at(self.run.loaders[:1], knobs_of(current), coupled=self.coupled) or (None,)
        pick, action, reason = decide(first, best, ran, old, self.options.tolerance, cold)
        if tried and not (ran and old):
            # What was run gave no rate: nobody saw the gain that the model promises.
            few = "the setting that the model prefers gave too few batches to be compared; raise --budget"
            pick, action, reason = first.current, "no-change", self.failed or few
        elif self.failed and knobs_of(pick.setting) not in {knobs_of(p.setting) for p, _ in ran}:
            pick, action, reason = first.current, "no-change", self.failed
        runs = self._seen(pick.setting)
        same = knobs_of(pick.setting) == knobs_of(current)
        return Tuning(
            target=self.request.target,
            unit=self.request.unit,
            coupled=self.coupled,
            counted=counted(evidence, first.current.epoch_samples_per_s is not None),
            current=msgspec.structs.replace(point(first.current, profile, self.run), measured=pooled(old)),
            recommended=Recommended(
                settings=settings_of(pick.setting),
                action=action,
                reason=reason,
                predicted=point(pick, profile, self.run),
                samples_per_s=pooled(runs),
                verified=None if same else gain_between(runs, old),
            ),
            candidates=[point(p, profile, self.run) for p in best.candidates[:40]],
            also=[Help(code=r.code, text=r.text, gain=r.gain) for r in first.also],
            grid=grid,
            spent_s=self._spent(),
            measured_settings=len({(m.settings.num_workers, m.settings.prefetch_factor) for m in self._ran()}),
            caveats=[*profile.caveats, *self._doubts()],
            failures=[m.failure for m in self.run.loaders if m.failure is not None],
        )

    def _ran(self) -> list[Any]:
        return [m for m in self.run.loaders if m.settings is not None]

    def _doubts(self) -> list[Caveat]:
        doubts = []
        if copies := copies_seen(self.run.loaders):
            doubts.append(Caveat("same-samples", f"rates count copies: {copies}", "then tune again"))
        loads = [m.load.other_cores for m in self.run.loaders if m.load is not None]
        busiest = max(loads, default=0.0)
        if busiest < 0.15 * self.run.host.usable_cores:
            return doubts
        text = f"other processes used up to {busiest:.1f} of {self.run.host.usable_cores:g} cores meanwhile"
        return [*doubts, Caveat("other-load", text, "tune again on a quiet host; 'ioprobe doctor' shows what runs")]

    def _by_grid(self, profile: Profile, limits: Limits) -> Tuning:
        """Measure every setting several times, in turn, and pick from what was measured."""
        current = profile.current
        settings = grid_settings(current, limits, profile)
        rows: dict[Knobs, GridRow] = {}
        cold = {knobs_of(s): self._cold(s, current) for s in settings} if self._files() else {}
        for _ in range(self.options.repetitions):
            for setting in settings:
                self._one(setting, current)
        for setting in settings:
            rates = [rate.value for rate in self._seen(setting)][-self.options.repetitions :]
            stalls = self._stalls(setting)
            rows[knobs_of(setting)] = GridRow(
                settings=settings_of(setting),
                samples_per_s=rates,
                cold_samples_per_s=cold.get(knobs_of(setting)),
                stall_share=stalls[len(stalls) // 2] if stalls and self.coupled else None,
                failure=self._failed(setting),
            )
        best = search(profile, current, limits=limits, tolerance=self.options.tolerance)
        tried = [predict(profile, s) for s in settings]
        return self._answer(profile, best, best, tried, list(rows.values()))

    def _stalls(self, setting: Setting) -> list[float]:
        """Stall shares measured at a setting, ascending [fraction]."""
        found = [m for m in self.run.loaders if m.coupled and knobs(m) == knobs_of(setting)]
        return sorted(s.stall_share.value for m in found if (s := steady(m)) is not None)

    def _one(self, setting: Setting, current: Setting, purpose: str = "grid") -> LoaderRun:
        text = f"grid: num_workers={setting.num_workers} prefetch_factor={setting.prefetch_factor}"
        wanted = {} if knobs_of(setting) == knobs_of(current) else changes(setting, current)
        return self._measure(text, 3.0, coupled=self.coupled, purpose=purpose, **wanted)

    def _files(self) -> list[str]:
        """Local files of the dataset, where the target is a dataset."""
        from ioprobe.probe.target import is_factory

        if is_factory(self.request.target):
            return []
        from ioprobe.data.shards import local_path
        from ioprobe.data.urls import list_shards

        try:
            paths = [local_path(shard.url) for shard in list_shards(self.request.target).shards]
        except IoprobeError:
            return []
        return [path for path in paths if path is not None]

    def _cold(self, setting: Setting, current: Setting) -> float | None:
        """Return the rate right after the files left the page cache; None where they stay."""
        from ioprobe.probe.pagecache import drop

        gone = drop(self._files())
        if gone.after is None or gone.after > 0.05:
            return None
        seen = steady(self._one(setting, current, purpose="grid-cold"))
        return None if seen is None else seen.samples_per_s.value

    def _failed(self, setting: Setting) -> str:
        for m in self.run.loaders:
            if m.failure is not None and m.settings is not None and m.settings.num_workers == setting.num_workers:
                return m.failure.sentence
        return ""
