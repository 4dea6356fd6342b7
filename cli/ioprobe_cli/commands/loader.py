"""``ioprobe loader TARGET``: one rung alone."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli.output import format_option, output_folder_option, quiet_option
from ioprobe_cli.ranked import RankOptions, rank_options
from ioprobe_cli.target_options import LoaderOptions, MeasureOptions, loader_options, measure_options


@click.command()
@click.argument("target")
@loader_options
@measure_options
@rank_options
@format_option()
@output_folder_option()
@quiet_option()
def command(
    target: str,
    loader: LoaderOptions,
    measure: MeasureOptions,
    ranks: RankOptions,
    format_: str,
    output: Path | None,
    quiet: bool,
) -> int:
    """Drain the loader alone: samples/s, time per stage inside the workers, first batch, epoch edges.

    \b
    ioprobe loader train.py:make_loader --num-workers 8
    ioprobe loader 'data/train-{000..127}.tar' --seconds 20
    """
    from ioprobe.analysis import Request
    from ioprobe.run import now_utc
    from ioprobe_cli.measuring import analyze_and_report
    from ioprobe_cli.output import new_run_folder
    from ioprobe_cli.ranked import analyze_ranks, ranked
    from ioprobe_cli.target_options import command_line, loader_keywords

    where = ranked(ranks)
    request = Request(
        target=target,
        kind="loader",
        command=command_line(),
        loader_options=loader_keywords(target, loader, where=where),
        storage=False,
        phases=("loader",),
        **measure._asdict(),
    )
    if where is not None:
        return analyze_ranks(request, where, output, format_, quiet=quiet)
    from dataclasses import replace

    folder = new_run_folder("loader", now_utc(), output)
    return analyze_and_report(replace(request, folder=folder), folder, format_, quiet=quiet)
