"""IO2xx: memory."""

from __future__ import annotations

import re

from ioprobe.diagnosis.rules.base import Abstain, Finding, rule, unknown
from ioprobe.diagnosis.rules.facts import PipelineFacts
from ioprobe.units import format_bytes, format_count

# A str, a small tuple or a path object: header, payload and the list's slot [bytes].
OBJECT_BYTES = 100
# The prefetch queue may take this share of what there is; the model, the page cache and the rest need theirs.
SHARE = 0.8
_SHM = re.compile(r"^shared-memory|bus error|shared memory|\bshm\b|no space left", re.IGNORECASE)
_FILES = re.compile(r"^descriptors|ancdata|too many open files|errno 24|file descriptor", re.IGNORECASE)


def _in_flight_bytes(facts: PipelineFacts) -> int | None:
    """Bytes of batches in flight on one host: every rank's queue, and the batch each worker is making."""
    depth = facts.depth
    if depth is None or facts.batch_bytes is None:
        return None
    # Besides the queued batches, one more per rank is in use by the step.
    return facts.batch_bytes * (depth + 1) * (facts.local_ranks or 1)


def _account(facts: PipelineFacts) -> str:
    ranks = f" x {facts.local_ranks} ranks" if (facts.local_ranks or 1) > 1 else ""
    return (
        f"{facts.num_workers} workers x prefetch_factor {facts.prefetch_factor}{ranks} x "
        f"{format_bytes(facts.batch_bytes)} per batch"
    )


def _smaller(facts: PipelineFacts, room_bytes: float) -> str:
    """Return the settings that fit into a room, as a fix."""
    assert facts.batch_bytes
    assert facts.num_workers
    batches = int(room_bytes / facts.batch_bytes / (facts.local_ranks or 1)) - 1
    prefetch = batches // facts.num_workers
    if prefetch >= 1:
        return f"set prefetch_factor = {prefetch}"
    if batches >= 1:
        return f"set prefetch_factor = 1 and num_workers = {batches}"
    return "make batches smaller: uint8 instead of float32, or a smaller batch_size"


@rule(
    "IO201", "prefetch-over-memory", level="error", needs="num_workers batch_bytes memory_bytes", key="prefetch_factor"
)
def prefetch_over_memory(facts: PipelineFacts) -> list[Finding] | Abstain:
    """The prefetch queue does not fit into memory.

    What it sees: workers x prefetch_factor x bytes of a batch x ranks on the host, against 80% of its memory.
    Why it matters: The kernel kills a worker or the whole job, minutes to hours after it began.
    When it is wrong: Samples so uneven that few batches have the size given.
    Example:
        num_workers = 16
        prefetch_factor = 32
        batch_bytes = "600MiB"     # 300 GiB in flight
        prefetch_factor = 2        # fixed
    """
    need = _in_flight_bytes(facts)
    if need is None:
        return unknown(facts, "prefetch_factor")
    assert facts.memory_bytes is not None
    if not facts.num_workers or need <= SHARE * facts.memory_bytes:
        return []
    return [
        Finding(
            text=f"up to {format_bytes(need)} of batches in flight ({_account(facts)}) on a host with "
            f"{format_bytes(facts.memory_bytes)} of memory",
            fix=_smaller(facts, SHARE * facts.memory_bytes),
        )
    ]


@rule("IO202", "prefetch-over-shm", level="error", needs="num_workers", key="prefetch_factor")
def prefetch_over_shm(facts: PipelineFacts) -> list[Finding] | Abstain:
    """The prefetch queue does not fit into /dev/shm.

    What it sees: workers x prefetch_factor x bytes of a batch x ranks on the host, against /dev/shm; or a run that
        died of it.
    Why it matters: Batches travel from workers through shared memory. Where it is full, a worker dies of a bus
        error or a batch is lost and the job hangs. Containers get 64 MiB unless told otherwise.
    When it is wrong: Loaders that send no tensors (bytes and Python objects go through a pipe).
    Example:
        [host]
        shm_bytes = "64MiB"        # docker run without --shm-size
        shm_bytes = "16GiB"        # fixed: --shm-size=16g or --ipc=host
    """
    if not facts.num_workers:
        return []
    if _SHM.search(facts.failure):
        return [
            Finding(
                text=f"the run died for want of shared memory: {facts.failure}",
                fix="give the container more (--shm-size=8g or --ipc=host), else fewer workers, a smaller "
                "prefetch_factor or smaller batches",
            )
        ]
    if facts.shm_bytes is None or facts.batch_bytes is None:
        return unknown(facts, "shm_bytes", "batch_bytes")
    need = _in_flight_bytes(facts)
    if need is None:
        return unknown(facts, "prefetch_factor")
    if need <= SHARE * facts.shm_bytes:
        return []
    return [
        Finding(
            text=f"up to {format_bytes(need)} of batches in flight ({_account(facts)}) in a /dev/shm of "
            f"{format_bytes(facts.shm_bytes)}",
            fix=f"give the container --shm-size={-(-need * 5 // 4 >> 30) or 1}g (or --ipc=host), or "
            + _smaller(facts, SHARE * facts.shm_bytes),
        )
    ]


