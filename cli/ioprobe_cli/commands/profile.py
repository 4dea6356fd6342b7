"""``ioprobe profile FILE...``: a verdict from recordings made elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli.output import format_option, output_folder_option


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--explain", is_flag=True, help="Which rule put which stacks in which stage, on stderr.")
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="An ioprobe.toml with [[attach.rules]]."
)
@output_folder_option()
@format_option()
def command(files: tuple[Path, ...], explain: bool, config: Path | None, output: Path | None, format_: str) -> None:
    """A verdict from recordings of a training job: Kineto, Nsight Systems, py-spy.

    FILES are told by what they hold: PyTorch profiler traces (.json, .json.gz; one a rank), Nsight Systems exports
    (nsys export --type sqlite), py-spy's raw, speedscope and chrometrace recordings; folders of such files. Files of
    one job belong together: a trace says how long the accelerator waits, stacks of the workers say for what.

    \b
    ioprobe profile trace_rank0.json.gz trace_rank1.json.gz
    ioprobe profile train.sqlite
    py-spy record --pid PID --idle --subprocesses --format raw -o stacks.txt; ioprobe profile stacks.txt
    """
    from ioprobe.config import load_config
    from ioprobe.live.profile import profile, rules_of
    from ioprobe_cli.explain import explain_stacks
    from ioprobe_cli.recorded import emit_recording
    from ioprobe_cli.target_options import command_line

    rules = rules_of(load_config(config).attach)
    found = profile(files, rules, command=command_line())
    if explain:
        click.echo(explain_stacks(found.explained), err=True)
    emit_recording(found.run, output, format_)
