"""What a loader would read: from a URL to files, byte ranges and samples. Reads headers only.

Patterns: ``shards`` (whole files in sequence: tar, jsonl, tfrecord, ...),
``row-groups`` (Parquet: column chunks of the projection, groups shuffled),
``files`` (many small files), ``random`` (sample-sized reads: token ``.bin``,
``.npy``, HDF5), and ``members`` (single samples at random out of shards).
"""

from __future__ import annotations

import glob
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ioprobe.data.braces import expand_braces
from ioprobe.data.formats import FORMATS
from ioprobe.data.urls import suffix_of
from ioprobe.errors import StoreError, TargetError
from ioprobe.probe.storage_place import shown
from ioprobe.probe.storage_tar import index_tar
from ioprobe.run import Caveat, DatasetFacts
from ioprobe.units import format_bytes, format_count

CHUNK_BYTES = 256 << 10
"""Reads of a sequential reader; the kernel's own read-ahead makes smaller ones alike."""
SEGMENT_BYTES = 256 << 20
"""Long files are planned in pieces, so that what was read can be read again warm."""
_LIST_LIMIT_S = 2.0
_FOOTER_LIMIT_S = 0.7
_RANDOM_BYTES = 16 << 10
_SNIFF_MEMBERS = 200
PER_OPEN = 16
"""Samples that are read each time a file is opened."""

_RANDOM_FORMATS = ("tokens", "npy", "hdf5")
"""Formats out of which loaders read samples by index."""
_BY_SUFFIX = {suffix: name for name, suffixes in FORMATS.items() for suffix in suffixes}

Item = tuple[str, list[tuple[int, int]]]
"""Path and its (offset, length) ranges [bytes]."""


@dataclass(frozen=True)
class Plan:
    """The reads of one epoch, grouped so that a group stays with one worker."""

    url: str
    pattern: str
    groups: list[list[Item]]
    """One group a shard (or row-group set, or file); each shuffled to a worker as a whole."""
    files: list[tuple[str, int]]
    """Path and size [bytes] of each file that holds data."""
    file_bytes: int
    """Size of all files [bytes]."""
    planned_bytes: int
    """Sum of all ranges [bytes]."""
    samples: int | None
    """Samples in the planned ranges; None where nothing tells."""
    used_share: float | None
    """Share of the planned bytes that belongs to samples [fraction]."""
    chunk_bytes: int
    list_s: float
    """Listing the files and their sizes [s]."""
    sample_bytes: int | None = None
    caveats: list[Caveat] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """Paths of the files that hold data."""
        return [path for path, _ in self.files]

    def shares(self, workers: int, seed: int) -> list[list[Item]]:
        """Deal the groups, shuffled by the seed, to at most workers non-empty shares."""
        order = list(self.groups)
        random.Random(seed).shuffle(order)
        dealt: list[list[Item]] = [[] for _ in range(min(workers, len(order)))]
        for number, group in enumerate(order):
            dealt[number % len(dealt)] += group
        return dealt


def list_files(url: str) -> tuple[list[tuple[str, int]], float, bool]:
    """Return ((path, size [bytes]) ... in order, seconds it took, whether the listing was cut short).

    Raises:
        TargetError: nothing is there.
        StoreError: it may not be read.
    """
    began = time.perf_counter()
    found: list[tuple[str, int]] = []
    cut = False
    for path in _expand(url.removeprefix("file://")):
        try:
            if os.path.isdir(path):  # noqa: PTH112
                files, more = _walk(path, began + _LIST_LIMIT_S)
                found += files
                cut |= more
            else:
                found.append((path, os.stat(path).st_size))  # noqa: PTH116
        except FileNotFoundError:
            raise TargetError(
                f"cannot read dataset '{url}': '{path}' does not exist", hint="check the path, the braces or the glob"
            ) from None
        except OSError as error:
            raise StoreError(
                f"cannot read dataset '{url}': '{error.filename or path}': {error.strerror}",
                hint="check the permissions of the file and of the folders above it",
            ) from None
    if not found:
        raise TargetError(
            f"cannot read dataset '{url}': no file matches", hint="check the path, the braces or the glob"
        )
    return found, time.perf_counter() - began, cut


def _walk(folder: str, until: float) -> tuple[list[tuple[str, int]], bool]:
    files: list[tuple[str, int]] = []
    stack = [folder]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                if entry.is_dir():
                    stack.append(entry.path)
                elif entry.is_file():
                    files.append((entry.path, entry.stat().st_size))
        if time.perf_counter() > until:
            return sorted(files), bool(stack)
    return sorted(files), False


