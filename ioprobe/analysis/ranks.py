"""Several ranks analysed at the same time: every phase begins on all of them together, rank 0 gathers the runs."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ioprobe.analysis.caveats import caveats
from ioprobe.analysis.curve import measure_curve
from ioprobe.analysis.request import Request
from ioprobe.analysis.session import Alone, Progress, Session, new_run, to_verify
from ioprobe.analysis.team import Departure, Hello, PeerGone, Team
from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.diagnosis.ranks import duplicate_reads, leading
from ioprobe.errors import IoprobeError, TargetError, UsageError
from ioprobe.probe import protocol
from ioprobe.probe.target import is_factory
from ioprobe.run import Failure, HostLoad, LoaderRun, Run, StorageJob, dumps, loads

_LOST = "rank-lost"


class Broken(Exception):
    """This rank's loader or step failed; there is no use in keeping the others waiting."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def layout_of(world_size: int, *, dp: int | None, tp: int, pp: int, cp: int) -> dict[str, int]:
    """Return the sizes of the parallel groups; empty where every rank is data-parallel.

    Raises:
        UsageError: they do not multiply to the number of ranks.

    >>> layout_of(8, dp=None, tp=2, pp=1, cp=1)
    {'dp': 4, 'tp': 2, 'pp': 1, 'cp': 1}
    """
    others = tp * pp * cp
    if dp is None:
        if world_size % others:
            raise UsageError(
                f"{world_size} ranks cannot be divided into groups of tp {tp} x pp {pp} x cp {cp}",
                hint="the product of --dp, --tp, --pp and --cp is the number of ranks",
            )
        dp = world_size // others
    if dp * others != world_size:
        raise UsageError(
            f"dp {dp} x tp {tp} x pp {pp} x cp {cp} is {dp * others}, but there are {world_size} ranks",
            hint="the product of --dp, --tp, --pp and --cp is the number of ranks",
        )
    return {} if dp == world_size else {"dp": dp, "tp": tp, "pp": pp, "cp": cp}


def data_rank(rank: int, layout: Mapping[str, int]) -> int:
    """Return the data-parallel index of a rank.

    >>> [data_rank(rank, {"dp": 2, "tp": 2, "pp": 1, "cp": 1}) for rank in range(4)]
    [0, 0, 1, 1]
    """
    return rank // (layout["tp"] * layout["cp"]) % layout["dp"] if layout else rank


class Company(Alone):
    """The session's view of the other ranks."""

    precision = 0.0

    def __init__(self, team: Team, request: Request, layout: Mapping[str, int]) -> None:
        self._team = team
        self.watch = team.watch
        self.log_name = "target.log" if team.rank == 0 else f"target-rank{team.rank}.log"
        self._environment = team.place.environment()
        if layout and request.step is None and not is_factory(request.target):
            # The built-in loader divides shards by these; ranks of one group read the same ones, as they would in
            # training. A real step needs them as they are.
            self._environment["RANK"] = str(data_rank(team.rank, layout))
            self._environment["WORLD_SIZE"] = str(layout["dp"])

    @property
    def member(self) -> protocol.Team:
        return self._team.member

    @property
    def environment(self) -> dict[str, str]:
        return self._environment

    def meet(self, phase: str) -> None:
        self._team.meet(phase)

    def most(self, name: str, mine: int) -> int:
        return self._team.most(name, mine)

    def broken(self, failure: Failure) -> None:
        raise Broken(failure)

    def to_verify(self, run: Run) -> tuple[str, dict[str, Any]] | None:
        """Rank 0 chooses for all, by the diagnosis of the rank that sets the pace."""
        brought = self._team.bring("candidates", pack(run))
        choice: tuple[str, dict[str, Any]] | None = None
        if self._team.rank == 0:
            runs = [unpack(data) for data in brought[1:]]
            pick = to_verify(diagnose(leading(msgspec.structs.replace(run, ranks=runs))))
            choice = None if pick is None else (pick.code, pick.settings)
        answer = self._team.meet("choice", msgspec.json.encode(choice))[0]
        return msgspec.json.decode(answer, type=tuple[str, dict[str, Any]] | None)

    def storage_curve(self, run: Run, request: Request, seconds: float) -> list[StorageJob]:
        return measure_curve(self._team, run, request, seconds)


@dataclass
class Outcome:
    """What became of one rank."""

    run: Run
    error: IoprobeError | None = None
    """It could not begin."""


def pack(run: Run) -> bytes:
    """Return a run for the way to rank 0."""
    return zlib.compress(dumps(run), 1)


def unpack(data: bytes) -> Run:
    """Return the run that another rank packed."""
    return loads(zlib.decompress(data))


def hello(folder: Path | None, environ: Mapping[str, str]) -> Hello:
    """Return what this rank tells the others at first."""
    import socket

    mask = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    node = environ.get("GROUP_RANK") or environ.get("SLURM_NODEID") or ""
    place = str(folder.absolute()) if folder else ""
    return Hello(hostname=socket.gethostname(), node=node, cores=tuple(sorted(mask)), folder=place)


