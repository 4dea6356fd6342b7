"""A job that already runs, looked at from outside: stacks through py-spy, CPU and reads through /proc."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

import msgspec

from ioprobe import __version__
from ioprobe.instrument.stages import Rule, classify
from ioprobe.live.processes import ProcessMeter, Roles, Size, job_pids, roles, size_of
from ioprobe.live.profile import loader_run
from ioprobe.live.stacks.pyspy import Recording, check_access, confidence, dump, record
from ioprobe.live.stacks.recordings import Stack, with_calls
from ioprobe.live.stacks.shares import Explained, Job, jobs
from ioprobe.probe.host import measure_host
from ioprobe.probe.load import LoadMeter
from ioprobe.run import (
    Caveat,
    Host,
    HostLoad,
    LoaderRun,
    LoaderSettings,
    MainBatches,
    ProcessLoad,
    Run,
    Stage,
    Workload,
)

MOST_RATE, LEAST_RATE = 50, 5
_PROCESS_S, _STACK_S, _THREAD_S = 3e-4, 3e-4, 1e-5
"""CPU that py-spy takes at each sample, about: for a process, for a Python stack, for any thread [s]."""
_CPU_SHARE = 0.012
"""Of the usable cores, that sampling may take."""


class Attached(NamedTuple):
    """What was seen of a live job."""

    run: Run
    explained: list[Explained]


class Stuck(NamedTuple):
    """Where one thread stands, for ``--dump``."""

    role: str
    stage: Stage
    rule: str
    stack: Stack


def default_rate(size: Size, cores: float) -> int:
    """Return samples per second that cost the job next to nothing: 1.2% of the cores, whatever its size.

    >>> default_rate(Size(1, 1, 2), 2), default_rate(Size(3, 8, 20), 2), default_rate(Size(3, 8, 20), 64)
    (38, 6, 50)
    """
    seconds = _PROCESS_S * size.processes + _STACK_S * size.python_threads + _THREAD_S * size.threads
    return max(LEAST_RATE, min(MOST_RATE, int(_CPU_SHARE * cores / max(_STACK_S, seconds))))


def attach(
    pid: int,
    seconds: float,
    rate_per_s: int | None = None,
    *,
    stacks: bool = True,
    blocking: bool = False,
    extra_rules: Sequence[Rule] = (),
    command: str = "",
    progress: Callable[[str, float], None] = lambda text, share: None,
) -> Attached:
    """Return the run that a look from outside at a live job makes; the job goes on as before.

    Args:
        pid: Of the training process, a launcher above it, or one of its workers.
        seconds: How long to look [s].
        rate_per_s: Stacks per second of each thread; None for what costs the job next to nothing.
        stacks: False to judge from /proc alone.
        blocking: Let py-spy stop the processes while it reads.
        extra_rules: The user's own stack rules.
        command: The command line, for the run file.
        progress: Told what goes on, and the share that is done.

    Raises:
        UsageError: there is no such process, or no Python in it.
        MeasureError: this user may not look into it, or py-spy failed.
    """
    found = roles(pid)
    if stacks:
        for one in found.mains:
            check_access(one.pid)
    host = measure_host()
    rate = rate_per_s or default_rate(size_of(found), host.usable_cores)
    # Without stacks, what the kernel shows is all there is: look more often.
    meter, load = ProcessMeter(found.root, every_s=0.25 if stacks else 0.1), LoadMeter().start(found.root)
    began = time.monotonic()

    def watch() -> bool:
        progress("watching", min(1.0, (time.monotonic() - began) / seconds))
        return meter.look()

    recording = None
    if stacks:
        recording = record(found.root, seconds, rate, blocking=blocking, watch=watch)
    else:
        while watch() and time.monotonic() - began < seconds:
            time.sleep(0.05)
    return _build(found, recording, meter, load.stop(), host, seconds, extra_rules, command)


def _build(
    found: Roles,
    recording: Recording | None,
    meter: ProcessMeter,
    load: HostLoad | None,
    host: Host,
    seconds: float,
    extra_rules: Sequence[Rule],
    command: str,
) -> Attached:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    target = next((" ".join(p.command) for p in found.mains if p.command), f"process {found.root}")
    seen = jobs((with_calls(s) for s in recording.stacks), extra_rules) if recording is not None else []
    runs = []
    for rank, loader in enumerate(_loaders(found, seen, meter, recording)):
        loader.load = load
        run = Run(
            kind="attach",
            created_at=now,
            version=__version__,
            host=host,
            workload=Workload(target=target, command=command, seconds=seconds),
            loaders=[loader],
            rank=rank,
        )
        main = next((s for s in loader.stacks if s.role == "main"), None)
        if recording is not None:
            run.caveats += confidence(recording, seconds, main.samples if main else 0)
        run.caveats += _restarts(loader)
        runs.append(run)
    for run in runs:
        run.world_size = len(runs)
    first = runs[0]
    first.ranks = runs[1:]
    if found.note:
        first.caveats.append(Caveat("attached-to-parent", found.note))
    return Attached(first, [e for job in seen for e in job.explained])


def _restarts(loader: LoaderRun) -> list[Caveat]:
    """Say it where workers came and went: what starts anew with each epoch is waited for."""
    ever = sum(1 for p in loader.processes if p.role == "worker")
    now = loader.settings.num_workers if loader.settings is not None else 0
    if not now or ever < 2 * now:
        return []
    text = f"{ever} different workers were seen, {now} at a time: workers start again, most likely with each epoch"
    return [Caveat("workers-restart", text, "set persistent_workers=True if that happens every few seconds or minutes")]


def _loaders(found: Roles, seen: list[Job], meter: ProcessMeter, recording: Recording | None) -> list[LoaderRun]:
    """Return one measurement for each rank, with the kernel's view of its own processes."""
    loads = meter.loads()
    if recording is not None and seen:
        made = [(job.pid, loader_run(job, recording.wall_s)) for job in seen]
    else:
        made = [(p.pid, _bare(found, p.pid, loads)) for p in found.mains]
    for pid, loader in made:
        crew = meter.crew(pid) if pid is not None else None
        if crew is not None and loader.settings is not None and crew < loader.settings.num_workers:
            loader.settings = msgspec.structs.replace(loader.settings, num_workers=crew)
        loader.processes = [p for p in loads if p.pid == pid or found.workers.get(p.pid) == pid or len(made) == 1]
    return [loader for _, loader in made]


def _bare(found: Roles, pid: int, loads: list[ProcessLoad]) -> LoaderRun:
    own = sum(1 for owner in found.workers.values() if owner == pid)
    wall = max((p.window_s for p in loads), default=0.0)
    settings = LoaderSettings(num_workers=own)
    return LoaderRun(coupled=True, settings=settings, main=MainBatches(), wall_s=wall)


def where_stuck(pid: int, extra_rules: Sequence[Rule] = (), *, blocking: bool = False) -> list[Stuck]:
    """Return where each thread of a job stands now: main processes first, then their workers.

    Raises:
        UsageError: there is no such process, or no Python in it.
        MeasureError: this user may not look into it, or py-spy failed on all.
    """
    found = roles(pid)
    check_access(found.mains[0].pid)
    standing: list[Stuck] = []
    for one in job_pids(found):
        for stack in dump(one, blocking=blocking):
            role = "thread" if not stack.is_main_thread else "worker" if one in found.workers else "main"
            told = with_calls(stack)
            where = classify(told.frames, role, extra_rules)
            standing.append(Stuck(role, where.stage, where.rule, stack))
    return sorted(standing, key=lambda one: ("main", "worker", "thread").index(one.role))