@rule("IO203", "shuffle-buffer-memory", needs="num_workers shuffle_buffer memory_bytes", key="shuffle_buffer")
def shuffle_buffer_memory(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Shuffle buffers take the host's memory.

    What it sees: samples in the buffer x bytes of a sample x workers x ranks on the host, against half its memory.
    Why it matters: Every worker fills a buffer of its own before it gives the first sample: memory, and start-up.
    When it is wrong: Buffers that hold keys or undecoded bytes, smaller than `decoded_sample_bytes` says.
    Example:
        shuffle_buffer = 50000
        decoded_sample_bytes = "600KiB"    # 28 GiB in each of 8 workers
        shuffle_buffer = 2000              # fixed
    """
    size = facts.decoded_sample_bytes if facts.decoded_sample_bytes is not None else facts.sample_bytes
    if size is None and facts.batch_bytes and facts.batch_size:
        size = facts.batch_bytes // facts.batch_size
    if not size:
        return unknown(facts, "decoded_sample_bytes", how="or sample_bytes, or batch_bytes and batch_size")
    assert facts.shuffle_buffer is not None
    assert facts.memory_bytes is not None
    buffers = max(1, facts.num_workers or 0) * (facts.local_ranks or 1)
    need = facts.shuffle_buffer * size * buffers
    if need <= facts.memory_bytes / 2:
        return []
    fitting = int(facts.memory_bytes / 2 / size / buffers)
    return [
        Finding(
            text=f"{buffers} shuffle buffers of {format_count(facts.shuffle_buffer)} samples x {format_bytes(size)} "
            f"take "
            f"{format_bytes(need)} of {format_bytes(facts.memory_bytes)}",
            fix=f"set shuffle_buffer = {fitting} or less, shuffle shards as well, or shuffle before decoding",
        )
    ]


@rule("IO204", "python-object-list", needs="num_workers python_object_items", key="python_object_items")
def python_object_list(facts: PipelineFacts) -> list[Finding] | Abstain:
    """A long list of Python objects is copied into every worker, page by page.

    What it sees: The longest list or dict of Python objects that the dataset holds, times workers and ranks.
    Why it matters: Reading an object writes its reference count, so each forked worker copies the pages it reads:
        memory grows by the list's size per worker over the first epoch (a "leak" that is none); with spawn
        it is copied at once.
    When it is wrong: Lists whose items are numpy arrays or tensors that are large by themselves.
    Example:
        self.paths = [...]                            # 10 M str: about 1 GB in each worker
        self.paths = numpy.array([...], dtype="S80")  # fixed; or pyarrow, or torch's serialised list
    """
    items = facts.python_object_items
    assert items is not None
    copies = (facts.num_workers or 0) * (facts.local_ranks or 1)
    grown = items * OBJECT_BYTES * copies
    least = 512 << 20 if facts.memory_bytes is None else max(256 << 20, facts.memory_bytes // 50)
    if grown < least:
        return []
    return [
        Finding(
            text=f"the dataset holds {format_count(items)} Python objects in one container: about "
            f"{format_bytes(grown)} "
            f"more over {copies} workers",
            fix="keep them in a numpy array of fixed width, an Arrow table or one bytes buffer with offsets",
        )
    ]


@rule("IO205", "pin-without-accelerator", needs="pin_memory accelerators", key="pin_memory")
def pin_without_accelerator(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Memory is pinned, but there is no accelerator.

    What it sees: pin_memory on, on a host with no accelerator.
    Why it matters: torch starts a thread and warns; nothing is gained.
    When it is wrong: An accelerator that the probe cannot see: name it in [host].
    Example:
        pin_memory = true
        [host]
        accelerators = 0
    """
    if not facts.pin_memory or facts.accelerators:
        return []
    return [Finding(text="pin_memory is on, but the host has no accelerator", fix="set pin_memory = false")]


@rule("IO206", "pin-missing", needs="pin_memory accelerators", key="pin_memory")
def pin_missing(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Batches go to the accelerator from pageable memory.

    What it sees: pin_memory off, on a host with accelerators.
    Why it matters: From pageable memory a copy is staged by the driver, is about half as fast, and cannot overlap
        with the step (`non_blocking=True` has no effect).
    When it is wrong: Batches of a few KiB (token ids); memory so short that locked pages hurt; loaders that put
        batches on the device themselves (DALI).
    Example:
        pin_memory = true    # and batch.to(device, non_blocking=True)
    """
    if facts.pin_memory or not facts.accelerators:
        return []
    if facts.batch_bytes is not None and facts.batch_bytes < 64 << 10:
        return []
    size = f" of {format_bytes(facts.batch_bytes)}" if facts.batch_bytes else ""
    return [
        Finding(
            text=f"pin_memory is off on a host with accelerators: copies{size} cannot overlap with the step",
            fix="set pin_memory = true and copy with non_blocking=True",
        )
    ]


@rule("IO207", "open-files", level="error", needs="num_workers", key="num_workers")
def open_files(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Batches in flight hold more descriptors than a process may open.

    What it sees: workers x prefetch_factor x tensors of a batch, against `ulimit -n`; or a run that died of it.
    Why it matters: Each tensor that comes from a worker holds a descriptor until it is freed; past the limit the
        job dies with "received 0 items of ancdata" or "too many open files".
    When it is wrong: The sharing strategy `file_system`, which holds none.
    Example:
        kept.append(batch)             # holds descriptors for ever
        kept.append(batch.clone())     # fixed; or ulimit -n 65536
    """
    if not facts.num_workers:
        return []
    fix = "copy what is kept of a batch (clone), raise ulimit -n, or use the sharing strategy 'file_system'"
    if _FILES.search(facts.failure):
        return [Finding(text=f"the run ran out of file descriptors: {facts.failure}", fix=fix)]
    if facts.open_files_limit is None or facts.batch_tensors is None or facts.depth is None:
        return unknown(facts, "open_files_limit", "batch_tensors", "depth")
    need = (facts.depth + 1) * facts.batch_tensors + 64
    if need <= facts.open_files_limit:
        return []
    return [
        Finding(
            text=f"{facts.depth} batches in flight x {facts.batch_tensors} tensors hold about {need} descriptors; "
            f"the limit is {facts.open_files_limit}",
            fix=fix,
        )
    ]
