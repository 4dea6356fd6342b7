"""Measure loop, step, loader and storage in turn, and verify what the diagnosis recommends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ioprobe import __version__
from ioprobe.analysis.caveats import caveats
from ioprobe.analysis.declared import declare_flops
from ioprobe.analysis.request import Request
from ioprobe.diagnosis.advice import copies_seen, shards_seen
from ioprobe.diagnosis.diagnose import Finished, diagnose
from ioprobe.diagnosis.evidence import gather
from ioprobe.diagnosis.types import Advice, Verdict
from ioprobe.errors import IoprobeError
from ioprobe.probe import protocol
from ioprobe.probe.host import measure_host
from ioprobe.probe.supervise import Supervisor
from ioprobe.probe.target import is_factory
from ioprobe.run import Caveat, Failure, LoaderRun, Run, StepRun, StorageJob, Workload, now_utc
from ioprobe.secrets import redact_url

Progress = Callable[[str, float, float], None]

# Shares of the time budget. Loop and loader usually stop earlier, when their intervals are narrow.
_SHARE = {"loop": 0.28, "step": 0.07, "loader": 0.16, "second": 0.08, "storage": 0.11, "verify": 0.20}
_LEAST_S = {"loop": 2.0, "step": 0.4, "loader": 1.2, "second": 1.0, "storage": 1.0, "verify": 2.0}
_WORDS = {
    "loop": "loader and step coupled, as in training",
    "step": "the step alone, on a resident batch",
    "loader": "the loader alone",
    "second": "the loader alone at another number of workers",
    "storage": "storage: the dataset's own reads, no decoding",
    "verify": "the recommended setting, for real",
    "load": "starting: importing your code, making the loader",
}


def analyze(request: Request, *, progress: Progress | None = None, keep: Callable[[Run], object] | None = None) -> Run:
    """Measure what was asked and return the run; an interrupt returns what there is, marked incomplete.

    ``keep`` gets the run however measuring ends, so that a fault of ours later on never costs the measurements.

    Raises:
        TargetError: the loader or the step cannot be made.
    """
    run = new_run(request)
    session = Session(request, run, progress or (lambda text, done, of: None))
    try:
        session.measure()
    except KeyboardInterrupt:
        session.interrupted()
    finally:
        try:
            session.supervisor.retire()
        finally:  # an impatient second Ctrl-C
            if keep is not None and (run.loaders or run.failures):
                keep(run)
    run.caveats += caveats(run)
    return run


def new_run(request: Request, *, with_torch: bool = False) -> Run:
    """Return a run with nothing measured yet; ``with_torch`` as in ``measure_host``."""
    return Run(
        kind=request.kind,
        created_at=now_utc(),
        version=__version__,
        host=measure_host(with_torch=with_torch),
        workload=Workload(
            target=redact_url(request.target),
            command=request.command,
            step=request.step or request.step_source or None,
            seconds=request.seconds,
            unit=request.unit,
            tokens_per_sample=request.tokens_per_sample,
            seed=request.seed,
            dlio=request.dlio,
        ),
    )


def load_command(request: Request, team: protocol.Team | None = None) -> protocol.Load:
    """Return what makes the loader and the step that are asked for."""
    return protocol.Load(
        target=request.target,
        step=request.step,
        step_s=request.step_s,
        step_s_per_sample=request.step_s_per_sample,
        step_source=request.step or request.step_source,
        loader_options=request.loader_options,
        batch_samples=request.batch_samples,
        team=team,
    )


def describe_step(step: StepRun, request: Request) -> StepRun:
    """Add to a measured step what only the request says of it."""
    if step.emulated:
        step.accelerator = request.accelerator
    if request.transformer is not None and step.durations_s:
        declare_flops(step, request.transformer)
    return step


class Alone:
    """One rank, which waits for nobody; ``analysis.ranks`` has the one for several."""

    precision = 0.02
    """Relative half-width of the interval at which a measurement may end early; 0 to use the whole time."""
    log_name = "target.log"
    watch: Callable[[], None] | None = None
    """Called while an answer of the child is awaited."""

    @property
    def member(self) -> protocol.Team | None:
        """What the child needs to meet other ranks."""
        return None

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the child."""
        return {}

    def meet(self, phase: str) -> None:
        """Wait until every rank has come to a phase."""

    def most(self, name: str, mine: int) -> int:
        """Return the largest of the ranks' numbers."""
        return mine

    def broken(self, failure: Failure) -> None:
        """Called once this rank's loader failed."""

    def to_verify(self, run: Run) -> tuple[str, dict[str, Any]] | None:
        """Return code and settings of the advice to confirm by a real run."""
        pick = to_verify(diagnose(run))
        return None if pick is None else (pick.code, pick.settings)

    def storage_curve(self, run: Run, request: Request, seconds: float) -> list[StorageJob]:
        """Measure how storage scales with ranks."""
        return []


