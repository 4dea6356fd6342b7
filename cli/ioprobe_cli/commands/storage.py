"""``ioprobe storage``: one dataset, file or store, reading only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ioprobe_cli.exits import EXIT_INTERRUPTED, EXIT_NO_VERDICT, EXIT_PASSED
from ioprobe_cli.output import format_option, quiet_option


@click.command()
@click.argument("url", required=False)
@click.option(
    "--pattern",
    type=click.Choice(["dataset", "random", "sequential"]),
    help="dataset: the reads that a loader makes of it; random, sequential: fixed blocks of one file or device. "
    "[default: dataset; random where blocks are asked for]",
)
@click.option("--block-size", metavar="SIZE", help="Bytes of one read, as in fio: 4k, 1M. [default: 16k]")
@click.option("--depth", type=click.IntRange(1, 1024), help="Reads in flight in each process. [default: 1]")
@click.option("--processes", type=click.IntRange(1, 64), help="Reading processes. [default: 1; dataset: one a core]")
@click.option("--direct/--buffered", default=None, help="Past the page cache, or through it. [default: direct]")
@click.option("--cache", type=click.Choice(["cold", "warm"]), help="With --buffered: dropped before, or read before.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "preadv", "io_uring", "libaio", "mmap"]),
    help="How blocks are read. [default: auto: the best that is allowed here at that depth]",
)
@click.option("--seconds", default="5", show_default=True, metavar="TIME", help="Most time to measure: 3, 500ms, 1min.")
@click.option(
    "--scratch",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Measure a private file in DIR instead of URL; it has no name and goes with the process.",
)
@click.option("--scratch-size", default="1GiB", show_default=True, metavar="SIZE", help="Its size.")
@click.option("--columns", metavar="A,B", help="Parquet columns that the loader reads. [default: all]")
@click.option(
    "--samples-per-shard", type=click.FloatRange(min=0, min_open=True), metavar="N", help="If not in headers."
)
@click.option(
    "--client",
    type=click.Choice(["auto", "fsspec", "obstore", "both"]),
    default="auto",
    show_default=True,
    help="For object stores: the client that fsspec has for the scheme (s3fs, ...), obstore, or one after the other; "
    "auto: both where obstore is installed, so that a slow client is told from a slow store.",
)
@click.option(
    "--storage-option", multiple=True, metavar="KEY=VALUE", help="For the client: endpoint_url=http://... Never shown."
)
@click.option("--describe", is_flag=True, help="What headers and listings say; no data is read.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the run file there, for 'ioprobe report' and 'ioprobe compare'.",
)
@format_option("text", "json")
@quiet_option()
def command(**options: Any) -> int:
    """Storage alone: samples/s, IOPS, bandwidth and latency of URL.

    URL is a dataset (data/train-{000..127}.tar, a glob, a folder, s3://..., http://...), a file or a block
    device. It is only read. Rates are work over time in steady state, with 95% intervals; latency is of one read.
    """
    from ioprobe.probe.storage_command import StorageRequest, run_storage
    from ioprobe_cli.output import new_run_folder, terminal_width, wants_color, write_stdout
    from ioprobe_cli.progress import progress

    format_, quiet = options.pop("format_"), options.pop("quiet")
    request = StorageRequest.parse(**options)
    if request.describe:
        return _describe(request.url, format_)
    if request.output is not None:
        new_run_folder("storage", "", request.output)
    with progress(quiet=quiet) as show:
        outcome = run_storage(request, lambda text, share: show(text, share * request.seconds, request.seconds))
    if format_ == "json":
        from json import dumps

        from ioprobe.report.storage import as_object

        write_stdout(dumps(as_object(outcome.name, outcome.jobs, outcome.facts), indent=2) + "\n")
    else:
        from ioprobe.report.storage import render_text

        text = render_text(outcome.name, outcome.jobs, outcome.facts, width=terminal_width(), color=wants_color())
        write_stdout(text)
    if outcome.interrupted:
        click.echo("Interrupted: these are the figures until then.", err=True)
        return EXIT_INTERRUPTED
    return EXIT_NO_VERDICT if any(job.failure for job in outcome.jobs) else EXIT_PASSED


def _describe(url: str, format_: str) -> int:
    import msgspec

    from ioprobe.data.describe import describe
    from ioprobe.report.storage import render_facts
    from ioprobe_cli.output import write_stdout

    facts = describe(url)
    if format_ == "json":
        write_stdout(msgspec.json.format(msgspec.json.encode(facts)).decode() + "\n")
    else:
        write_stdout(render_facts(facts))
    return EXIT_PASSED