def _expand(url: str) -> Iterator[str]:
    for pattern in expand_braces(url):
        if re.search(r"[*?\[]", pattern) and not os.path.exists(pattern):  # noqa: PTH110
            yield from sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
        else:
            yield pattern


def plan_dataset(
    url: str,
    *,
    facts: DatasetFacts | None = None,
    samples_per_shard: float | None = None,
    columns: Sequence[str] | None = None,
    seed: int = 0,
) -> Plan:
    """Return the reads that a loader of this dataset makes in an epoch.

    Args:
        url: Path, braces, glob or folder, local.
        facts: What headers say, where it is known already; gives the samples.
        samples_per_shard: Where facts are not at hand.
        columns: Parquet columns that the loader reads; None means all.
        seed: Orders row groups and random reads.

    Raises:
        TargetError: nothing is there, or all files are empty.
        StoreError: it may not be read.
    """
    files, list_s, cut = list_files(url)
    full = [(path, size) for path, size in files if size > 0]
    caveats = _listing_caveats(files, full, cut, list_s)
    if not full:
        raise TargetError(f"dataset '{url}' holds no data: {len(files)} files of zero bytes", hint="write it again")
    samples = _known_samples(facts, samples_per_shard, len(full))
    kind = _kind(full)
    base = Plan(
        url=url,
        pattern=kind,
        groups=[],
        files=full,
        file_bytes=sum(size for _, size in full),
        planned_bytes=0,
        samples=samples,
        used_share=None,
        chunk_bytes=CHUNK_BYTES,
        list_s=list_s,
        caveats=caveats,
    )
    if kind == "row-groups":
        return _row_groups(base, full, columns, seed)
    if kind == "files":
        return _whole(replace(base, samples=samples or len(full), used_share=1.0), full)
    if kind == "random":
        size = _sample_bytes(base) or _RANDOM_BYTES
        return random_reads(base, full, size, "random", seed)
    return _whole(_sniffed(base, full), full)


def _listing_caveats(
    files: list[tuple[str, int]], full: list[tuple[str, int]], cut: bool, list_s: float
) -> list[Caveat]:
    caveats = []
    if len(full) < len(files):
        empty = next(path for path, size in files if size == 0)
        text = f"{len(files) - len(full)} of {len(files)} files have zero bytes, the first is '{shown(empty)}'"
        caveats.append(Caveat("empty-files", text, "write them again or leave them out of the URL"))
    if cut:
        text = f"listing stopped after {list_s:.1f} s at {format_count(len(files))} files; the rest was left out"
        caveats.append(Caveat("listing-cut", text, "name shards instead of a folder, or pack small files into shards"))
    blocks = size = 0
    for path, nbytes in full[:256]:
        try:
            blocks += os.stat(path).st_blocks * 512  # noqa: PTH116
        except OSError:
            continue  # it vanished; reading it will say so
        size += nbytes
    if size > 1 << 20 and blocks < size / 2:
        text = (
            f"the files are sparse or compressed by the file system: {format_bytes(blocks)} on disk for "
            f"{format_bytes(size)}; holes cost the storage nothing, so the figures are too good"
        )
        caveats.append(Caveat("sparse-files", text, "measure files that hold real data"))
    return caveats


def _known_samples(facts: DatasetFacts | None, samples_per_shard: float | None, shards: int) -> int | None:
    if facts is not None and facts.num_samples:
        return facts.num_samples
    return round(samples_per_shard * shards) if samples_per_shard else None


def _kind(full: list[tuple[str, int]]) -> str:
    found = Counter(_BY_SUFFIX.get(suffix_of(path)[0], "") for path, _ in full[:1000])
    main, count = found.most_common(1)[0]
    if main == "parquet" and len(found) == 1:
        return "row-groups"
    if main in _RANDOM_FORMATS and len(found) == 1:
        return "random"
    if main == "imagefolder":
        return "files"
    mean_bytes = sum(size for _, size in full) / len(full)
    sharded = main != "" and count > sum(found.values()) / 2
    return "shards" if sharded or len(full) == 1 or mean_bytes > 4 << 20 else "files"


def _whole(plan: Plan, full: list[tuple[str, int]]) -> Plan:
    groups = [
        [(path, [(at, min(SEGMENT_BYTES, size - at))]) for at in range(0, size, SEGMENT_BYTES)] for path, size in full
    ]
    return replace(plan, groups=groups, planned_bytes=plan.file_bytes)


def _sample_bytes(plan: Plan) -> int | None:
    return max(1, round(plan.file_bytes / plan.samples)) if plan.samples else plan.sample_bytes