class Session:
    """The phases of one analysis; each adds to the run as soon as it is done."""

    def __init__(self, request: Request, run: Run, progress: Progress, company: Alone | None = None) -> None:
        self.request, self.run, self.progress = request, run, progress
        self.company = company or Alone()
        self.phase = "load"
        log = request.folder / self.company.log_name if request.folder else None
        self.supervisor = Supervisor(
            log=log,
            progress=self._report,
            hang_s=request.hang_s,
            env=self.company.environment,
            watch=self.company.watch,
        )

    def _report(self, text: str, done_s: float, of_s: float) -> None:
        self.progress(_WORDS.get(self.phase, text), done_s, of_s)

    def _begin(self, phase: str) -> float:
        self.phase = phase
        if phase == "load":
            self.progress(_WORDS[phase], 0.0, 0.0)
            return 0.0
        self.company.meet(phase)
        seconds = max(_LEAST_S[phase], self.request.seconds * _SHARE[phase])
        self.progress(_WORDS[phase], 0.0, seconds)
        return seconds

    def measure(self) -> None:
        """Run the phases; each adds to the run as soon as it is done."""
        request, run = self.request, self.run
        self._begin("load")
        if not is_factory(request.target):
            self._describe()
        if self.company.member is not None:
            # A factory that joins a process group waits there for the others: all children are up before it begins.
            self.supervisor.start()
            self.company.meet("load")
        run.facts = self.supervisor.load(load_command(request, self.company.member))
        if "loop" in request.phases and request.has_step:
            run.loaders.append(self._unless_killed("loop", coupled=True))
        if "step" in request.phases and request.has_step and not self._is_broken():
            command = protocol.Step(seconds=self._begin("step"), tokens_per_sample=request.tokens_per_sample)
            try:
                run.step = describe_step(self.supervisor.step(command), request)
            except IoprobeError as error:
                run.failures.append(Failure(phase="step", kind="exception", message=error.message, hint=error.hint))
        elif run.loaders and request.step is None and request.has_step:
            text = f"the loader failed before the step that was given could run: {request.step_source}"
            run.caveats.append(Caveat("step-given", text))
        if "loader" in request.phases and not self._is_broken():
            repeats = run.facts.kind == "iterable"
            run.loaders.append(self._unless_killed("loader", coupled=False, repeats=repeats))
            self._second_setting()
        if run.dataset is not None and request.storage and not self._is_broken():
            self._storage()
        if request.verify and request.has_step and not self._is_broken():
            self._verify()

    def _describe(self) -> None:
        from ioprobe.data.describe import describe

        self.run.dataset = describe(self.request.target)

    def _is_broken(self) -> bool:
        """Whether the loop failed in a way that makes further measuring pointless or misleading."""
        failure = self.failure()
        if failure is not None:
            self.company.broken(failure)
        return failure is not None

    def failure(self) -> Failure | None:
        """Return what broke the loader."""
        return next((m.failure for m in self.run.loaders if m.failure and m.failure.kind != "interrupted"), None)

    def _loader(
        self, phase: str, *, coupled: bool, purpose: str = "baseline", repeats: bool = False, **changes: Any
    ) -> LoaderRun:
        seconds = self._begin(phase)
        found = self.supervisor.measure(
            protocol.Measure(
                coupled=coupled,
                purpose=purpose,
                precision=self.company.precision,
                seconds=seconds,
                least_s=min(3.0, seconds / 2),
                changes=changes,
                repeats=repeats,
            )
        )
        if found.settings is None and self.run.facts is not None and not changes:
            found.settings = self.run.facts.settings
        return found

    def _unless_killed(self, phase: str, **how: Any) -> LoaderRun:
        """Measure, and once more where somebody killed a process of the loader: an accident does not happen again."""
        found = self._loader(phase, **how)
        first = found.failure
        if first is None or first.kind != "sigkill" or self.company.member is not None:
            return found
        found = self._loader(phase, **how)
        if found.failure is None:
            text = f"{first.message}: measured again, it did not happen"
            self.run.caveats.append(Caveat("process-killed", text, first.hint))
        elif found.failure.kind == "sigkill":
            found.failure = msgspec.structs.replace(found.failure, kind="killed-again")
        return found

    def _second_setting(self) -> None:
        """Where workers mostly wait, one setting cannot tell a lock or a full link from latency: look at a second."""
        if self._is_broken():
            return
        other = self.company.most("second", self._other_setting())
        if not other:
            return
        try:
            self.run.loaders.append(self._loader("second", coupled=False, purpose="calibrate", num_workers=other))
        except IoprobeError:
            return  # a loader that cannot be rebuilt: the diagnosis goes without

    def _other_setting(self) -> int:
        """Return the second number of workers; 0 where one look is enough."""
        seen = gather(self.run)
        facts, settings, costs = self.run.facts, seen.settings, seen.costs
        if facts is None or not facts.adaptable or settings is None or costs is None or not settings.num_workers:
            return 0
        needed = (seen.stall or 0.0) > 0.08 or (seen.ratio or 2.0) < 1.3
        if not needed or costs.blocked_share < 0.35:
            return 0
        return max(1, settings.num_workers // 2) if settings.num_workers > 1 else 2

    def _storage(self) -> None:
        from ioprobe.probe.storage import measure_dataset

        assert self.run.dataset is not None
        seconds = self._begin("storage")
        settings = self.run.facts.settings if self.run.facts else None
        try:
            measure_dataset(
                self.request.target,
                seconds=seconds,
                concurrency=max(1, settings.num_workers if settings else 1),
                facts=self.run.dataset,
                progress=lambda text, share: self.progress(text, share * seconds, seconds),
                into=self.run.storage,
            )
        except IoprobeError as error:
            self.run.failures.append(Failure(phase="storage", kind="exception", message=error.message, hint=error.hint))
        self.run.storage += self.company.storage_curve(self.run, self.request, seconds)

    def _verify(self) -> None:
        known = shards_seen(self.run)
        pick = self.company.to_verify(self.run)
        if pick is None:
            return
        self._try(*pick)
        # Only more workers than shards show how many shards a stream has: then another setting is the one to advise.
        learnt = shards_seen(self.run) if self.failure() is None else None
        if self.company.most("shards", learnt if learnt is not None and learnt != known else 0):
            other = self.company.to_verify(self.run)
            if other is not None and other[1] != pick[1]:
                self._try(*other)

    def _try(self, code: str, settings: dict[str, Any]) -> None:
        """Measure the loop at the settings of an advice."""
        stream = self.run.facts is not None and self.run.facts.kind == "iterable"
        try:
            found = self._loader("verify", coupled=True, purpose="verify", repeats=stream, **settings)
            self.run.loaders.append(found)
            if copies := copies_seen([found]):
                self.run.caveats.append(Caveat("same-samples", f"the gain of '{code}' counts copies: {copies}"))
        except IoprobeError as error:
            self.run.caveats.append(
                Caveat("not-verified", f"the advice '{code}' was not verified: {error.message}", error.hint)
            )

    def interrupted(self) -> None:
        """Keep what was measured."""
        text = f"interrupted while {'' if self.phase == 'load' else 'measuring '}{_WORDS[self.phase]}"
        self.cut_short(Failure(phase=self.phase, kind="interrupted", message=text))

    def cut_short(self, failure: Failure) -> None:
        """End the measurement in hand and keep what it has so far."""
        self.run.complete = False
        self.run.failures.append(failure)
        self.supervisor.watch = None
        try:
            partial = self.supervisor.stop()
        except KeyboardInterrupt:  # a second Ctrl-C: no patience left
            return
        if isinstance(partial, LoaderRun) and len(partial.main.call_s) > 2:
            partial.purpose = "baseline" if self.phase in ("loop", "loader") else "verify"
            self.run.loaders.append(partial)


def to_verify(finished: Finished) -> Advice | None:
    """Return the advice that a real run should confirm: the first that is a setting and claims something."""
    if finished.diagnosis.verdict in (Verdict.UNDECIDED,):
        return None
    facts = finished.evidence.facts
    if not facts.adaptable and not facts.inner_loaders:
        return None
    return next((a for a in finished.advice if a.settings), None)
