"""``ioprobe tune TARGET``: find num_workers and prefetch_factor, and verify them."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli.exits import EXIT_INTERRUPTED, EXIT_PASSED
from ioprobe_cli.output import format_option, output_folder_option, quiet_option
from ioprobe_cli.target_options import LoaderOptions, StepOptions, hang_options, loader_options, step_options

PRINTABLE = ("num_workers", "prefetch_factor", "persistent_workers")


class Tune(click.Command):
    """Whoever looks for the ``--seconds`` of the other commands is told its name here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name == "--seconds":
                text = "No such option '--seconds'. How long it may take is --budget here."
                raise click.NoSuchOption("--seconds", text, ctx=ctx) from None
            raise


@click.command(cls=Tune)
@click.argument("target")
@step_options
@loader_options
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=5),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Bound of all measurements together.",
)
@click.option("--max-workers", type=click.IntRange(0, 512), default=32, show_default=True, help="No more than these.")
@click.option(
    "--ranks-per-host",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Training processes that share this host's cores and memory.",
)
@click.option("--grid", is_flag=True, help="Measure every setting 3 times, cold and warm; has no bound.")
@click.option("--print", "only", type=click.Choice(PRINTABLE), help="Print this one value and nothing else.")
@click.option("--apply", is_flag=True, help="Write the settings into the pipeline's table of ioprobe.toml.")
@hang_options
@format_option("text", "json", "md")
@output_folder_option()
@quiet_option()
def command(
    target: str,
    stepping: StepOptions,
    loader: LoaderOptions,
    budget_s: float,
    max_workers: int,
    ranks_per_host: int,
    grid: bool,
    only: str | None,
    apply: bool,
    hang_s: float,
    batch_samples: int | None,
    format_: str,
    output: Path | None,
    quiet: bool,
) -> int:
    """Find the loader's settings for this host: the fewest workers within 1% of the best.

    The loader is measured once, the model predicts every setting, and the pick runs in turn with the present
    setting until the gain is known. Without a step the drained loader is tuned. The code under test is not changed.

    \b
    ioprobe tune train.py:make_loader --step train.py:make_step
    ioprobe tune train.py:make_loader --step-ms 90 --print num_workers
    ioprobe tune 'data/train-{000..127}.tar' --grid --format md
    """
    from ioprobe.analysis.request import Request
    from ioprobe.analysis.tune import TuneOptions, tune
    from ioprobe.run import now_utc
    from ioprobe_cli import tuned
    from ioprobe_cli.measuring import save
    from ioprobe_cli.output import new_run_folder, write_stdout
    from ioprobe_cli.progress import progress
    from ioprobe_cli.target_options import command_line, loader_keywords, step_of

    step_fields = step_of(stepping)
    keywords = loader_keywords(target, loader)
    folder = new_run_folder("tune", now_utc(), output)
    request = Request(
        target=target,
        kind="tune",
        command=command_line(),
        seconds=budget_s,
        loader_options=keywords,
        batch_samples=batch_samples,
        hang_s=hang_s,
        folder=folder,
        **step_fields,
    )
    options = TuneOptions(budget_s=budget_s, max_workers=max_workers, ranks_per_host=ranks_per_host, grid=grid)
    with progress(quiet=quiet) as show:
        run, found = tune(request, options, progress=show)
        path = save(run, folder)[0] if found is not None or run.loaders else None
    if found is None:
        click.echo(
            "Interrupted: " + (f"what was measured so far is in {path}" if path else "nothing was measured"), err=True
        )
        return EXIT_INTERRUPTED
    from msgspec.structs import replace

    found = replace(found, run=str(path))
    tuned.keep(found, folder)
    if apply:
        from ioprobe.analysis.apply import apply_settings

        place = apply_settings(found.recommended.settings, target)
        if not quiet:
            click.echo(f"Wrote {place}", err=True)
    if only is not None:
        write_stdout(f"{_value(found.recommended.settings, only)}\n")
    else:
        write_stdout(tuned.render(found, format_))
    return EXIT_PASSED


def _value(settings: dict[str, object], name: str) -> object:
    value = settings.get(name, {"prefetch_factor": 2, "persistent_workers": False}.get(name))
    return str(value).lower() if isinstance(value, bool) else value
