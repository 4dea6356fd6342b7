"""``ioprobe run -- python train.py ...``: the user's own job, unchanged, under a probe."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli.output import format_option, output_folder_option, quiet_option

_SUFFIX = {"text": "txt"}


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("job", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--phases",
    default="observe",
    show_default=True,
    metavar="LIST",
    help="What to measure, in this order: observe,cached,drain. 'cached' trains on one batch again and again, 'drain' "
    "throws batches away: for a probe run, not for a real one.",
)
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Batches to observe. [default: all]")
@click.option(
    "--then",
    type=click.Choice(["continue", "stop"]),
    default="continue",
    show_default=True,
    help="What the job does once all is measured; 'stop' raises SystemExit(0) in its loop.",
)
@click.option(
    "--trace-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Record N steps with torch.profiler: compute, communication and transfer apart.",
)
@click.option(
    "--metrics-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write stall and stage shares there every few seconds while the job runs, as OpenMetrics text for the "
    "textfile collector of a Prometheus node exporter (name it *.prom).",
)
@format_option()
@output_folder_option()
@quiet_option()
def command(
    job: tuple[str, ...],
    phases: str,
    steps: int | None,
    then: str,
    trace_steps: int | None,
    metrics_file: Path | None,
    format_: str,
    output: Path | None,
    quiet: bool,
) -> int:
    """Run your own training command, unchanged, and say whether it waits for data.

    Works around python, torchrun, accelerate launch, python -m, and shell scripts that start them: the hooks travel by
    environment to every Python process of the job. The default only observes: same results, same output.

    The report follows the job's own output on stdout; with --quiet it goes to the folder of --output only. The exit
    code is the job's own where it is not 0 (128 plus the signal's number where a signal ended it).

    \b
    ioprobe run -- python train.py --epochs 1
    ioprobe run --steps 300 --then stop -- torchrun --nproc-per-node 8 train.py
    ioprobe run --phases observe,cached,drain --steps 200 --then stop -- python train.py
    """
    from ioprobe.analysis import report_from_run
    from ioprobe.live.launch import Launch, launch
    from ioprobe.run import now_utc, write_atomic
    from ioprobe.secrets import redact_words
    from ioprobe_cli.measuring import save, save_page
    from ioprobe_cli.output import emit, new_run_folder, render
    from ioprobe_cli.target_options import command_line

    request = Launch(
        command=job,
        phases=tuple(p.strip() for p in phases.split(",") if p.strip()),
        steps=steps,
        then=then,
        trace_steps=trace_steps or 0,
        metrics_file=metrics_file,
        command_line=command_line(),
        target=" ".join(redact_words(job)),
    )
    if request.phases != ("observe",) and not quiet:
        click.echo(
            f"ioprobe: the phases {', '.join(request.phases[1:])} disturb training; throw this run's model away",
            err=True,
        )
    folder = new_run_folder("run", now_utc(), output)
    ended = launch(request)
    place, page = save(ended.run, folder)
    report = report_from_run(ended.run, run_path=str(place), page_path=str(page))
    save_page(report, page)
    if quiet:
        write_atomic(folder / f"report.{_SUFFIX.get(format_, format_)}", render(report, format_).encode())
    else:
        emit(report, format_)
    return ended.exit_code
