"""``ioprobe check``: rules, budgets and baselines, for people and for CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ioprobe_cli.output import quiet_option

if TYPE_CHECKING:
    from ioprobe.config import Config
    from ioprobe.diagnosis.check import CheckReport

FORMATS = ("text", "json", "junit", "sarif", "github", "md")


@click.command()
@click.argument("targets", nargs=-1, metavar="[FILE|TARGET]...")
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    envvar="IOPROBE_CONFIG",
    help="ioprobe.toml or pyproject.toml; default: the nearest upwards.",
)
@click.option("--pipeline", "pipelines", multiple=True, metavar="NAME", help="Only this pipeline; may be repeated.")
@click.option("--host", envvar="IOPROBE_HOST", metavar="NAME", help="Judge for the table [hosts.NAME].")
@click.option(
    "--select",
    multiple=True,
    envvar="IOPROBE_SELECT",
    metavar="CODES",
    help="Codes, prefixes or names; commas between.",
)
@click.option(
    "--ignore",
    multiple=True,
    envvar="IOPROBE_IGNORE",
    metavar="CODES",
    help="Codes, prefixes or names; commas between.",
)
@click.option(
    "--load/--no-load",
    default=None,
    help="Build factories' loaders and list datasets, or never do. "
    "Default: for targets named here, and for tables that do not say enough.",
)
@click.option(
    "--load-timeout",
    type=click.FloatRange(0.1),
    metavar="S",
    help="Longest time for a factory or a listing; default 60.",
)
@click.option(
    "--measure",
    type=click.FloatRange(1),
    envvar="IOPROBE_MEASURE",
    metavar="S",
    help="Measure each pipeline for at most S seconds.",
)
@click.option("--step", metavar="FACTORY", help="Training step for targets named here.")
@click.option("--step-ms", type=click.FloatRange(0, min_open=True), help="Emulated step for targets named here.")
@click.option(
    "--run",
    "run_path",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Judge budgets and rules over a saved run.",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Also fail where the run is slower than this one.",
)
@click.option("--force", is_flag=True, help="Compare with a baseline that is unlike.")
@click.option(
    "--undecided",
    type=click.Choice(["fail", "pass", "retry"]),
    envvar="IOPROBE_UNDECIDED",
    help="What becomes of a budget that the interval covers: exit code 2 (fail, the default), 0, or measure longer.",
)
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), envvar="IOPROBE_FORMAT", default="text", show_default=True
)
@click.option(
    "-o",
    "--output-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report there; text still goes to stdout.",
)
@click.option(
    "--report",
    "more",
    multiple=True,
    metavar="FORMAT=FILE",
    help="Write a further report, such as sarif=ioprobe.sarif; may be repeated.",
)
@click.option("--exit-zero", is_flag=True, help="Exit code 0 even where a rule or budget failed.")
@click.option("-v", "--verbose", is_flag=True, help="Also show what passed, abstained (and why) and is ignored.")
@quiet_option()
def command(
    targets: tuple[str, ...],
    config: Path | None,
    pipelines: tuple[str, ...],
    host: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    load: bool | None,
    load_timeout: float | None,
    measure: float | None,
    step: str | None,
    step_ms: float | None,
    run_path: Path | None,
    baseline: Path | None,
    force: bool,
    undecided: str | None,
    format_: str,
    output_file: Path | None,
    more: tuple[str, ...],
    exit_zero: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Judge loader configs by rules, and runs by budgets and a baseline; made for CI.

    With no argument, the nearest ioprobe.toml (or pyproject.toml with [tool.ioprobe]) is
    judged. Arguments are such files, or targets: a factory file.py:function or a dataset
    URL, whose loader is built in a child process and not iterated unless --measure is given.

    \b
    ioprobe check
    ioprobe check train.py:make_loader
    ioprobe check --host a100 --format sarif --output-file ioprobe.sarif
    ioprobe check --measure 30 --baseline main-run.json --undecided retry

    Exit codes: 0 all passed; 1 a rule or a budget failed; 2 something could not be judged.
    """
    from ioprobe.check.configs import configs_of, merged
    from ioprobe.check.pipelines import CheckRequest, check
    from ioprobe.run import load as load_run

    further = [_further(word) for word in more]
    reports: list[CheckReport] = []
    policies: list[str] = []
    saved = load_run(run_path) if run_path else None
    base = load_run(baseline) if baseline else None

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    for settings, named in configs_of(targets, config, step=step, step_ms=step_ms):
        policy = undecided or settings.check.undecided or "fail"
        policies.append(policy)
        request = CheckRequest(
            config=settings,
            written=not named,
            pipelines=pipelines,
            host=host,
            load=_wants_load(load, settings, named),
            load_timeout_s=load_timeout if load_timeout is not None else settings.check.load_timeout_s,
            measure_s=measure if measure is not None else settings.check.measure,
            undecided=policy,
            run=saved,
            baseline=base,
            force=force,
            select=_split(select),
            ignore=_split(ignore),
        )
        reports.append(check(request, progress=say))
    report = merged(reports)
    for kind, place in further:
        _save(report, kind, place, verbose)
    _write(report, format_, output_file, verbose)
    _step_summary(report)
    code = report.exit_code("pass" if all(policy == "pass" for policy in policies) else "fail")
    return 0 if exit_zero and code == 1 else code


def _wants_load(flag: bool | None, settings: Config, named: bool) -> bool | None:
    if flag is not None:
        return flag
    return True if named else settings.check.load


def _split(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(code.strip() for word in words for code in word.replace(" ", ",").split(",") if code.strip())


def _render(report: CheckReport, format_: str, verbose: bool) -> str:
    from ioprobe.report import check as plain
    from ioprobe.report import github, junit, sarif

    if format_ == "json":
        return plain.render_json(report)
    if format_ == "md":
        return plain.render_markdown(report)
    if format_ == "text":
        return plain.render_text(report, verbose=verbose)
    return {"junit": junit.render, "sarif": sarif.render, "github": github.render}[format_](report)


def _write(report: CheckReport, format_: str, output_file: Path | None, verbose: bool) -> None:
    from ioprobe_cli.output import write_stdout

    if output_file is None:
        write_stdout(_render(report, format_, verbose))
        return
    _save(report, format_, output_file, verbose)
    write_stdout(_render(report, "text", verbose))


def _save(report: CheckReport, format_: str, place: Path, verbose: bool) -> None:
    from ioprobe.run import write_atomic

    write_atomic(place, _render(report, format_, verbose).encode())


def _further(word: str) -> tuple[str, Path]:
    kind, sign, place = word.partition("=")
    if kind not in FORMATS or not sign or not place:
        raise click.UsageError(f"--report is '{word}'; expected FORMAT=FILE with one of {', '.join(FORMATS)}")
    return kind, Path(place)


def _step_summary(report: CheckReport) -> None:
    """Append the table to the page of the workflow's step, where GitHub asks for one."""
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if not place:
        return
    try:
        with open(place, "a", encoding="utf-8") as file:
            file.write(_render(report, "md", False) + "\n")
    except OSError as error:
        click.echo(f"Hint: the step summary '{place}' cannot be written: {error.strerror}", err=True)
