"""``ioprobe profile FILE...``: a verdict from recordings made elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli.output import emit, format_option, new_run_folder, output_folder_option


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
    from ioprobe.diagnosis.recordings import report_recording
    from ioprobe.live.profile import profile, rules_of
    from ioprobe.run import dumps, write_atomic
    from ioprobe_cli.explain import explain_stacks
    from ioprobe_cli.target_options import command_line

    rules = rules_of(load_config(config).attach)
    found = profile(files, rules, command=command_line())
    if explain:
        click.echo(explain_stacks(found.explained), err=True)
    path = None
    if output is not None:
        path = new_run_folder(found.run.kind, found.run.created_at, output) / "run.json"
        write_atomic(path, dumps(found.run))
    emit(report_recording(found.run, str(path) if path else None), format_)
