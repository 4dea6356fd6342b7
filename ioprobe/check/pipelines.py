"""Judge the pipelines of a config: gather facts from wherever they are to be had, then rules, budgets, baseline."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ioprobe import __version__
from ioprobe.check.targets import (
    host_words,
    is_factory,
    is_there,
    located,
    require_dataset,
    require_factory,
    says_shards,
    shown,
)
from ioprobe.config import Config, PipelineConfig
from ioprobe.diagnosis.check import CheckedPipeline, CheckReport, IgnoredOutcome
from ioprobe.diagnosis.rules import gather, judge_pipeline, selected_rules
from ioprobe.diagnosis.types import Outcome
from ioprobe.errors import ConfigError, IoprobeError
from ioprobe.run import Caveat, DatasetFacts, Host, LoaderFacts, Run, now_utc
from ioprobe.units import format_count

Progress = Callable[[str], None]
RETRIES = 2
_WORKER_KEYS = {"prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"}


@dataclass(frozen=True)
class CheckRequest:
    """What to judge, and on what."""

    config: Config
    written: bool = True
    """The pipelines are tables of a file; False where they stand for targets that were named."""
    pipelines: tuple[str, ...] = ()
    """Names; empty for all."""
    host: str | None = None
    """Name of a ``[hosts.NAME]`` table that stands for every pipeline's own."""
    load: bool | None = None
    """Build factories' loaders and list datasets; None: only where the table does not say what the rules need."""
    load_timeout_s: float = 60.0
    measure_s: float | None = None
    """Measure each pipeline for at most this long [s]."""
    undecided: str = "fail"
    """``retry`` measures again, for longer, while a budget is undecided."""
    run: Run | None = None
    """A saved run; its pipeline is the one named, or the only one."""
    baseline: Run | None = None
    force: bool = False
    """Compare with the baseline even where the two are unlike."""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass
class _Known:
    """What one pipeline's sources gave."""

    loader: LoaderFacts | None = None
    dataset: DatasetFacts | None = None
    run: Run | None = None
    measured_s: float | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    caveats: list[Caveat] = field(default_factory=list)


