"""One measurement of a loader: its batches row by row, in the main process and in the workers."""

from __future__ import annotations

import msgspec

from ioprobe.run.host import HostLoad, ProcessLoad
from ioprobe.run.loader import LoaderSettings
from ioprobe.run.words import Failure, Stage


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
    child_cpu_s: list[float] = []
    """CPU of processes that the worker started and that ended before the batch was handed over, as a decoder called for
    each clip [s]; empty in older files."""
    put_s: list[float] = []
    """When it was handed to the result queue [s since the measurement began]."""
    nbytes: list[int] = []
    """Bytes of tensors and arrays in the batch."""
    read_bytes: list[int] = []
    """Bytes that the worker read through read(2); -1 where the kernel does not tell.

    A worker looks some seven times a second: a batch with a look carries what was read since the one before, the others
    0. Only sums and means over many batches mean anything.
    """
    read_ops: list[int] = []
    """Calls of read(2), counted like the bytes; -1 where the kernel does not tell."""


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

    @property
    def same_streams(self) -> bool:
        """Whether every worker delivers the same samples: all batches of a round are equal, and rounds differ.

        A stream of constant batches is equal throughout, and no evidence.
        """
        if self.rounds < 3 or self.workers_delivering < 2:
            return False
        return self.equal_rounds >= 0.8 * self.rounds and self.distinct >= 3


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
    worker_cores: int | None = None
    """Cores that the workers' CPU masks allow, all workers together; None where not known."""
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
