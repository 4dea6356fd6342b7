"""``ioprobe report RUN``: a saved run rendered again, with the rules of this version."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli import tuned
from ioprobe_cli.output import emit, format_option, output_file_option, write_stdout


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@format_option()
@output_file_option()
def command(run: Path, format_: str, output: Path | None) -> None:
    """Render a saved run again: terminal, page, markdown or JSON.

    RUN is a run.json, or the folder that holds one. Nothing is measured: ladder,
    verdict and advice are computed again, so an old run gains from new rules. Of a run
    of 'ioprobe tune' its answer is shown as it was given; html is the page of its loop.

    \b
    ioprobe report ioprobe-runs/analyze-20261128-010203
    ioprobe report run.json --format html --output report.html
    """
    from ioprobe.run import load, write_atomic

    path = run / "run.json" if run.is_dir() else run
    saved = load(path)
    answer = tuned.kept(path.parent) if saved.kind == "tune" and format_ != "html" else None
    if answer is not None:
        if output is None:
            write_stdout(tuned.render(answer, format_))
        else:
            write_atomic(output, tuned.render(answer, format_, to_terminal=False).encode())
        return

    from ioprobe.analysis import report_from_run  # pulls the whole model; an unreadable file is told before

    emit(report_from_run(saved, run_path=str(path)), format_, output=output)
