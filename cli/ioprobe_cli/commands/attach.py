"""``ioprobe attach PID``: a verdict for a job that already runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ioprobe_cli.output import format_option, output_folder_option, quiet_option

if TYPE_CHECKING:
    from ioprobe.instrument.stages import Rule


@click.command()
@click.argument("pid", type=click.IntRange(min=1))
@click.option("--duration", default="15", show_default=True, metavar="TIME", help="How long to look: 15, 90s, 2min.")
@click.option(
    "--rate",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Stacks per second of each thread. [default: what takes 1.2% of the cores, 5 to 50]",
)
@click.option("--dump", is_flag=True, help="Print once where every thread stands, for a job that hangs.")
@click.option("--no-stacks", is_flag=True, help="Judge from /proc alone; needs no rights, tells less.")
@click.option("--blocking", is_flag=True, help="Stop each process while its stack is read: exact, but slows the job.")
@click.option("--explain", is_flag=True, help="Which rule put which stacks in which stage, on stderr.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="ioprobe.toml with attach.rules.")
@output_folder_option()
@format_option()
@quiet_option()
def command(
    pid: int,
    duration: str,
    rate: int | None,
    dump: bool,
    no_stacks: bool,
    blocking: bool,
    explain: bool,
    config: Path | None,
    output: Path | None,
    format_: str,
    quiet: bool,
) -> None:
    """A verdict for a job that already runs, through py-spy; the job is neither changed nor stopped.

    PID is the training process; a torchrun above it, for all its ranks, or one of its DataLoader workers will do.
    Stacks of the main process tell how long it waits for batches, stacks of the workers what for.

    \b
    ioprobe attach 12345
    ioprobe attach 12345 --dump
    sudo -E env PATH=$PATH ioprobe attach 12345
    """
    from ioprobe.config import load_config
    from ioprobe.errors import UsageError
    from ioprobe.live.attach import attach
    from ioprobe.live.profile import rules_of
    from ioprobe.units import parse_seconds
    from ioprobe_cli.explain import explain_stacks
    from ioprobe_cli.progress import progress
    from ioprobe_cli.recorded import emit_recording

    rules = rules_of(load_config(config).attach)
    if dump:
        if no_stacks:
            raise UsageError("--dump prints stacks, --no-stacks forbids them", hint="leave one of them out")
        _dump(pid, rules, blocking, format_)
        return
    seconds = parse_seconds(duration)
    if seconds < 1:
        raise UsageError(f"--duration {duration} is too short", hint="look for at least 1 s; 15 s make a verdict")
    with progress(quiet=quiet) as show:
        found = attach(
            pid,
            seconds,
            rate,
            stacks=not no_stacks,
            blocking=blocking,
            extra_rules=rules,
            command=" ".join(["ioprobe", *sys.argv[1:]]),
            progress=lambda text, share: show(text, share * seconds, seconds),
        )
    if explain:
        click.echo(explain_stacks(found.explained), err=True)
    emit_recording(found.run, output, format_)


def _dump(pid: int, rules: list[Rule], blocking: bool, format_: str) -> None:
    from ioprobe.live.attach import where_stuck
    from ioprobe_cli.explain import standing_as_json, standing_as_text
    from ioprobe_cli.output import write_stdout

    standing = where_stuck(pid, rules, blocking=blocking)
    write_stdout(standing_as_json(standing) if format_ == "json" else standing_as_text(standing))