def _sniffed(plan: Plan, full: list[tuple[str, int]]) -> Plan:
    """Add what the first tar's headers tell: bytes that belong to samples, and samples where they are not known."""
    path, _ = full[0]
    if path.lower().endswith(".tar"):
        head = index_tar(path, most_members=_SNIFF_MEMBERS)
        if head.members:
            estimate = max(1, round(plan.file_bytes / head.span_bytes * len(head.samples)))
            known = plan.samples or (head.complete and len(full) == 1)
            text = f"about {format_count(estimate)} samples, counted from {head.members} members of '{shown(path)}'"
            hint = "pass the number of samples, or describe the dataset first"
            plan = replace(
                plan,
                used_share=head.payload_bytes / head.span_bytes,
                samples=plan.samples or (len(head.samples) if known else estimate),
                caveats=plan.caveats + ([] if known else [Caveat("samples-estimated", text, hint)]),
            )
    return replace(plan, sample_bytes=_sample_bytes(plan))


def random_reads(plan: Plan, full: list[tuple[str, int]], size_bytes: int, pattern: str, seed: int) -> Plan:
    """Return sample-sized reads at random places, each place at most once, a few for each time a file is opened."""
    rng = random.Random(seed)
    most = 200_000
    slots = [(path, size, max(1, size // size_bytes)) for path, size in full]
    total = sum(count for _, _, count in slots)
    items: list[Item] = []
    for path, size, count in slots:
        wanted = count if total <= most else max(1, round(count * most / total))
        places = rng.sample(range(count), min(wanted, count))
        spans = [(p * size_bytes, min(size_bytes, size - p * size_bytes)) for p in places]
        items += [(path, spans[i : i + PER_OPEN]) for i in range(0, len(spans), PER_OPEN)]
    planned = sum(length for _, spans in items for _, length in spans)
    samples = sum(len(spans) for _, spans in items) if plan.samples or pattern == "members" else None
    return replace(
        plan,
        pattern=pattern,
        groups=[[item] for item in items],
        planned_bytes=planned,
        samples=samples,
        used_share=1.0,
        chunk_bytes=max(size_bytes, 4096) if size_bytes <= 8 << 20 else CHUNK_BYTES,
        sample_bytes=size_bytes,
    )


def _row_groups(plan: Plan, full: list[tuple[str, int]], columns: Sequence[str] | None, seed: int) -> Plan:
    import pyarrow
    import pyarrow.parquet as pq

    until = time.perf_counter() + _FOOTER_LIMIT_S
    groups: list[list[Item]] = []
    rows = planned = read = 0
    order = list(full)
    random.Random(seed).shuffle(order)
    for path, size in order:
        if groups and time.perf_counter() > until:
            break
        try:
            meta = pq.read_metadata(path)
        except (pyarrow.ArrowInvalid, OSError) as error:
            text = str(error).splitlines()[0]
            raise TargetError(f"cannot read '{path}' as Parquet: {text}", hint="write it again") from None
        read += size
        for number in range(meta.num_row_groups):
            spans = _column_spans(meta.row_group(number), columns)
            groups.append([(path, spans)])
            planned += sum(length for _, length in spans)
            rows += meta.row_group(number).num_rows
    if not planned:
        raise TargetError(
            f"dataset '{plan.url}' has no rows in the columns read: {', '.join(columns or ['all'])}",
            hint="name columns that the file has",
        )
    share = planned / plan.file_bytes if read >= plan.file_bytes else planned / read
    caveats = plan.caveats
    if columns is not None:
        text = f"{100 * share:.0f}% of each file is read: columns {', '.join(columns)}"
        caveats = [*caveats, Caveat("columns-projected", text)]
    return replace(plan, groups=groups, planned_bytes=planned, samples=rows, used_share=1.0, caveats=caveats)


def _column_spans(group: object, columns: Sequence[str] | None) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for number in range(group.num_columns):  # type: ignore[attr-defined]
        chunk = group.column(number)  # type: ignore[attr-defined]
        if columns is not None and chunk.path_in_schema.split(".", 1)[0] not in columns:
            continue
        start = chunk.data_page_offset
        if chunk.dictionary_page_offset is not None:
            start = min(start, chunk.dictionary_page_offset)
        if chunk.total_compressed_size:
            spans.append((start, chunk.total_compressed_size))
    return _joined(sorted(spans))


def _joined(spans: list[tuple[int, int]], hole_bytes: int = 8192) -> list[tuple[int, int]]:
    """Join neighbours, as Parquet readers coalesce their reads (Arrow's hole size limit)."""
    joined: list[tuple[int, int]] = []
    for start, length in spans:
        if joined and start - (joined[-1][0] + joined[-1][1]) <= hole_bytes:
            joined[-1] = (joined[-1][0], start + length - joined[-1][0])
        else:
            joined.append((start, length))
    return joined
