"""``ioprobe plan``: storage, cores, hosts and money for n accelerators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ioprobe_cli.output import format_option, output_file_option

COUNT = click.IntRange(min=1)
POSITIVE = click.FloatRange(min=0, min_open=True)
SHARE = click.FloatRange(0, 1, min_open=True)


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--workload", metavar="NAME", help="A published one instead of RUN: unet3d, resnet50, cosmoflow, ...")
@click.option("--accelerator", metavar="NAME", help="With --workload: a100, h100, b200, ...")
@click.option("--dlio", type=click.Path(path_type=Path), metavar="FILE", help="A DLIO workload file instead of RUN.")
@click.option("-n", "counts", default="1,8,64,512", show_default=True, metavar="N,N,...", help="Accelerators.")
@click.option("--step-ms", type=POSITIVE, metavar="MS", help="Another step time for the same batch.")
@click.option("--au", type=SHARE, metavar="SHARE", help="Utilisation that counts as fed. [default: its rules', or 0.9]")
@click.option("--storage", metavar="BANDWIDTH", help="What the shared store gives: 25GB/s.")
@click.option("--storage-iops", type=POSITIVE, metavar="N", help="Read requests/s that the store serves.")
@click.option("--network", metavar="BANDWIDTH", help="What reaches one host: 12.5GB/s.")
@click.option("--latency", metavar="TIME", help="One read request: 500us, 20ms. For the requests in flight.")
@click.option("--request-size", default="128KiB", show_default=True, metavar="SIZE", help="One read request.")
@click.option("--accelerators-per-host", type=COUNT, metavar="N", help="[default: as in RUN, or 8]")
@click.option("--cores-per-host", type=POSITIVE, metavar="N", help="[default: as in RUN, or no limit]")
@click.option("--cpu-ms-per-sample", type=POSITIVE, metavar="MS", help="CPU to read, decode and collate a sample.")
@click.option("--accelerator-price", metavar="USD[@SOURCE]", help="One accelerator for an hour.")
@click.option("--storage-price", metavar="USD[@SOURCE]", help="One more GB/s of the store for an hour.")
@click.option("--core-price", metavar="USD[@SOURCE]", help="One core for an hour.")
@click.option("--samples", type=POSITIVE, metavar="N", help="Samples in an epoch. [default: as in RUN]")
@click.option("--epochs", type=POSITIVE, metavar="N", help="[default: 1]")
@click.option("--goodput", type=SHARE, default=1.0, show_default=True, help="Productive share of the elapsed time.")
@format_option()
@output_file_option()
def command(**options: Any) -> None:
    """Storage, cores, hosts and money for N accelerators, from RUN or from a published workload.

    Nothing is executed. R(n) is the least of n steps, the hosts' cores and network, and the store; each point says
    which of them binds. Storage and requests are what n accelerators ask when none waits. Every number that the
    plan rests on is listed with its source.

    \b
    ioprobe plan --workload unet3d --accelerator h100 -n 8,64 --storage 100GB/s --accelerator-price '2.5@our contract'
    ioprobe plan ioprobe-runs/analyze-20261128-010203 -n 8,64 --cores-per-host 96
    """
    from ioprobe.planning import PlanRequest, plan_from
    from ioprobe.report import plan as report
    from ioprobe.run import write_atomic
    from ioprobe_cli.output import knows_unicode, terminal_width, wants_color, write_stdout

    format_, output = options.pop("format_"), options.pop("output")
    plan = plan_from(PlanRequest(**options))
    if format_ == "text" and output is None:
        text = report.render_text(plan, width=terminal_width(), color=wants_color(), unicode=knows_unicode())
    else:
        renderers = {
            "text": report.render_text,
            "json": report.render_json,
            "md": report.render_markdown,
            "html": report.render_html,
        }
        text = renderers[format_](plan)
    if output is None:
        write_stdout(text)
    else:
        write_atomic(output, text.encode())
