"""``ioprobe predict``: what-if from a saved run; nothing is executed."""

from __future__ import annotations

from pathlib import Path

import click

from ioprobe_cli.output import format_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("more", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE...",
    help="What to change. Keys: num_workers, prefetch_factor, batch_size, step_ms, cores, storage_mb_s, storage_x, "
    "decode_x, collate_x, transport_x, persistent_workers, in_order. Several values after a comma make several points.",
)
@format_option("text", "json")
def command(run: Path, more: tuple[str, ...], pairs: tuple[str, ...], format_: str) -> None:
    """What-if from a saved run: throughput, stall share, waits and memory at settings never measured.

    RUN is a run.json, or the folder that holds one. The loader model is calibrated from the run's measured batches
    and replayed at the settings asked for; nothing is executed. Without --set, the curve over num_workers.

    \b
    ioprobe predict run.json --set num_workers=12 prefetch_factor=4 step_ms=90
    ioprobe predict run.json --set num_workers=4,8,16 --set decode_x=0.5
    ioprobe predict run.json --set cores=32 storage_mb_s=800
    """
    from ioprobe.diagnosis.forecast import forecast
    from ioprobe.report import forecast as report
    from ioprobe.run import load
    from ioprobe_cli.output import knows_unicode, terminal_width, wants_color, write_stdout

    path = run / "run.json" if run.is_dir() else run
    found = forecast(load(path), [*pairs, *more], name=str(path))
    if format_ == "json":
        from json import dumps

        write_stdout(dumps(report.as_object(found), indent=2) + "\n")
        return
    text = report.render_text(found, width=terminal_width(), color=wants_color(), unicode=knows_unicode())
    write_stdout(text)
