"""``ioprobe analyze [TARGET]``: the main job."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli.output import format_option, output_folder_option, quiet_option
from ioprobe_cli.ranked import RankOptions, rank_options
from ioprobe_cli.target_options import (
    LoaderOptions,
    MeasureOptions,
    StepOptions,
    loader_options,
    measure_options,
    step_options,
    transformer_option,
)


@click.command()
@click.argument("target", required=False)
@step_options
@transformer_option
@loader_options
@measure_options
@rank_options
@click.option("--pipeline", metavar="NAME", help="Pipeline of an ioprobe.toml given as TARGET.")
@click.option("--dlio", type=click.Path(path_type=Path), metavar="FILE", help="A DLIO workload (yaml) as TARGET.")
@click.option("--no-verify", is_flag=True, help="Do not run the recommended setting.")
@click.option("--no-storage", is_flag=True, help="Do not measure the dataset's storage.")
@format_option()
@output_folder_option()
@quiet_option()
def command(
    target: str | None,
    stepping: StepOptions,
    transformer: str | None,
    loader: LoaderOptions,
    measure: MeasureOptions,
    ranks: RankOptions,
    pipeline: str | None,
    dlio: Path | None,
    no_verify: bool,
    no_storage: bool,
    format_: str,
    output: Path | None,
    quiet: bool,
) -> int:
    """Measure loader, step, storage and the loop they form; name the lowest rung; verify the advice.

    TARGET is a dataset URL ('data/train-{000..127}.tar', 's3://...'), a factory of a DataLoader
    ('train.py:make_loader', 'package.module:make_loader'), or an ioprobe.toml. Without one, a small dataset is
    synthesized and an accelerator emulated, so that it runs anywhere.

    With several ranks, a step that holds its DistributedDataParallel or FSDP module (as attribute, in a closure, as a
    global), or that has a no_sync() of its own, is also timed without gradient synchronisation. FLOPs are counted by
    torch, or declared with --transformer; MFU and HFU are against the dense peak of the type in use.

    \b
    ioprobe analyze
    ioprobe analyze train.py:make_loader --step train.py:make_step
    ioprobe analyze 'data/train-{000..127}.tar' --workload resnet50 --accelerator h100
    torchrun --nproc-per-node 8 -m ioprobe_cli analyze train.py:make_loader --step train.py:make_step
    """
    from ioprobe.analysis import Request
    from ioprobe.errors import UsageError
    from ioprobe.run import now_utc
    from ioprobe_cli.configured import is_config, pipeline_of
    from ioprobe_cli.measuring import analyze_and_report
    from ioprobe_cli.output import new_run_folder
    from ioprobe_cli.ranked import analyze_ranks, ranked
    from ioprobe_cli.target_options import command_line, loader_keywords, step_of

    found = None
    if target is not None and is_config(target):
        from ioprobe.config import load_config

        found = pipeline_of(load_config(target), pipeline)
        target = found.target
        if not stepping.is_given:
            stepping = stepping._replace(step=found.step, step_ms=None if found.step else found.step_ms)
    elif pipeline is not None:
        raise UsageError("--pipeline needs an ioprobe.toml as TARGET")
    asked: dict[str, float] = {}
    if dlio is not None:
        from ioprobe_cli.configured import dlio_target

        if target is not None:
            raise UsageError("--dlio brings its own target", hint="leave TARGET out")
        target, dlio_sets, nominal_ms, asked = dlio_target(dlio)
        loader = loader._replace(sets=(*dlio_sets, *loader.sets))
        if not stepping.is_given:
            stepping = stepping._replace(step_ms=nominal_ms)
    where = ranked(ranks)
    step_fields = step_of(stepping)
    keywords = {}
    if target is not None:
        configured = found.overrides if found else None
        keywords = loader_keywords(target, loader, configured, where)
    # Options are read before anything is written.
    request = Request(
        target=target or "",
        command=command_line(),
        loader_options=keywords,
        transformer=transformer,
        verify=not no_verify,
        storage=not no_storage,
        dlio=asked,
        **measure._asdict(),
        **step_fields,
    )
    if where is not None:
        return analyze_ranks(request, where, output, format_, quiet=quiet)
    folder = new_run_folder("analyze", now_utc(), output)
    if target is None:
        from ioprobe_cli.demo import demo_request

        request = demo_request(request, folder, loader, quiet=quiet)
    from dataclasses import replace

    return analyze_and_report(replace(request, folder=folder), folder, format_, quiet=quiet)
