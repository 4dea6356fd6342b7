"""``ioprobe report RUN``: a saved run rendered again, with the rules of this version."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli.output import emit, format_option, output_file_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@format_option()
@output_file_option()
def command(run: Path, format_: str, output: Path | None) -> None:
    """Render a saved run again: terminal, page, markdown or JSON.

    RUN is a run.json, or the folder that holds one. Nothing is measured: ladder,
    verdict and advice are computed again, so an old run gains from new rules.

    \b
    ioprobe report ioprobe-runs/analyze-20261128-010203
    ioprobe report run.json --format html --output report.html
    """
    from ioprobe.run import load

    path = run / "run.json" if run.is_dir() else run
    saved = load(path)

    from ioprobe.analysis import report_from_run  # pulls the whole model; an unreadable file is told before

    emit(report_from_run(saved, run_path=str(path)), format_, output=output)
