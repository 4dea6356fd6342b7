"""IO3xx: how the data is cut into shards and shared out."""

from __future__ import annotations

from math import ceil

from ioprobe.diagnosis.rules.base import Abstain, Finding, rule, unknown
from ioprobe.diagnosis.rules.facts import PipelineFacts
from ioprobe.units import format_bytes, format_count, format_share

# Opening a shard costs a listing, a connection and a head read; a shard of this size makes them vanish.
SMALL_SHARD_BYTES = 32 << 20
# One shard is what a worker loses on a restart, and what shuffling and sharing out are made of.
LARGE_SHARD_BYTES = 8 << 30
SHARDED = frozenset({"tar", "parquet", "arrow", "tfrecord", "mds", "litdata"})


def _streams(facts: PipelineFacts) -> bool | None:
    """Whether shards are dealt out to workers (and not read by index by all)."""
    if facts.kind == "iterable":
        return True
    if facts.kind == "map":
        return False
    if facts.format in {"tar", "tfrecord"}:
        return True
    return None


@rule("IO301", "fewer-shards-than-workers", level="error", needs="consumers", key="num_shards")
def fewer_shards_than_workers(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Workers without a shard do nothing.

    What it sees: shards of a streamed dataset against workers x ranks; in a run, workers that delivered nothing.
    Why it matters: A shard goes to one worker. The others idle, or (without a splitter) read the same samples;
        with fewer shards than ranks whole ranks starve, and the job hangs at the epoch's end.
    When it is wrong: Readers that split inside a shard (byte ranges, row groups), or `resampled = true`.
    Example:
        num_shards = 4      # 8 workers
        num_shards = 64     # fixed: 4 or more per worker and rank
    """
    assert facts.consumers is not None
    if facts.num_shards is None:
        if facts.idle_workers:
            text = f"{facts.idle_workers} of {facts.num_workers} workers delivered nothing"
            return [Finding(text=text, fix="write at least as many shards as workers x ranks, or use fewer workers")]
        return unknown(facts, "num_shards")
    if facts.resampled or facts.num_shards == 0 or facts.num_shards >= facts.consumers:
        return []
    streams = _streams(facts)
    if streams is None:
        return unknown(facts, "kind", how="a map-style dataset shares no shards out")
    if not streams:
        return []
    idle = facts.consumers - facts.num_shards
    account = f"{max(1, facts.num_workers or 0)} workers x {facts.ranks} ranks"
    fewest = max(1, facts.num_shards // facts.ranks)
    way = (
        f"set num_workers = {fewest}, or write {4 * facts.consumers} shards or more"
        if facts.num_shards >= facts.ranks
        else f"write {4 * facts.consumers} shards or more"
    )
    return [
        Finding(
            text=f"{facts.num_shards} shards for {facts.consumers} readers ({account}): {idle} of them idle or repeat "
            f"samples",
            fix=way,
        )
    ]


@rule("IO302", "shards-do-not-divide", needs="num_shards consumers", key="num_shards")
def shards_do_not_divide(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Some workers have a shard more than others.

    What it sees: The remainder of shards over workers x ranks, as time in which part of the workers idle at the end
        of each epoch.
    Why it matters: The epoch ends when the last worker does; ranks that get fewer batches wait, drop samples or
        see some twice.
    When it is wrong: `resampled = true`, readers that split inside a shard, shards of uneven size anyway, or an
        epoch that ends after a set number of batches.
    Example:
        num_shards = 9      # 8 workers: one has two, and is alone for half of the epoch
        num_shards = 64     # fixed
    """
    assert facts.num_shards is not None
    assert facts.consumers is not None
    readers = facts.consumers
    if facts.resampled or facts.num_shards < readers or readers == 1:
        return []
    streams = _streams(facts)
    if streams is None:
        return unknown(facts, "kind", how="a map-style dataset shares no shards out")
    most, mean = ceil(facts.num_shards / readers), facts.num_shards / readers
    lost = 1 - mean / most
    if not streams or lost < 0.1:
        return []
    lower, upper = facts.num_shards // readers * readers, most * readers
    return [
        Finding(
            text=f"{facts.num_shards} shards over {readers} readers: some get {most}, some "
            f"{facts.num_shards // readers}, so "
            f"{format_share(lost)} of their time is lost at the end of an epoch",
            fix=f"write {upper} (or {lower}) shards, or many more than {readers}",
        )
    ]


@rule("IO303", "stream-not-split", level="error", needs="num_workers", key="split_by_worker")
def stream_not_split(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Every worker delivers the whole stream.

    What it sees: An iterable dataset with several workers (or ranks) that does not share its samples out, by its
        own word or by repeated batches in a run.
    Why it matters: Each sample comes once per worker and rank; throughput looks healthy while the model sees
        the same data several times per epoch.
    When it is wrong: Endless random streams that draw different samples in each worker.
    Example:
        for sample in self.samples: yield sample
        info = get_worker_info()                                         # fixed
        for sample in islice(self.samples, info.id, None, info.num_workers): yield sample
    """
    workers = facts.num_workers or 0
    if workers < 2 and facts.ranks == 1:
        return []
    if facts.distinct_share is not None:
        # With idle workers the stream is split; what repeats is a short dataset that starts again.
        if facts.distinct_share >= 0.9 or facts.idle_workers:
            return []
        times = 1 / max(facts.distinct_share, 1e-9)
        return [
            Finding(
                text=f"only {format_share(facts.distinct_share)} of the batches differ: {workers} workers deliver the "
                f"same "
                f"samples about {format_count(round(times, 1))} times",
                fix="share the samples out by get_worker_info() (and rank) inside __iter__",
            )
        ]
    if facts.kind in {"map", None, "opaque"}:
        return [] if facts.kind == "map" else unknown(facts, "kind", how="of dataset: map or iterable")
    found: list[Finding] = []
    if workers > 1 and facts.split_by_worker is False:
        found.append(
            Finding(
                text=f"an iterable dataset that does not split by worker, with {workers} workers: every sample comes "
                f"{workers} times",
                fix="share the samples out by get_worker_info() inside __iter__, or set num_workers = 1",
            )
        )
    if facts.ranks > 1 and facts.split_by_rank is False:
        found.append(
            Finding(
                text=f"an iterable dataset that does not split by rank, with {facts.ranks} ranks: every rank trains on "
                "the same samples",
                fix="share the samples out by rank (split_by_node, or every n-th sample)",
                key="split_by_rank",
            )
        )
    if not found and facts.split_by_worker is None and workers > 1:
        return unknown(facts, "split_by_worker", how="or a run that saw batches repeat")
    return found


@rule("IO304", "ranks-not-split", level="error", needs="sampler", key="sampler")
def ranks_not_split(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Every rank draws from the whole dataset.

    What it sees: Several ranks, a map-style dataset, and one of torch's plain samplers.
    Why it matters: Each rank goes through all samples: an epoch takes ranks times as long as it should, and
        gradients are averaged over repeated samples.
    When it is wrong: Frameworks that put a DistributedSampler in later (Lightning, Accelerate).
    Example:
        sampler = "RandomSampler"          # 8 ranks
        sampler = "DistributedSampler"     # fixed
    """
    plain = {"RandomSampler", "SequentialSampler", "WeightedRandomSampler", "SubsetRandomSampler"}
    name = (facts.sampler or "").rsplit(".", 1)[-1]
    if facts.ranks == 1 or name not in plain or facts.kind == "iterable":
        return []
    return [
        Finding(
            text=f"{name} with {facts.ranks} ranks: every rank goes through the whole dataset",
            fix="use torch.utils.data.distributed.DistributedSampler and set_epoch",
        )
    ]


@rule("IO307", "shard-size", needs="shard_bytes num_shards consumers", key="shard_bytes")
def shard_size(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Shards outside the useful range of sizes.

    What it sees: The median size of shards, and whether fewer, larger ones would still feed every reader four times.
    Why it matters: Small shards pay opening, listing and latency again and again; huge ones are shared out badly,
        shuffle badly, and cost much on a restart.
    When it is wrong: Small shards on local NVMe, where opening costs nothing.
    Example:
        shard_bytes = "2MiB"       # 50,000 of them
        shard_bytes = "256MiB"     # fixed: 400
    """
    assert facts.shard_bytes is not None
    assert facts.num_shards is not None
    assert facts.consumers is not None
    if facts.format not in SHARDED:
        return []
    size, total = facts.shard_bytes, facts.total_bytes or facts.shard_bytes * facts.num_shards
    if size > LARGE_SHARD_BYTES:
        count = max(4 * facts.consumers, ceil(total / (1 << 30)))
        return [
            Finding(
                text=f"shards of {format_bytes(size)} are large: {facts.num_shards} for {facts.consumers} readers",
                fix=f"write {format_count(count)} shards of about {format_bytes(total / count)}",
            )
        ]
    best = total // (256 << 20)
    if size >= SMALL_SHARD_BYTES or best < 4 * facts.consumers:
        return []
    return [
        Finding(
            text=f"{format_count(facts.num_shards)} shards of {format_bytes(size)}: opening them costs more than it "
            f"must",
            fix=f"write {format_count(best)} shards of about 256 MiB; every reader still gets "
            f"{best // facts.consumers}",
        )
    ]