def check(request: CheckRequest, *, progress: Progress | None = None) -> CheckReport:
    """Return the judgement of every pipeline.

    A pipeline that cannot be loaded, listed or measured becomes an entry of ``errors``; the others are judged.

    Raises:
        ConfigError: no such pipeline or host.
        UsageError: a rule's code is unknown, or run and baseline are unlike.
    """
    say = progress or (lambda text: None)
    config = request.config
    names = _names(request)
    selected_rules(request.select, request.ignore)  # a wrong code is told before anything is loaded
    pipelines: list[CheckedPipeline] = []
    outcomes: list[Outcome] = []
    ignored: list[IgnoredOutcome] = []
    errors: list[str] = []
    caveats: list[Caveat] = []
    here = _ThisHost()
    for name in names:
        table = config.pipelines[name]
        try:
            known = _learn(request, name, table, say)
        except IoprobeError as error:
            errors.append(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            continue
        host = config.host_of(table, request.host) or (known.run.host if known.run else here.host())
        comments = config.ignores_of(name)
        facts = gather(
            name,
            config=table,
            host=host,
            loader=known.loader,
            dataset=known.dataset,
            run=known.run,
            bare_ignores=sum(not (c.codes and c.reason) for c in comments),
            written=request.written,
        )
        judged = judge_pipeline(facts, config, select=request.select, ignore=request.ignore)
        outcomes += judged.outcomes + known.outcomes
        caveats += known.caveats
        ignored += [IgnoredOutcome(outcome=i.outcome, reason=i.reason, in_source=i.in_source) for i in judged.ignored]
        pipelines.append(
            CheckedPipeline(
                name=name,
                file=config.path,
                target=shown(table.target),
                host=host_words(host, request.host or table.host),
                known=facts.sources,
                measured_s=known.measured_s,
            )
        )
    return CheckReport(
        created_at=now_utc(),
        version=__version__,
        config=config.path,
        pipelines=pipelines,
        outcomes=outcomes,
        ignored=ignored,
        errors=errors,
        caveats=caveats + here.caveats(),
    )


def _names(request: CheckRequest) -> list[str]:
    config = request.config
    for name in request.pipelines:
        config.pipeline(name)
    if not config.pipelines:
        config.pipeline()
    names = list(request.pipelines) or list(config.pipelines)
    if request.run is not None and len(names) > 1:
        return [_whose(request.run, names, config)]
    return names


def _whose(run: Run, names: list[str], config: Config) -> str:
    """Return the pipeline that a run is of: the only one with its target."""
    target = run.workload.target
    same = [name for name in names if _is_of(target, config.pipelines[name], config)]
    if len(same) == 1:
        return same[0]
    several = f"{', '.join(same)} have its target" if same else f"none of {', '.join(names)} has its target"
    raise ConfigError(f"a run is of one pipeline, and {several} '{target}'", hint="name it with --pipeline")


def _is_of(target: str, table: PipelineConfig, config: Config) -> bool:
    """Whether a run's target, spelled from wherever it was measured, is that of a pipeline's table."""
    if not target or not table.target:
        return False
    if "://" in target or "://" in table.target:
        return target == shown(table.target)
    place = str(Path(located(table.target, config)).resolve())
    known = os.path.normpath(target)
    return known in (table.target, place) or place.endswith(f"/{known.lstrip('./')}")


def _learn(request: CheckRequest, name: str, table: PipelineConfig, say: Progress) -> _Known:
    known = _Known(run=request.run)
    if request.run is None and request.measure_s is None:
        _load(request, name, table, known, say)
    budgets = request.config.budgets_of(table)
    if request.run is None and request.measure_s is not None:
        _measure(request, name, table, known, say)
    elif known.run is not None:
        known.outcomes = _over_run(request, name, known.run)
    elif any(limit is not None for limit in msgspec.structs.asdict(budgets).values()):
        known.outcomes = [
            Outcome(
                name=budget,
                status="abstained",
                text="a budget needs a run: --run RUN or --measure S",
                missing=["run"],
                pipeline=name,
                file=request.config.path,
            )
            for budget, limit in msgspec.structs.asdict(budgets).items()
            if limit is not None
        ]
    return known


def _load(request: CheckRequest, name: str, table: PipelineConfig, known: _Known, say: Progress) -> None:
    """Build the loader or list the dataset, where that is wanted and the table does not tell already."""
    if request.load is False or not table.target:
        return
    target = located(table.target, request.config)
    if is_factory(target):
        require_factory(target)
        if request.load or table.num_workers is None:
            say(f"{name}: building the loader of {table.target}")
            known.loader = load_loader(target, loader_options(table), timeout_s=request.load_timeout_s)
    elif request.load or ("://" not in target and not says_shards(table)):
        from ioprobe.check.listing import list_dataset

        require_dataset(target)
        say(f"{name}: listing {shown(table.target)}")
        known.dataset = list_dataset(target, timeout_s=request.load_timeout_s)
    elif not is_there(target):
        text = f"{name}: the dataset '{shown(table.target)}' is not on this machine; judged by what its table says"
        known.caveats.append(Caveat("dataset-elsewhere", text))


def load_loader(target: str, options: dict[str, Any], *, timeout_s: float) -> LoaderFacts:
    """Return what the loader of a factory says of itself, built in a child process and not iterated.

    Raises:
        TargetError: the factory raised, hung or returned no loader.
    """
    from ioprobe.probe import protocol
    from ioprobe.probe.supervise import Supervisor

    with Supervisor(hang_s=timeout_s) as supervisor:
        return supervisor.load(protocol.Load(target=target, loader_options=options))


def loader_options(table: PipelineConfig) -> dict[str, Any]:
    """Return the DataLoader settings of a table, without those that torch refuses when there are no workers."""
    options = table.overrides()
    if options.get("num_workers") == 0:
        options = {key: value for key, value in options.items() if key not in _WORKER_KEYS}
    return options


def _measure(request: CheckRequest, name: str, table: PipelineConfig, known: _Known, say: Progress) -> None:
    if not table.target:
        raise ConfigError(f"[pipelines.{name}] names no target, so nothing can be measured", hint="add target = ...")
    seconds = request.measure_s or 0.0
    for attempt in range(1 + (RETRIES if request.undecided == "retry" else 0)):
        known.run = measure_once(request.config, name, table, seconds * 2**attempt, request.load_timeout_s, say)
        known.measured_s = seconds * 2**attempt
        known.outcomes = _over_run(request, name, known.run)
        if not any(outcome.status == "undecided" for outcome in known.outcomes):
            return


def measure_once(config: Config, name: str, table: PipelineConfig, seconds: float, hang_s: float, say: Progress) -> Run:
    """Return a fresh run of a pipeline: loop, step and loader, nothing verified.

    Raises:
        KeyboardInterrupt: it was interrupted; half a measurement is nothing to judge by.
    """
    from ioprobe.analysis import Request, analyze

    say(f"{name}: measuring for up to {format_count(seconds)} s")
    run = analyze(
        Request(
            target=located(table.target, config),
            kind="check",
            step=located(table.step, config) if table.step else None,
            step_s=table.step_ms / 1000 if table.step_ms is not None and not table.step else None,
            seconds=seconds,
            loader_options=loader_options(table),
            unit=config.analyze.unit or "samples",
            tokens_per_sample=config.analyze.tokens_per_sample,
            verify=False,
            storage=False,
            hang_s=hang_s,
        )
    )
    if any(failure.kind == "interrupted" for failure in run.failures):
        raise KeyboardInterrupt
    return run


def _over_run(request: CheckRequest, name: str, run: Run) -> list[Outcome]:
    from ioprobe.diagnosis.budgets import judge_budgets

    table = request.config.pipelines[name]
    outcomes = []
    for outcome in judge_budgets(request.config.budgets_of(table), run, pipeline=name):
        own = table.budgets is not None and getattr(table.budgets, outcome.name) is not None
        path = ("pipelines", name, "budgets", outcome.name) if own else ("budgets", outcome.name)
        place = request.config.place(*path)
        outcomes.append(
            msgspec.structs.replace(
                outcome,
                file=request.config.path,
                line=place.line if place else None,
                column=place.column if place else None,
            )
        )
    if request.baseline is not None:
        from ioprobe.check.baseline import judge_baseline

        judged = judge_baseline(request.baseline, run, request.config.compare, name, force=request.force)
        outcomes += [msgspec.structs.replace(outcome, file=request.config.path) for outcome in judged]
    return outcomes


class _ThisHost:
    """This machine, measured once and only where a pipeline needs it."""

    def __init__(self) -> None:
        self._host: Host | None = None

    def host(self) -> Host:
        if self._host is None:
            from ioprobe.probe.host import measure_host

            self._host = measure_host()
        return self._host

    def caveats(self) -> list[Caveat]:
        if self._host is None:
            return []
        cores = format_count(self._host.usable_cores)
        text = f"judged for this machine ({cores} usable cores), as no host table is given"
        return [Caveat("this-host", text, "add a [host] table with the training host's cores, accelerators and memory")]
