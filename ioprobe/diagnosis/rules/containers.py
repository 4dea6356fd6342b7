"""IO3xx: how samples are packed: row groups, objects, compressed tar."""

from __future__ import annotations

from ioprobe.diagnosis.rules.base import Abstain, Finding, rule, unknown
from ioprobe.diagnosis.rules.facts import OBJECT_STORES, PipelineFacts
from ioprobe.units import format_bytes, format_count

# A GET on an object store takes 10-30 ms; at 100 MB/s and more per stream that is a few MB.
SMALL_OBJECT_BYTES = 256 << 10
# Below this a row group comes in one request and no pause is seen.
SMALL_GROUP_BYTES = 4 << 20


@rule("IO305", "row-groups-too-large", needs="format", key="row_group_rows")
def row_groups_too_large(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Row groups far larger than the queue.

    What it sees: Rows of a Parquet row group against the rows that one worker has prefetched
        (batch_size x prefetch_factor), where a group is larger than 4 MiB.
    Why it matters: A worker that starts a group pauses until it is read and decoded, then delivers a burst; the queue
        drains meanwhile. Memory per worker grows by a whole group.
    When it is wrong: Readers that stream pages (iter_batches on a buffered stream), or many workers whose pauses
        do not coincide.
    Example:
        row_group_rows = 1000000    # batch_size 64, prefetch_factor 2
        row_group_rows = 1024       # fixed
    """
    if facts.format != "parquet":
        return []
    if facts.row_group_rows is None or facts.batch_size is None:
        return unknown(facts, "row_group_rows", "batch_size")
    ahead = facts.batch_size * max(1, facts.prefetch_factor or 1)
    if facts.row_group_bytes is not None and facts.row_group_bytes < SMALL_GROUP_BYTES:
        return []
    if facts.row_group_rows <= 8 * ahead:
        return []
    size = f" ({format_bytes(facts.row_group_bytes)})" if facts.row_group_bytes else ""
    batches = facts.row_group_rows // facts.batch_size
    return [
        Finding(
            text=f"row groups of {format_count(facts.row_group_rows)} rows{size} hold {format_count(batches)} batches; "
            f"a worker has {max(1, facts.prefetch_factor or 1)} ahead",
            fix=f"write row groups of about {format_count(4 * facts.batch_size)} rows, or raise prefetch_factor",
        )
    ]


@rule("IO306", "row-group-per-sample", needs="reads format", key="reads")
def row_group_per_sample(facts: PipelineFacts) -> list[Finding] | Abstain:
    """A whole row group is read for every sample.

    What it sees: Random access by sample into Parquet row groups of many rows.
    Why it matters: Each sample reads and decodes all rows of its group: amplification by the rows in a group.
    When it is wrong: Groups of one row; a cache of groups that is hit nearly always.
    Example:
        reads = "row-group-per-sample"
        reads = "stream"    # fixed: read a group once and hand its rows out, shuffled within a buffer
    """
    rows = facts.row_group_rows
    if facts.format != "parquet" or facts.reads != "row-group-per-sample" or rows == 1:
        return []
    times = f"{format_count(rows)} rows are read for each one used" if rows else "a whole group is read for each sample"
    return [
        Finding(
            text=f"random access by sample into Parquet: {times}",
            fix="stream whole row groups and shuffle in a buffer, or store samples in a format with an index (MDS, "
            "Arrow)",
        )
    ]


@rule("IO308", "tiny-objects", needs="format sample_bytes", key="format")
def tiny_objects(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Small files one by one on an object store.

    What it sees: One object per sample, smaller than 256 KiB, behind an object store.
    Why it matters: Each GET takes tens of milliseconds whatever its size, and is paid for; throughput is requests in
        flight over latency, and bandwidth lies idle.
    When it is wrong: A local cache that is warm after the first epoch.
    Example:
        url = "s3://bucket/images/*.jpg"       # 100 kB each
        url = "s3://bucket/train-{0000..0255}.tar"    # fixed
    """
    assert facts.sample_bytes is not None
    if facts.format != "files" or facts.sample_bytes >= SMALL_OBJECT_BYTES:
        return []
    scheme = facts.url.split("://", 1)[0] if "://" in facts.url else (facts.storage or "")
    if not scheme:
        return unknown(facts, "storage")
    if scheme.lower() not in OBJECT_STORES:
        return []
    count = f"{format_count(facts.num_samples)} " if facts.num_samples else ""
    return [
        Finding(
            text=f"{count}objects of {format_bytes(facts.sample_bytes)} are fetched one by one from {scheme}",
            fix="pack them into tar, MDS or Parquet shards of 100 MB and more",
        )
    ]


@rule("IO309", "gzipped-tar", needs="format", key="compression")
def gzipped_tar(facts: PipelineFacts) -> list[Finding] | Abstain:
    """The whole tar is compressed.

    What it sees: tar shards with gzip, bzip2 or xz around them.
    Why it matters: Decompression is serial, about 100 MB/s (gzip) down to 10 MB/s (xz) per worker, gains nothing on
        JPEG or MP4, and forbids range reads.
    When it is wrong: Text behind a slow link.
    Example:
        compression = "gzip"    # train-0000.tar.gz
        compression = "none"    # fixed: compress members, or use zstd
    """
    if facts.format != "tar":
        return []
    if facts.compression is None:
        return unknown(facts, "compression")
    if facts.compression not in {"gzip", "bzip2", "xz"}:
        return []
    return [
        Finding(
            text=f"tar shards are compressed with {facts.compression} as a whole: every worker decompresses serially",
            fix="store plain tar (JPEG and the like are compressed already); for text use zstd",
        )
    ]
