"""Several ranks under torchrun or SLURM: each measures, rank 0 saves and prints once, all end with its exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ioprobe_cli.exits import EXIT_INTERRUPTED, EXIT_NO_VERDICT
from ioprobe_cli.target_options import Command, collected

if TYPE_CHECKING:
    from ioprobe.analysis import Request
    from ioprobe.analysis.place import Place
    from ioprobe.analysis.ranks import Outcome
    from ioprobe.analysis.team import Team

_PATIENCE_S = 60.0


class Ranked(NamedTuple):
    """This process among several ranks."""

    place: Place
    layout: dict[str, int]


class RankOptions(NamedTuple):
    """Sizes of the parallel groups."""

    dp: int | None
    tp: int
    pp: int
    cp: int


_COUNT = click.IntRange(1)
_RANKS = (
    click.option("--dp", type=_COUNT, help="Data-parallel groups; dp x tp x pp x cp ranks, tp counted first."),
    click.option("--tp", type=_COUNT, default=1, help="Ranks that share each layer (tensor parallel)."),
    click.option("--pp", type=_COUNT, default=1, help="Ranks that form a pipeline."),
    click.option("--cp", type=_COUNT, default=1, help="Ranks that share a sequence (context parallel)."),
)


def rank_options(command: Command) -> Command:
    """How ranks divide the work, of use under torchrun or SLURM; the command gets it as ``ranks``."""
    return collected(command, "ranks", RankOptions, _RANKS)


def ranked(ranks: RankOptions) -> Ranked | None:
    """Return this process's place among the ranks; None where it is alone.

    Raises:
        UsageError: the sizes do not fit the ranks, or there is one rank only.
    """
    from ioprobe.analysis.place import place_of
    from ioprobe.errors import UsageError

    place = place_of(os.environ)
    if place is None:
        if (ranks.dp or 1) * ranks.tp * ranks.pp * ranks.cp > 1:
            hint = "torchrun --nproc-per-node 8 -m ioprobe_cli analyze ..."
            raise UsageError("--dp, --tp, --pp and --cp need several ranks; this is one", hint=hint)
        return None
    from ioprobe.analysis.ranks import layout_of

    return Ranked(place, layout_of(place.world_size, **ranks._asdict()))


def analyze_ranks(request: Request, where: Ranked, output: Path | None, format_: str, *, quiet: bool) -> int:
    """Measure this rank; rank 0 saves, prints and decides on the exit code of all."""
    from ioprobe.analysis.ranks import measure_rank
    from ioprobe.analysis.team import Team
    from ioprobe.errors import UsageError
    from ioprobe_cli.progress import progress

    if not request.target:
        hint = "name a dataset or a factory; the built-in example is for one process"
        raise UsageError("several ranks need a TARGET", hint=hint)
    first = where.place.rank == 0
    team = Team(where.place, patience_s=max(_PATIENCE_S, 2 * request.hang_s))
    code = EXIT_NO_VERDICT
    try:
        with progress(quiet=quiet or not first) as show:
            folder = _begin(team, request.kind, output)
            outcome = measure_rank(replace(request, folder=folder), team, where.layout, show)
        with _endings_ignored():
            code = _report(outcome, team, folder, format_) if first else _follow(outcome, team, request.kind)
        return code
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
        raise
    finally:
        if first:
            team.finish(code)
        team.end()


@contextmanager
def _endings_ignored() -> Iterator[None]:
    """Let nothing cut the saving short: launchers signal a rank again when another one ends. It is soon over."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _begin(team: Team, kind: str, output: Path | None) -> Path | None:
    """Meet the others; returns where to keep the run, or, elsewhere than on rank 0, what the user's code prints."""
    from ioprobe.analysis.ranks import hello
    from ioprobe.analysis.team import Departure, PeerGone
    from ioprobe.errors import IoprobeError, MeasureError
    from ioprobe.run import now_utc
    from ioprobe_cli.output import new_run_folder

    folder = None
    try:
        if team.rank == 0:
            folder = new_run_folder(kind, now_utc(), output)
        team.greet(hello(folder, os.environ))
    except IoprobeError as error:
        team.leave(Departure(rank=team.rank, kind="error", message=error.message, hint=error.hint))
        raise
    except PeerGone as gone:
        raise MeasureError(str(gone), hint=gone.departures[0].hint) from None
    if team.rank == 0:
        return folder
    shared = Path(team.hellos[0].folder)
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else None


def _report(outcome: Outcome, team: Team, folder: Path | None, format_: str) -> int:
    from ioprobe.analysis import report_from_run
    from ioprobe.analysis.ranks import combine
    from ioprobe_cli.measuring import exit_code, save, save_page
    from ioprobe_cli.output import emit

    assert folder is not None
    if outcome.run.loaders:
        save(outcome.run, folder)  # whatever happens to the others
    run = combine(outcome, team)
    paths = save(run, folder)
    report = report_from_run(run, run_path=str(paths[0]), page_path=str(paths[1]))
    save_page(report, paths[1])
    emit(report, format_)
    return exit_code(run)


def _follow(outcome: Outcome, team: Team, kind: str) -> int:
    """Hand the run over and wait for rank 0; where rank 0 is gone, the first that is left keeps its own run."""
    from ioprobe.analysis.ranks import pack
    from ioprobe.analysis.team import PeerGone
    from ioprobe.run import Failure, now_utc
    from ioprobe_cli.measuring import save
    from ioprobe_cli.output import new_run_folder

    packed = pack(outcome.run)
    try:
        team.hand_over(packed)
        code = team.wait_until_done()
    except PeerGone:
        code = None
    if code is not None:
        return code
    if team.is_first_survivor() and outcome.run.loaders:
        text = "rank 0: died: its process gave no sign of life any more"
        outcome.run.complete = False
        outcome.run.failures[:0] = [Failure(phase="loop", kind="rank-lost", message=text)]
        path, _ = save(outcome.run, new_run_folder(kind, now_utc()))
        click.echo(f"Error: {text}", err=True)
        click.echo(f"Hint: the run of rank {team.rank} is in {path}", err=True)
    return EXIT_NO_VERDICT
