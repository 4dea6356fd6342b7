"""What was measured: the one file on disk.

A :class:`Run` holds raw series in the order in which they were seen, the facts
of the machine, and what was asked. Nothing derived is stored: ladder, verdict
and advice are computed again from the run, so old files gain from new rules,
and a run recorded on a cluster is analysed on a laptop.

None means *not measured*; 0 means zero. Every time is in seconds, every size in
bytes, every share a fraction of 1; times within one measurement count from its
start on the monotonic clock.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from ioprobe.errors import OutputError, RunFileError
from ioprobe.plausible import complaint

# History of the schema, newest last. Older files convert on load.
# 1 (2026-11-28): first version.
SCHEMA = 1


class Stage(str, Enum):
    """Where time goes. The rungs of the ladder, bottom to top, and what lies between."""

    STORAGE = "storage"
    READ = "read"
    DECODE = "decode"
    TRANSFORM = "transform"
    COLLATE = "collate"
    TRANSPORT = "transport"
    SAMPLER = "sampler"
    LOADER = "loader"
    TRANSFER = "transfer"
    COMMUNICATION = "communication"
    STEP = "step"
    LOOP = "loop"
    LOCK = "lock"
    WAIT = "wait"
    CHECKPOINT = "checkpoint"
    STARTUP = "startup"
    OTHER = "other"


class Limit(str, Enum):
    """What bounds the job: one vocabulary everywhere."""

    STORAGE_BANDWIDTH = "storage-bandwidth"
    STORAGE_LATENCY = "storage-latency"
    DECODE = "decode"
    TRANSFORM = "transform"
    COLLATE = "collate"
    IPC = "ipc"
    WORKER_STARTUP = "worker-startup"
    SAMPLER = "sampler"
    LOCK_CONTENTION = "lock-contention"
    OVERSUBSCRIPTION = "oversubscription"
    HOST_TO_DEVICE = "host-to-device"
    STEP = "step"
    COMMUNICATION = "communication"


class Caveat(msgspec.Struct, frozen=True):
    """A reason to trust a figure less, and the way to settle it."""

    code: str
    """Short and stable, such as ``cache-warm`` or ``few-batches``."""
    text: str
    """One sentence with the numbers."""
    settle: str = ""
    """The command or action that would settle it."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Something that broke while it was measured. It is evidence, too."""

    phase: str
    """``factory``, ``loop``, ``loader``, ``step``, ``storage`` or ``verify``."""
    kind: str
    """``exception``, ``worker-died``, ``killed``, ``hang``, ``empty``, ``interrupted`` or ``rank-lost``."""
    message: str
    """One line, as the user should read it."""
    where: str = ""
    """file:line in the user's code, shard, or the like."""
    hint: str = ""
    """What to do next."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the machine on which it was measured."""

    hostname: str = ""
    platform: str = ""
    cpu_model: str = ""
    logical_cores: int = 1
    """Cores of the machine."""
    usable_cores: float = 1.0
    """Cores this process may use: the least of affinity, cgroup quota and the batch system's grant."""
    usable_cores_because: str = ""
    """Which of them bound: ``machine``, ``affinity``, ``cgroup`` or ``slurm``."""
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    """The least of MemAvailable and what the cgroup leaves."""
    shm_bytes: int | None = None
    shm_available_bytes: int | None = None
    """Room in /dev/shm."""
    open_files_limit: int | None = None
    accelerators: list[str] = []
    """Names of the accelerators, one entry each."""
    python: str = ""
    torch: str | None = None
    versions: dict[str, str] = {}
    """Versions of the other packages that matter to the figures."""


class LoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of ``torch.utils.data.DataLoader``, in its own words."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    """Batches each worker prepares ahead; None where there are no workers."""
    batch_size: int | None = None
    """None with a custom batch sampler or an iterable that batches itself."""
    persistent_workers: bool = False
    pin_memory: bool = False
    in_order: bool = True
    multiprocessing_context: str | None = None
    """``fork``, ``spawn``, ``forkserver``; None where there are no workers."""
    drop_last: bool = False
    timeout_s: float = 0.0
    shuffle: bool | None = None

    @property
    def depth(self) -> int:
        """Batches in flight at most: ``num_workers * prefetch_factor``."""
        return self.num_workers * (self.prefetch_factor or 2)


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the loader object says of itself, without iterating it."""

    kind: str = "iterable"
    """``map``, ``iterable`` (an IterableDataset), ``opaque`` (any iterable of batches)."""
    loader_type: str = ""
    """Qualified class name of the loader."""
    dataset_type: str = ""
    sampler_type: str | None = None
    collate_fn: str | None = None
    settings: LoaderSettings | None = None
    """None where it is not a DataLoader and none was found inside it."""
    num_samples: int | None = None
    """Length of the dataset, where it has one."""
    num_batches: int | None = None
    """Batches in an epoch, where the loader has a length."""
    worker_init_fn: str | None = None
    has_generator: bool = False
    adaptable: bool = True
    """Whether the loader can be rebuilt at other settings."""
    inner_loaders: int = 0
    """DataLoaders found inside an opaque iterable."""
    dataset_pickle_bytes: int | None = None
    """Size of the pickled dataset, measured only where the start method pickles it."""
    num_shards: int | None = None
    """Shards that the dataset names, where they can be found."""
    thread_pools: dict[str, int] = {}
    """Thread pools seen in the process, by library, with their width."""
    python_object_items: int | None = None
    """Length of the longest list of Python objects held by the dataset (copy-on-write growth)."""


class DatasetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What headers and listings say of the dataset."""

    url: str
    format: str
    num_shards: int = 0
    num_samples: int | None = None
    total_bytes: int | None = None
    shard_bytes: list[int] = []
    """Sizes of (at most 10,000) shards."""
    compression: str | None = None
    row_group_rows: list[int] = []
    filesystem: str = ""
    """``ext4``, ``tmpfs``, ``nfs``, ``s3``, ..."""


class MainBatches(msgspec.Struct, kw_only=True):
    """One row per batch that the main process received; columns of equal length."""

    call_s: list[float] = []
    """When the next batch was asked for [s since the measurement began]."""
    wait_s: list[float] = []
    """Blocked until it came, ``iter(loader)`` at epoch edges included [s]."""
    wait_cpu_s: list[float] = []
    """CPU time of the main thread within ``wait_s`` [s]."""
    sampler_s: list[float] = []
    """Of ``wait_s``: drawing indices from the sampler [s]."""
    transport_s: list[float] = []
    """Of ``wait_s``: receiving and deserialising the batch [s]."""
    release_s: list[float] = []
    """Freeing the batch before (unmapping its memory) [s]; not part of ``wait_s``."""
    step_s: list[float] = []
    """The step on this batch [s]; empty when the loader was only drained."""
    device_idle_s: list[float] = []
    """Accelerator idle between the step before and this one [s]; empty on a CPU."""
    samples: list[int] = []
    """Samples in the batch."""
    ready: list[int] = []
    """Batches that lay ready when this one was asked for; -1 where it cannot be known."""
    epoch: list[int] = []
    """Epoch, from 0."""
    meeting_s: list[float] = []
    """Of ``step_s``: in backward passes and collectives, where ranks wait for each other [s]; empty with one rank."""


class WorkerBatches(msgspec.Struct, kw_only=True):
    """One row per batch made in a worker process; columns of equal length.

    ``wall = cpu + runq + blocked``: runq is the time for which the thread was
    runnable but had no core (``/proc/thread-self/schedstat``), blocked is the rest.
    """

    worker: list[int] = []
    index: list[int] = []
    """Number of the task that the main process gave out; -1 where it cannot be known."""
    start_s: list[float] = []
    """When the worker took up the task [s since the measurement began]."""
    idle_s: list[float] = []
    """Waiting for that task before [s]."""
    fetch_wall_s: list[float] = []
    """``dataset[i]`` or ``next(iterator)`` for all samples of the batch: read, decode, transform [s]."""
    fetch_cpu_s: list[float] = []
    fetch_runq_s: list[float] = []
    collate_wall_s: list[float] = []
    collate_cpu_s: list[float] = []
    collate_runq_s: list[float] = []
    other_cpu_s: list[float] = []
    """CPU of the worker's other threads while the batch was made: queue feeder, OpenMP, readers [s]."""
    put_s: list[float] = []
    """When it was handed to the result queue [s since the measurement began]."""
    nbytes: list[int] = []
    """Bytes of tensors and arrays in the batch."""
    read_bytes: list[int] = []
    """Bytes that the worker read through read(2) for it; -1 where the kernel does not tell.

    Of batches under 8 ms only every seventh is looked at; the others carry the figure of the one before.
    """
    read_ops: list[int] = []
    """Calls of read(2) for it; -1 where the kernel does not tell."""


class HotFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One place in the code where stacks were found."""

    stage: Stage
    function: str
    file: str
    line: int
    samples: int
    rule: str = ""
    """Why it was put in that stage."""


class StackShares(msgspec.Struct, frozen=True, kw_only=True):
    """How sampled stacks of one kind of thread divide among stages."""

    role: str
    """``worker``, ``worker-thread`` (queue feeder and others), ``main`` or ``thread`` (others of the main process)."""
    samples: int
    """Stacks taken; the stage counts sum to it."""
    stages: dict[Stage, int]
    hottest: list[HotFrame] = []
    """Hottest frame of each stage first, at most 20."""


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Who used the cores during a measurement."""

    window_s: float
    own_cores: float
    """Cores used by the measured processes (main and workers) on average."""
    other_cores: float
    """Cores used by everything else."""
    steal_cores: float = 0.0
    """Cores the hypervisor took."""
    cores: float = 1.0


class ProcessLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says of one process of a job over a window, stacks aside."""

    role: str
    """``main`` or ``worker``."""
    pid: int
    window_s: float
    cpu_s: float
    """CPU time of all its threads within the window [s]."""
    read_bytes: int | None = None
    """Through read(2) and the like; None where the kernel does not tell."""
    read_ops: int | None = None
    device_read_bytes: int | None = None
    """Of them, from a block device."""
    states: dict[str, int] = {}
    """How often its main thread was seen ``running``, in ``disk`` wait, or asleep in a kernel function by name."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What else about a host can spoil a measurement there; None where the host does not tell."""

    system: str = "Linux"
    cpu_governor: str | None = None
    cpu_driver: str | None = None
    smt: bool | None = None
    """Whether two logical cores share a physical one."""
    numa_nodes: int | None = None
    clock_source: str | None = None
    load: HostLoad | None = None
    """Over a short look, this process apart."""
    io_pressure: float | None = None
    """Share of the last ten seconds in which some task waited for I/O [fraction]."""
    swap_used_bytes: int | None = None
    container: bool = False
    ptrace_scope: int | None = None
    """Yama's ``kernel.yama.ptrace_scope``; None without Yama, which forbids nothing."""
    may_ptrace: bool | None = None
    """Whether the process holds CAP_SYS_PTRACE."""
    io_uring: bool | None = None
    huge_pages: str | None = None
    """``always``, ``madvise`` or ``never``."""
    schedstat: bool = False
    """Whether the kernel tells how long a thread stood in line for a core."""
    process_io: bool = False
    """Whether the kernel tells how many bytes a process read."""
    working_filesystem: str = ""
    """Of the working directory."""
    working_writable: bool = True
    temp_writable: bool = True
    home_writable: bool = True
    tools: dict[str, str | None] = {}
    """``py-spy`` and ``fio`` with their versions (or places); None where missing."""
    torch_accelerator: str | None = None
    """Device type that torch can use here; None where it can use none, or was not asked."""
    torch_asked: bool = False
    environment: dict[str, str] = {}
    """Variables that change speed or timing, as they are set."""


