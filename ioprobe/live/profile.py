"""Recordings made elsewhere as one run: Kineto and Nsight Systems traces, py-spy's files, of one rank or several."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from ioprobe import __version__
from ioprobe.config import AttachConfig
from ioprobe.errors import RunFileError
from ioprobe.instrument.stages import Rule
from ioprobe.live.stacks.recordings import read_stacks, with_calls
from ioprobe.live.stacks.shares import Explained, Job, jobs
from ioprobe.live.traces.events import open_text, read_some
from ioprobe.live.traces.kineto import read_kineto
from ioprobe.live.traces.nsys import read_nsys
from ioprobe.live.traces.partition import partitions
from ioprobe.live.traces.ranks import lateness, with_lateness
from ioprobe.live.traces.timeline import Timeline
from ioprobe.run import (
    Caveat,
    Host,
    LoaderRun,
    LoaderSettings,
    MainBatches,
    Partition,
    Run,
    Workload,
)

_SUFFIXES = (".json", ".json.gz", ".sqlite", ".txt", ".raw", ".folded")
_PEEK_BYTES = 1 << 20


class Profiled(NamedTuple):
    """What recordings hold."""

    run: Run
    explained: list[Explained]
    """Which rule put which stacks where; empty for traces."""


def profile(paths: Sequence[str | Path], extra_rules: Sequence[Rule] = (), command: str = "") -> Profiled:
    """Return the run that one or more recordings of one job make.

    Args:
        paths: Files, or folders whose recordings are all taken.
        extra_rules: The user's own stack rules.
        command: The command line, for the run file.

    Raises:
        RunFileError: a file cannot be read, is no recording, or there is none.
    """
    files = _files(paths)
    timelines: list[Timeline] = []
    found: list[Job] = []
    for file in files:
        kind = recording_kind(file)
        if kind == "kineto":
            timelines.append(read_kineto(file))
        elif kind == "nsys":
            timelines += read_nsys(file)
        else:
            found += jobs((with_calls(s) for s in read_stacks(file)), extra_rules)
    divided, caveats = _divide(timelines)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    runs = [_stack_run(job, rank, now, len(found)) for rank, job in enumerate(found)]
    run = runs[0] if runs else _empty(now)
    run.ranks = runs[1:]
    run.workload = Workload(target=", ".join(str(f) for f in paths), command=command)
    run.partitions = divided
    run.caveats += caveats
    if timelines:
        run.world_size = max([t.world_size or 0 for t in timelines] + [len({p.rank for p in divided})])
    return Profiled(run, [e for job in found for e in job.explained])


def rules_of(config: AttachConfig) -> list[Rule]:
    """Return the stack rules of ``[[attach.rules]]``."""
    return [
        Rule(
            f"ioprobe.toml: {rule.function or rule.file}",
            rule.stage,
            frames=f"*:{_one_word(rule.function)}" if rule.function else "",
            files=_one_word(rule.file),
        )
        for rule in config.rules
    ]


def _one_word(glob: str) -> str:
    return glob.replace(" ", "?")


def recording_kind(path: str | Path) -> str:
    """Return ``kineto``, ``nsys`` or ``stacks``, told by what the file holds.

    Raises:
        RunFileError: it cannot be opened, is empty, or is of a kind that has to be exported first.
    """
    with open_text(path) as file:
        try:
            head = read_some(file, _PEEK_BYTES)
        except EOFError:
            head = b""
        except (OSError, zlib.error) as error:
            raise RunFileError(f"cannot read recording '{path}': {error}", hint="copy the file again") from None
    if not head.strip():
        raise RunFileError(f"recording '{path}' is empty", hint="record again")
    if head.startswith(b"SQLite format 3\0"):
        return "nsys"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{":
        return "stacks" if b'"traceEvents"' not in text and b"speedscope" in text[:4096] else "kineto"
    if text[:1] == b"[":
        return "stacks" if b'"py-spy"' in text[:4096] else "kineto"
    if b"\0" in head[:4096]:
        nsys = str(path).endswith((".nsys-rep", ".qdrep"))
        raise RunFileError(
            f"'{path}' is a binary file that ioprobe does not read",
            hint="export it first: nsys export --type sqlite"
            if nsys
            else "pass a Kineto trace, a Nsight Systems SQLite export or a py-spy recording",
        )
    return "stacks"


def _files(paths: Sequence[str | Path]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.name.endswith(_SUFFIXES))
            if not inside:
                raise RunFileError(
                    f"folder '{path}' holds no recording ({', '.join(_SUFFIXES)})", hint="name the files themselves"
                )
            files += inside
        else:
            files.append(path)
    if not files:
        raise RunFileError("no recording was named", hint="pass one or more files")
    return files


def _divide(timelines: list[Timeline]) -> tuple[list[Partition], list[Caveat]]:
    """Return all partitions and caveats of traces, with who waited for whom where the ranks can be matched."""
    caveats = [c for t in timelines for c in t.caveats]
    ranks, guessed = _ranks(timelines)
    if guessed and len(timelines) > 1:
        text = "the traces do not say their ranks: they are numbered in the order of the files"
        caveats.append(Caveat("ranks-guessed", text, "name the files rank0.json, rank1.json, ..."))
    found: list[list[Partition]] = []
    for timeline, rank in zip(timelines, ranks, strict=True):
        parts = partitions(timeline, rank)
        if not parts:
            raise RunFileError(
                f"'{timeline.source}' holds no time to divide: no step, operator or device work has a duration",
                hint="record training steps with torch.profiler, schedule(wait=1, warmup=1, active=5, repeat=1)",
            )
        caveats += _trace_caveats(timeline, parts)
        found.append(parts)
    if len(set(ranks)) == len(ranks) > 1:
        waits, more = lateness(timelines)
        caveats += more
        for parts, wait in zip(found, waits or [], strict=False):
            parts[0] = with_lateness(parts[0], wait)
    return [p for parts in found for p in parts], caveats


def _ranks(timelines: list[Timeline]) -> tuple[list[int], bool]:
    if all(t.rank is not None for t in timelines):
        return [t.rank or 0 for t in timelines], False
    return list(range(len(timelines))), True


def _trace_caveats(timeline: Timeline, parts: list[Partition]) -> Iterable[Caveat]:
    name = Path(timeline.source).name
    if not len(timeline.steps):
        text = f"'{name}' marks no steps" + (
            ": they run from one batch to the next" if len(timeline.loader) > 2 else ": the whole trace is one window"
        )
        yield Caveat(
            "no-steps",
            text,
            "give the profiler a schedule= and call its step() once a step: without a schedule torch marks none",
        )
    if not len(timeline.loader) and not any(c.code == "no-loader-ranges" for c in timeline.caveats):
        text = f"'{name}' has no DataLoader range: a wait for data would count as other idle"
        yield Caveat("no-loader-ranges", text, "record a loop over torch.utils.data.DataLoader")
    if timeline.loader_kind.startswith("_SingleProcess"):
        text = f"'{name}' was recorded with num_workers=0: the main process makes each batch while the step waits"
        yield Caveat("no-workers", text, "record with num_workers set as in training")
    if parts[0].steps and parts[0].steps < 4:
        yield Caveat(
            "few-steps", f"'{name}' covers {parts[0].steps} steps", "record more: schedule(..., active=10, repeat=1)"
        )
    unmatched = [d for d in timeline.devices if d.launched.size and not (d.launched == d.launched).any()]
    if unmatched:
        text = f"'{name}' links no launch to its device work: windows are those of the host"
        yield Caveat("no-correlation", text, "record CPU activity together with the accelerator's")


def _empty(now: str) -> Run:
    return Run(kind="profile", created_at=now, version=__version__, host=Host(), workload=Workload())


def _stack_run(job: Job, rank: int, now: str, world_size: int) -> Run:
    run = _empty(now)
    run.rank, run.world_size = rank, world_size
    run.loaders = [loader_run(job)]
    total = Counter({s.role: s.samples for s in job.shares})
    if total["main"] < 100:
        text = f"the recording has {total['main']} stacks of the main process"
        run.caveats.append(Caveat("few-stacks", text, "record longer: py-spy record --idle --subprocesses -d 30"))
    return run


def loader_run(job: Job, wall_s: float = 0.0) -> LoaderRun:
    """Return a job's stacks as the loop's measurement."""
    return LoaderRun(
        coupled=True,
        settings=LoaderSettings(num_workers=job.workers),
        main=MainBatches(),
        stopped_because="seconds",
        wall_s=wall_s,
        stacks=job.shares,
    )
