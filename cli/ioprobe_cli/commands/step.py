"""``ioprobe step``: the training step alone, on a resident batch."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli.exits import EXIT_INTERRUPTED, EXIT_NO_VERDICT, EXIT_PASSED
from ioprobe_cli.output import format_option, quiet_option
from ioprobe_cli.target_options import LoaderOptions, hang_options, loader_options, transformer_option


@click.command()
@click.argument("target", required=False)
@click.option("--step", metavar="FACTORY", help="The training step: file.py:function or module:function.")
@click.option("--shape", metavar="SHAPE", help="A made-up batch instead of TARGET's: 32,3,224,224:uint8;32:int64.")
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=A,B",
    help="Compare settings: batch=16,32 precision=fp32,bf16 accum=1,4 compile=off,on.",
)
@click.option("--workload", metavar="NAME", help="Show the published step of a workload, such as resnet50.")
@click.option("--accelerator", metavar="NAME", help="With --workload: a100, h100, ...")
@click.option("--seconds", type=float, default=5.0, show_default=True, help="Bound of each step's steady state.")
@loader_options
@hang_options
@click.option("--tokens-per-sample", type=click.IntRange(1), help="Adds tokens/s.")
@transformer_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the run file there, for 'ioprobe plan' and 'ioprobe report'; not with --vary.",
)
@format_option("text", "json")
@quiet_option()
def command(
    target: str | None,
    step: str | None,
    shape: str | None,
    vary: tuple[str, ...],
    workload: str | None,
    accelerator: str | None,
    seconds: float,
    loader: LoaderOptions,
    hang_s: float,
    batch_samples: int | None,
    tokens_per_sample: int | None,
    transformer: str | None,
    output: Path | None,
    format_: str,
    quiet: bool,
) -> int:
    """The training step alone, on a resident batch: samples/s, steps/s, latency, where its time goes, FLOP/s.

    TARGET gives the batch: a loader's factory or a dataset URL; --shape makes one up. The step is a function that
    takes a batch, a factory of one, or an nn.Module (which is trained: forward, the mean of its output, backward,
    SGD). Rates are work over time in steady state, warm-up left out, pauses such as checkpoints included.

    \b
    ioprobe step train.py:make_loader --step train.py:make_step
    ioprobe step --step train.py:make_model --shape 32,3,224,224 --vary batch=32,64 --vary precision=fp32,bf16
    ioprobe step --workload resnet50 --accelerator h100
    """
    from ioprobe.errors import UsageError

    if workload is not None or accelerator is not None:
        if step is not None or target is not None:
            raise UsageError(
                "--workload shows a published step; it excludes TARGET and --step", hint="drop one of them"
            )
        return _preset(workload, accelerator, loader.batch_size, format_)
    if step is None:
        raise UsageError("no step was named", hint="pass --step train.py:make_step")
    if output is not None and vary:
        raise UsageError("--output keeps one run, and --vary gives several", hint="use --format json > steps.json")
    from ioprobe.analysis.stepping import StepRequest, measure_steps
    from ioprobe.report import step as report
    from ioprobe.run import now_utc
    from ioprobe_cli.output import knows_unicode, new_run_folder, terminal_width, wants_color, write_stdout
    from ioprobe_cli.progress import progress
    from ioprobe_cli.target_options import loader_keywords

    options = {} if loader.batch_size is None else {"batch_size": loader.batch_size}
    if target is not None:
        options = loader_keywords(target, loader)
    request = StepRequest(
        step=step,
        target=target,
        shape=shape,
        vary=vary,
        seconds=seconds,
        loader_options=options,
        batch_samples=batch_samples,
        unit="samples",
        tokens_per_sample=tokens_per_sample,
        transformer=transformer,
        hang_s=hang_s,
    )
    folder = None if output is None else new_run_folder("step", now_utc(), output)
    with progress(quiet=quiet) as show:
        table = measure_steps(request, progress=show)
    if folder is not None and table.rows:
        _save(table, folder, target)
    if format_ == "json":
        from json import dumps

        write_stdout(dumps(report.as_object(table), indent=2) + "\n")
    else:
        text = report.render(table, width=terminal_width(), color=wants_color(), unicode=knows_unicode())
        write_stdout(text)
    if not table.complete:
        return EXIT_INTERRUPTED
    return EXIT_PASSED if any(row.step.durations_s and not row.step.failure for row in table.rows) else EXIT_NO_VERDICT


def _save(table: object, folder: Path, target: str | None) -> None:
    from ioprobe.diagnosis.step_table import StepTable
    from ioprobe.run import Run, Workload, dumps, write_atomic
    from ioprobe.secrets import redact_url
    from ioprobe_cli.target_options import command_line

    assert isinstance(table, StepTable)
    run = Run(
        kind="step",
        created_at=table.created_at,
        version=table.version,
        complete=table.complete,
        host=table.host,
        workload=Workload(target=redact_url(target or ""), command=command_line(), step=table.source, unit=table.unit),
        step=table.rows[0].step,
    )
    write_atomic(folder / "run.json", dumps(run))


def _preset(workload: str | None, accelerator: str | None, batch_size: int | None, format_: str) -> int:
    from ioprobe.errors import UsageError
    from ioprobe.facts import step_preset
    from ioprobe.report.step import render_preset
    from ioprobe_cli.output import write_stdout

    if workload is None or accelerator is None:
        hint = "such as --workload resnet50 --accelerator h100"
        raise UsageError("--workload and --accelerator belong together", hint=hint)
    preset = step_preset(workload, accelerator, batch_size)
    anchor = preset.anchor
    if format_ == "json":
        import msgspec

        write_stdout(msgspec.json.format(msgspec.json.encode(preset)).decode() + "\n")
        return EXIT_PASSED
    text = render_preset(
        preset.source, preset.batch_size, preset.step_s, anchor.bytes_per_sample, anchor.unit, anchor.note
    )
    write_stdout(text)
    return EXIT_PASSED
