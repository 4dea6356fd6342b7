"""``ioprobe synth``: write a sharded dataset, deterministic from a seed."""

from __future__ import annotations

from typing import Any

import click

FORMATS = "webdataset parquet arrow tfrecord jsonl npy npz hdf5 tokens imagefolder mds litdata"


@click.command()
@click.argument("url")
@click.option(
    "--format", "format_", default="webdataset", show_default=True, metavar="NAME", help=f"One of: {FORMATS}."
)
@click.option(
    "--kind",
    metavar="KIND",
    help="image (JPEG), array (uint8), tokens (uint16) or audio (WAV). [default: image, or what the format holds]",
)
@click.option("--samples", type=click.IntRange(min=1), default=1024, show_default=True, help="Samples in all.")
@click.option(
    "--shard-size",
    metavar="N|BYTES",
    help="A plain number counts samples, one with a unit (64MiB) bytes. [default: 64MiB, or 16 shards]",
)
@click.option(
    "--sample-bytes",
    metavar="MEAN[:CV]",
    help="Size of a sample, log-normal with that coefficient of variation: 110kB:0.5.",
)
@click.option("--image-size", metavar="WxH", help="Pixels of the images: 500x375 (the default), or 256 for a square.")
@click.option("--compression", metavar="CODEC", help="gzip, zstd, snappy, ...: what the format offers. [default: none]")
@click.option(
    "--row-group-size",
    type=click.IntRange(min=1),
    metavar="ROWS",
    help="Rows of a Parquet row group or an Arrow record batch.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed writes the same bytes.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="Writer processes; 0 writes in this one. [default: one a core]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace an earlier dataset of another spec; write beside files that synth did not write.",
)
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
def command(url: str, quiet: bool, force: bool, workers: int | None, **options: Any) -> int:
    """Write a sharded dataset to URL: a folder, or a prefix such as s3://bucket/name.

    The bytes depend on the options and the seed alone, not on --workers. An
    interrupted run is continued by the same command. Prints a URL for 'analyze'.
    """
    import time

    from ioprobe.data import synth
    from ioprobe.secrets import redact_url
    from ioprobe.units import format_bytes, format_count
    from ioprobe_cli.progress import progress

    spec = _spec(options)
    began = time.monotonic()
    with progress(quiet=quiet) as show:

        def on_progress(state: synth.Progress) -> None:
            done_s = time.monotonic() - began
            text = (
                f"writing {spec.format}: {state.shards_done} of {state.shards} shards, {format_bytes(state.bytes_done)}"
            )
            fresh = state.shards_done - state.shards_kept
            show(text, done_s, done_s / fresh * (state.shards - state.shards_kept) if fresh else 0)

        written = synth.synthesize(spec, url, workers=workers, force=force, on_progress=on_progress)
    if not quiet:
        kept = f", {written.kept_shards} kept from before" if written.kept_shards else ""
        click.echo(
            f"{format_count(written.spec.samples)} samples in {written.num_shards} shards{kept}, "
            f"{format_bytes(written.total_bytes)}",
            err=True,
        )
        click.echo(redact_url(written.url))
    return 0


def _spec(options: dict[str, Any]) -> Any:
    from ioprobe.data import spec as specs

    mean, variation = specs.parse_sample_bytes(options["sample_bytes"]) if options["sample_bytes"] else (0, 0.0)
    size = options["image_size"]
    return specs.Spec(
        format=options["format_"],
        kind=options["kind"] or specs.default_kind(options["format_"]),
        samples=options["samples"],
        sample_bytes=mean,
        sample_bytes_cv=variation,
        image_size=specs.parse_image_size(size) if size else None,
        compression=None if options["compression"] in (None, "none") else options["compression"],
        row_group_size=options["row_group_size"],
        seed=options["seed"],
        **(specs.parse_shard_size(options["shard_size"]) if options["shard_size"] else {}),
    )