def measure_rank(request: Request, team: Team, layout: Mapping[str, int], progress: Progress) -> Outcome:
    """Measure this rank while the others measure theirs; never raises for what can be reported.

    Args:
        request: What is asked, the same on all ranks.
        team: The ranks, who have greeted each other.
        layout: See :func:`layout_of`.
        progress: As in ``analyze``.
    """
    outcome = Outcome(_new_run(request, team, layout))
    run = outcome.run
    session = Session(request, run, progress, Company(team, request, layout))
    try:
        _measure(session)
    except Broken as broken:
        run.complete = False
        f = broken.failure
        team.leave(
            Departure(rank=team.rank, kind="broken", message=f.message, hint=f.hint, phase=f.phase, where=f.where)
        )
    except PeerGone as gone:
        session.cut_short(Failure(phase=session.phase, kind=_LOST, message=str(gone)))
        team.leave(Departure(rank=team.rank, kind="followed", phase=session.phase))
    except KeyboardInterrupt:
        session.interrupted()
        team.leave(Departure(rank=team.rank, kind="interrupted", phase=session.phase))
    except IoprobeError as error:
        outcome.error = error
        run.complete = False
        team.leave(Departure(rank=team.rank, kind="error", message=error.message, hint=error.hint, phase=session.phase))
    finally:
        session.supervisor.retire()
    return outcome


def _measure(session: Session) -> None:
    session.measure()
    step = session.run.step
    failure = session.failure() or (step.failure if step else None)
    if failure is not None:
        raise Broken(failure)


def _new_run(request: Request, team: Team, layout: Mapping[str, int]) -> Run:
    run = new_run(request)
    run.rank, run.world_size = team.rank, team.size
    run.local_ranks = len(team.local_ranks)
    run.workload = msgspec.structs.replace(run.workload, parallel=dict(layout))
    if run.local_ranks > 1:
        run.host = msgspec.structs.replace(
            run.host,
            usable_cores=run.host.usable_cores / run.local_ranks,
            usable_cores_because=f"{run.host.usable_cores_because}, shared by {run.local_ranks} ranks",
        )
    return run


def combine(outcome: Outcome, team: Team) -> Run:
    """Wait for the other ranks' runs and return one run with all of them; for rank 0, bounded in time.

    Raises:
        IoprobeError: this rank, or another, could not begin.
    """
    found = team.collect()
    run = outcome.run
    left_first = culprits(team, found)
    if outcome.error is not None and not run.loaders:
        raise outcome.error
    refused = next((d for d in left_first if d.kind == "error"), None)
    if refused is not None and not run.loaders:
        raise TargetError(f"rank {refused.rank}: {refused.message}", hint=refused.hint)
    run.ranks = [unpack(found[rank]) for rank in sorted(found)]
    everyone = [run, *run.ranks]
    run.complete = not left_first and all(r.complete for r in everyone)
    if left_first:
        # That the others were stopped follows from it.
        run.failures = [f for f in run.failures if f.kind not in ("interrupted", _LOST)]
        run.failures[:0] = [
            Failure(
                phase=d.phase or "loop", kind=_LOST, message=f"rank {d.rank}: {d.message}", hint=d.hint, where=d.where
            )
            for d in left_first
        ]
    elif any(d.kind == "interrupted" for d in team.departures.values()):
        run.failures = [f for f in run.failures if f.kind not in ("interrupted", _LOST)]
        run.failures.append(Failure(phase="loop", kind="interrupted", message="interrupted on all ranks"))
    _without_peers(everyone, team.hellos)
    for one in everyone:
        one.caveats += caveats(one)
    run.caveats += [c for c in (duplicate_reads(run),) if c is not None]
    return run


def culprits(team: Team, found: Mapping[int, bytes]) -> list[Departure]:
    """Return who left first, so that the others had to stop; what follows from that is left out."""
    left = [d for d in team.departures.values() if d.kind in ("broken", "silent", "error")]
    known = {d.rank for d in team.departures.values()}
    for rank in range(1, team.size):
        if rank not in found and rank not in known:
            text = "died: its process gave no sign of life any more"
            left.append(Departure(rank=rank, kind="silent", message=text, hint="see its host's log, and 'dmesg' there"))
    # A step that hangs or raises in a collective tells of the rank that did not come.
    first = [d for d in left if d.phase != "step"] or left[:1]
    return sorted(first, key=lambda d: d.rank)


def _without_peers(runs: list[Run], hellos: list[Hello]) -> None:
    """Take the other ranks of a host out of what counts as foreign load there."""
    for run in runs:
        mine = hellos[run.rank]
        peers = [
            r
            for r in runs
            if r is not run and (hellos[r.rank].hostname, hellos[r.rank].node) == (mine.hostname, mine.node)
        ]
        for number, measured in enumerate(run.loaders):
            if measured.load is None:
                continue
            own = sum(load.own_cores for r in peers if (load := _load(r, number, measured)) is not None)
            other = max(0.0, measured.load.other_cores - own)
            measured.load = msgspec.structs.replace(measured.load, other_cores=other)


def _load(run: Run, number: int, like: LoaderRun) -> HostLoad | None:
    if number >= len(run.loaders):
        return None
    found = run.loaders[number]
    return found.load if (found.coupled, found.purpose) == (like.coupled, like.purpose) else None
