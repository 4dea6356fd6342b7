"""Run an analysis, save its run file and page, print the report, choose the exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from ioprobe.errors import OutputError
from ioprobe_cli.exits import EXIT_INTERRUPTED, EXIT_NO_VERDICT, EXIT_PASSED

if TYPE_CHECKING:
    from ioprobe.analysis import Request
    from ioprobe.diagnosis.types import Report
    from ioprobe.run import Failure, Run


def analyze_and_report(request: Request, folder: Path, format_: str, *, quiet: bool) -> int:
    """Measure, save ``run.json`` and ``report.html`` under folder, print; returns the exit code."""
    from ioprobe.analysis import analyze, report_from_run
    from ioprobe_cli.output import emit
    from ioprobe_cli.progress import progress

    kept: list[OutputError] = []
    with progress(quiet=quiet) as show:
        run = analyze(request, progress=show, keep=lambda found: _try(save, kept, found, folder))
        show("diagnosing", 0.0, 0.0)
        page = folder / "report.html"
        saved = _try(save, kept, run, folder)
        report = report_from_run(run, run_path=str(folder / "run.json") if saved else None, page_path=str(page))
        if not (saved and _try(save_page, kept, report, page)):
            report = msgspec.structs.replace(report, page=None)
    emit(report, format_)
    if kept:
        # The measurement is not lost with the disk: the report was printed, and the fault is told after it.
        raise kept[-1]
    return exit_code(run)


def _try(write: Callable[..., object], failed: list[OutputError], *args: object) -> bool:
    """Write a file; a full or read-only disk is kept for later instead of costing the report."""
    try:
        write(*args)
    except OutputError as error:
        failed.append(error)
        return False
    return True


def save(run: Run, folder: Path) -> tuple[Path, Path]:
    """Write the run file; returns its path and the page's."""
    from ioprobe.run import dumps, write_atomic

    path, page = folder / "run.json", folder / "report.html"
    write_atomic(path, dumps(run))
    return path, page


def save_page(report: Report, page: Path) -> None:
    """Write the HTML page beside the run file."""
    from ioprobe.report import html
    from ioprobe.run import write_atomic

    write_atomic(page, html.render(report).encode())


def exit_code(run: Run) -> int:
    """Return 130 after an interrupt, 2 where something broke and no verdict stands, else 0; says what broke."""
    if any(f.kind == "interrupted" for f in run.failures):
        click.echo("Interrupted: what was measured so far is kept in the run file.", err=True)
        return EXIT_INTERRUPTED
    lost = next((f for f in run.failures if f.kind == "rank-lost"), None)
    if lost is not None:
        _say_failed(lost)
        return EXIT_NO_VERDICT
    from ioprobe.diagnosis.evidence import gather
    from ioprobe.diagnosis.types import Verdict
    from ioprobe.diagnosis.verdict import decide

    evidence = gather(run)
    verdict, _, _, _ = decide(evidence)
    if verdict is Verdict.UNDECIDED and evidence.failures:
        _say_failed(evidence.failures[0])
        return EXIT_NO_VERDICT
    if verdict is Verdict.UNDECIDED and evidence.loop is None and evidence.alone is None:
        batches = max((len(measured.main.call_s) for measured in run.loaders), default=0)
        click.echo(f"Error: the loader gave too few batches to be measured: {batches}", err=True)
        hint = "give it more samples, smaller batches or fewer workers, or let it go round"
        if all(measured.stopped_because == "seconds" for measured in run.loaders):
            hint = "start-up and these took all the time; raise --seconds"
        click.echo(f"Hint: {hint}", err=True)
        return EXIT_NO_VERDICT
    return EXIT_PASSED


def _say_failed(failure: Failure) -> None:
    from ioprobe_cli.output import one_line

    click.echo(one_line(f"Error: the {failure.phase} failed: {failure.sentence}"), err=True)
    if failure.hint:
        click.echo(one_line(f"Hint: {failure.hint}"), err=True)