class SampleRepeats(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the loader delivers samples more than once per epoch."""

    batches: int
    """Batches whose content was fingerprinted."""
    distinct: int
    """Different fingerprints among them."""
    workers_delivering: int = 0
    """Workers that delivered at least one batch."""
    rounds: int = 0
    """Rounds of one batch from each worker."""
    equal_rounds: int = 0
    """Of them: rounds in which all workers delivered the same content."""


class LoaderRun(msgspec.Struct, kw_only=True):
    """One measurement of a loader at one setting, drained alone or coupled with the step."""

    name: str = "train"
    coupled: bool
    """True for the loop (loader and step as in training), False for the loader alone."""
    purpose: str = "baseline"
    """``baseline``, ``verify`` (at recommended settings), ``grid``, ``calibrate`` or ``other`` (a further loader of the
    same job, such as the one for validation)."""
    variable: str = ""
    """What the job's own code calls the loader; empty where it cannot be told."""
    settings: LoaderSettings | None
    main: MainBatches
    workers: WorkerBatches | None = None
    warmup_batches: int = 0
    """Leading batches that are warm-up or came from the prefetched burst."""
    stopped_because: str = "seconds"
    """``interval`` (narrow enough), ``seconds``, ``exhausted``, ``failed`` or ``interrupted``."""
    wall_s: float = 0.0
    """Whole measurement, warm-up included [s]."""
    begun_s: float | None = None
    """When it began on the host's monotonic clock [s]; tells whether the rounds of two runs interleave."""
    time_to_first_batch_s: float | None = None
    epoch_edges_s: list[float] = []
    """Wait for the first batch of each later epoch, ``iter`` included [s]."""
    worker_start_s: list[float] = []
    """Starting each worker process: fork/spawn and pickling in the main process [s]."""
    worker_init_s: list[float] = []
    """From process start until each worker could take its first task [s]."""
    worker_pss_bytes: list[int] = []
    """Proportional memory of each worker near the end."""
    batch_bytes: int | None = None
    """Median bytes of a batch."""
    batch_tensors: int | None = None
    """Median number of tensors in a batch (each costs a descriptor)."""
    stacks: list[StackShares] = []
    processes: list[ProcessLoad] = []
    load: HostLoad | None = None
    repeats: SampleRepeats | None = None
    device_read_bytes: int | None = None
    """Bytes that came from a block device, not from the page cache."""
    failure: Failure | None = None


class SyncDifference(msgspec.Struct, kw_only=True):
    """The same step with and without gradient synchronisation, in turn, on all ranks at once.

    The optimizer gets no gradients in either case: it does the same, and the ranks' weights stay as they are.
    """

    switch: str
    """What turned it off, such as ``DistributedDataParallel.no_sync``."""
    with_s: list[float] = []
    """Mean step of each round, gradients synchronised [s]."""
    without_s: list[float] = []
    """The same without, round by round [s]."""
    steps: int = 0
    """Steps that each mean covers."""
    sharded: bool = False
    """True where parameters are gathered in either case, so that the difference is a part of the communication."""
    failed: str = ""
    """Why it could not be measured; empty where it was."""


class StepRun(msgspec.Struct, kw_only=True):
    """The training step on a resident batch, nothing else running."""

    durations_s: list[float]
    """Steady state, in order [s]."""
    warmup_s: list[float] = []
    samples_per_step: int = 1
    tokens_per_step: int | None = None
    device: str = "cpu"
    emulated: bool = False
    """True for a constant sleep (``--step-ms`` or a workload preset) that takes no CPU."""
    coupled: bool = False
    """True where the steps were timed within the loop, the loader at work beside them."""
    source: str = ""
    """Where the step comes from: file.py:function, ``--step-ms 20``, ``resnet50 on H100 (...)``."""
    cpu_s: list[float] = []
    """CPU of the process per step, all threads, same length as durations_s [s]."""
    parts_s: dict[str, float] = {}
    """Mean seconds per step in ``compute``, ``communication``, ``transfer``, ``checkpoint``, ``idle`` from a trace."""
    parts_steps: int = 0
    """Steps that the trace covers."""
    sync: SyncDifference | None = None
    """None with one rank, or where the step's synchronisation cannot be turned off."""
    updates_per_step: float | None = None
    """Optimizer steps per call, by torch's own hook: 0.25 with four micro-steps each; None where none was seen."""
    flops_per_step: float | None = None
    """Model FLOPs of a step: forward and backward, activation recomputation left out."""
    executed_flops_per_step: float | None = None
    """The same with recomputation, as the hardware ran it."""
    flops_source: str = ""
    """Formula and numbers where the FLOPs were declared; empty where torch counted them."""
    joules_per_step: float | None = None
    """Energy of the accelerator per step, from its own counter; None without one [J]."""
    kernel_time_share: float | None = None
    """Driver's "GPU utilization": share of its last sampling period in which any kernel ran [fraction]."""
    dtype: str | None = None
    """Type in which the matrix products run: ``float32``, ``bfloat16``, ``float16``, ..."""
    accelerator: str = ""
    """What an emulated step stands for, by name; empty where the step ran for real."""
    failure: Failure | None = None


class StorageJob(msgspec.Struct, kw_only=True):
    """One storage measurement: an access pattern at one block size and depth."""

    name: str
    """Such as ``random 16 KiB x8 direct``, ``shards in sequence, cold``."""
    url: str
    pattern: str
    """``random``, ``sequential``, ``shards``, ``members``, ``row-groups``, ``files`` or ``objects``."""
    block_bytes: int | None = None
    depth: int = 1
    """Requests in flight."""
    processes: int = 1
    direct: bool = False
    ops: int = 0
    """Requests completed in the window."""
    bytes_read: int = 0
    window_s: float = 0.0
    """Measured window, ramp left out [s]."""
    latency_s: dict[str, float] = {}
    """``p50 p95 p99 p999 max`` of one request [s]."""
    series_ops_per_s: list[float] = []
    """Rate in successive slices of equal length, for interval and drift."""
    series_bytes_per_s: list[float] = []
    samples: int | None = None
    """Dataset samples read in the window, where the pattern reads whole samples."""
    open_s: float | None = None
    """Median cost of opening one file or object [s]."""
    first_byte_s: float | None = None
    list_s: float | None = None
    """Listing the shards [s]."""
    cache_state: str = "unknown"
    """``cold``, ``warm``, ``direct``, ``mixed`` or ``unknown``."""
    resident_before: float | None = None
    """Share of the file pages in the page cache before [fraction]."""
    resident_after: float | None = None
    device_read_bytes: int | None = None
    engine: str = ""
    engine_ceiling_ops_per_s: float | None = None
    """What this engine reaches on this host when the data costs nothing."""
    cpu_s_per_op: float | None = None
    """CPU time of the measuring processes for one request, kernel included [s]."""
    client: str | None = None
    """Object-store client and version."""
    retries: int = 0
    throttled: int = 0
    used_bytes: int | None = None
    """Bytes of bytes_read that belong to samples (read amplification = bytes_read / used_bytes)."""
    stopped_because: str = "seconds"
    caveats: list[Caveat] = []
    failure: Failure | None = None


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A trace's wall time divided; the five seconds sum to window_s."""

    compute_s: float
    communication_s: float
    """Exposed: not hidden under compute."""
    transfer_s: float
    """Exposed host-to-device copies."""
    data_stall_s: float
    """Device idle while the main thread is inside the DataLoader."""
    other_idle_s: float
    window_s: float
    steps: int = 0
    device: str = "cpu"
    rank: int = 0
    hidden_s: dict[str, float] = {}
    """Total seconds of ``communication``, ``transfer`` and ``loader``, hidden parts included; where seen also
    ``other_copies`` (exposed copies that are not host to device and fills, part of compute_s), ``pageable`` (copies
    from memory that is not pinned), ``waiting_for_ranks`` (in collectives, for a later rank) and ``kept_waiting``
    (what each other rank waited for this one, on average)."""
    steps_s: list[float] = []
    """Length of each step's window, in order; they sum to window_s [s]."""
    stalls_s: list[float] = []
    """Data stall within each step's window; they sum to data_stall_s [s]."""
    source: str = ""
    """File that it was read from."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked."""

    target: str = ""
    command: str = ""
    """The command line with credentials removed."""
    step: str | None = None
    seconds: float | None = None
    unit: str = "samples"
    """What ``samples`` counts: ``samples`` or ``tokens``."""
    tokens_per_sample: int | None = None
    seed: int = 0
    dlio: dict[str, float] = {}
    """``batch_size``, ``record_bytes`` and ``computation_s`` of a DLIO workload; empty otherwise."""
    parallel: dict[str, int] = {}
    """How ranks divide the work: sizes of ``dp tp pp cp``; ranks count through tp first, then cp, dp and pp.
    Empty where all are data-parallel."""


class Run(msgspec.Struct, kw_only=True):
    """Everything measured in one go. See the module's docstring."""

    schema: int = SCHEMA
    kind: str
    """The command: ``analyze``, ``storage``, ``loader``, ``step``, ``tune``, ``run``, ``attach`` or ``profile``."""
    created_at: str
    """UTC, ISO 8601."""
    version: str
    """Of ioprobe."""
    complete: bool = True
    """False when it was interrupted or a phase is missing."""
    host: Host
    workload: Workload
    dataset: DatasetFacts | None = None
    facts: LoaderFacts | None = None
    storage: list[StorageJob] = []
    loaders: list[LoaderRun] = []
    step: StepRun | None = None
    partitions: list[Partition] = []
    caveats: list[Caveat] = []
    failures: list[Failure] = []
    rank: int = 0
    world_size: int = 1
    local_ranks: int = 1
    """Ranks that share this rank's host; ``host.usable_cores`` is what is left for one of them."""
    ranks: list[Run] = []
    """The other ranks' runs, on rank 0."""

    def loop(self, purpose: str = "baseline") -> LoaderRun | None:
        """Return the coupled loop measured for a purpose, the last one where there are several."""
        found = [m for m in self.loaders if m.coupled and m.purpose == purpose]
        return found[-1] if found else None

    def loader_alone(self, purpose: str = "baseline") -> LoaderRun | None:
        """Return the loader drained alone, measured for a purpose."""
        found = [m for m in self.loaders if not m.coupled and m.purpose == purpose]
        return found[-1] if found else None


def now_utc() -> str:
    """Return the time for ``created_at``: UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def dumps(run: Run) -> bytes:
    """Return the run file's bytes."""
    return msgspec.json.encode(run)


def loads(data: bytes, name: str = "run file") -> Run:
    """Return the run in a file's bytes.

    Raises:
        RunFileError: it is no run file, is damaged, or is of a newer schema.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFileError(
            f"cannot read run file '{name}': {error}", hint="pass a run.json that ioprobe wrote"
        ) from None
    if head.schema is None:
        raise RunFileError(f"'{name}' is no ioprobe run file: it has no 'schema'", hint="pass a run.json")
    if not 1 <= head.schema <= SCHEMA:
        raise RunFileError(
            f"run file '{name}' has schema {head.schema}; this ioprobe reads up to {SCHEMA}",
            hint="upgrade ioprobe, or measure again with this version",
        )
    try:
        run = msgspec.json.decode(data, type=Run)
        wrong = complaint(run, _TABLES)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFileError(f"run file '{name}' is damaged: {error}", hint="measure again") from None
    if wrong is not None:
        raise RunFileError(f"run file '{name}' is damaged: {wrong}", hint="measure again")
    return run


_TABLES: dict[type, frozenset[str]] = {
    # A step or a loader that fails leaves its last row unfinished.
    MainBatches: frozenset(
        {"wait_cpu_s", "sampler_s", "transport_s", "release_s", "step_s", "device_idle_s", "ready", "meeting_s"}
    ),
    WorkerBatches: frozenset[str](),
}


class _Head(msgspec.Struct):
    schema: int | None = None


def load(path: str | os.PathLike[str]) -> Run:
    """Return the run stored at path (a file, or a folder that holds ``run.json``).

    Raises:
        RunFileError: it cannot be read.
    """
    place = Path(path)
    if place.is_dir():
        place = place / "run.json"
    try:
        return loads(place.read_bytes(), str(place))
    except OSError as error:
        raise RunFileError(
            f"cannot read run file '{place}': {error.strerror}", hint="pass a run.json or the folder that holds it"
        ) from None


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a whole file or nothing: temporary name, fsync, rename.

    Raises:
        OutputError: the folder is read-only, full or missing; nothing is left behind.
    """
    place = Path(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write '{place}': {error.strerror}", hint="choose another place with --output"
        ) from None
    except BaseException:  # Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the run file."""
    return json_schema(Run)


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type.

    A field's ``Meta(extra_json_schema={"types": [...]})`` names all types that its JSON may have, where these are more
    than what it is decoded to.
    """

    def widen(node: Any) -> Any:
        if isinstance(node, list):
            return [widen(part) for part in node]
        if not isinstance(node, dict):
            return node
        wide = {key: widen(value) for key, value in node.items() if key != "types"}
        return wide | {"type": node["types"]} if isinstance(node.get("types"), list) else wide

    found: dict[str, Any] = widen(msgspec.json.schema(kind))
    return found
