"""What the model knows of one loader, what may be asked of it, and what it answers.

All times are seconds per batch unless a name says otherwise; series keep the
order in which they were measured, because bursts and slow shards live in it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ioprobe.run import Caveat
from ioprobe.stats import Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _none() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True)
class Setting:
    """One point to predict: the loader's knobs and what-if factors. None keeps what was measured."""

    num_workers: int
    prefetch_factor: int = 2
    """Batches that each worker prepares ahead; ignored without workers."""
    batch_size_factor: float = 1.0
    """Samples per batch over those measured [fraction]."""
    persistent_workers: bool = False
    in_order: bool = True
    pin_memory: bool | None = None
    step_s: float | None = None
    """Step time per batch [s], constant; 0 drains the loader alone."""
    cores: float | None = None
    """Cores that main process, workers and step share."""
    storage_x: float = 1.0
    """Speed of the storage over that measured [fraction]: blocked time is divided by it."""
    storage_bytes_per_s: float | None = None
    """Bandwidth that all workers share [bytes/s]."""
    decode_x: float = 1.0
    """CPU time of reading, decoding and transforming over that measured [fraction]; 0.5 is twice as fast."""
    collate_x: float = 1.0
    """CPU time of collating over that measured [fraction]."""
    transport_x: float = 1.0
    """Cost of moving a batch to the main process over that measured [fraction]."""
    spread_lock: bool = False
    """True where the lock (or the one storage connection) that serialises workers is gone."""
    even_shards: bool = False
    """True where every worker has data: shards split evenly among workers."""

    @property
    def depth(self) -> int:
        """Batches in flight at most."""
        return self.num_workers * self.prefetch_factor

    def at(self, **changes: object) -> Setting:
        """Return the setting with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Serial:
    """Work that only so many workers can do at once: a lock, or storage of limited bandwidth."""

    kind: str
    """``lock`` or ``storage``."""
    service_s: float
    """Time in the server per batch [s], queueing left out."""
    channels: int = 1
    """Requests served at once."""
    hand_over_s: float = 0.0
    """Further time in the server per batch when others stand in line [s]."""
    uses_cpu: bool = False
    """True where the holder burns CPU while it holds (a lock around decoding)."""
    because: str = ""
    """What in the run says so."""


CONVOY_S = sys.getswitchinterval()
"""No hand-over is blocked for so long but by a worker's threads that pass the GIL among themselves [s]."""


@dataclass(frozen=True)
class MainCosts:
    """What the main process spends per batch on the loader [s]."""

    receive_cpu_s: float = 0.0
    """CPU for receiving and rebuilding a batch."""
    receive_busy_s: float = 0.0
    """Blocked while receiving from a worker that computes: its threads fight for its GIL."""
    receive_crowded_s: float = 0.0
    """The same from a worker that idles while others compute on all cores but the main process's."""
    receive_idle_s: float = 0.0
    """The same from a worker that idles or sleeps: what a batch that lies ready costs beyond CPU."""
    dispatch_cpu_s: float = 0.0
    """Sampler, giving out the next task, bookkeeping."""
    release_s: float = 0.0
    """Freeing the batch before, outside the wait."""


@dataclass(frozen=True)
class StepCosts:
    """The training step, alone."""

    durations_s: Floats = field(default_factory=_none)
    """In order, shape (steps,); empty when there was none."""
    cpu_s: float = 0.0
    """CPU per step, all threads [s]."""
    samples_per_step: float = 1.0

    @property
    def mean_s(self) -> float:
        """Mean step [s]; 0 when there was none."""
        return float(self.durations_s.mean()) if self.durations_s.size else 0.0


@dataclass(frozen=True)
class Startup:
    """What starting costs [s]."""

    start_s: float = 0.0
    """Starting one worker process, in the main process."""
    init_s: float = 0.0
    """From process start until the worker takes its first task."""
    first_extra_s: float = 0.0
    """CPU of a new worker's first batch above that of the later ones."""
    first_blocked_s: float = 0.0
    """Blocked time of the same."""
    again_extra_s: float = 0.0
    """CPU of a worker's first batch of a later epoch, where workers persist: a shuffle, an index read again."""
    again_blocked_s: float = 0.0
    """Blocked time of the same: a listing."""
    draw_s: float = 0.0
    """Drawing an epoch's first indices: a permutation of everything."""
    stop_s: float = 0.0
    """What an edge between epochs costs besides: stopping the old workers, or telling them to begin again."""
    edge_s: float | None = None
    """Measured wait for the first batch of a later epoch; None when no epoch ended."""
    first_batch_s: float | None = None
    """Measured time to the very first batch."""


@dataclass(frozen=True)
class Memory:
    """What workers and batches occupy [bytes]; None where it was not measured."""

    worker_bytes: float | None = None
    """Proportional memory of one worker, its batch included."""
    batch_bytes: float | None = None


@dataclass(frozen=True)
class Profile:
    """One loader, calibrated. Arrays have shape (batches,) and one order."""

    kind: str
    """``map``, ``iterable`` or ``opaque`` (no what-if over workers)."""
    current: Setting
    """The setting at which it was measured."""
    cores: float
    samples_per_batch: float
    fetch_cpu_s: Floats = field(default_factory=_none)
    fetch_blocked_s: Floats = field(default_factory=_none)
    collate_cpu_s: Floats = field(default_factory=_none)
    collate_blocked_s: Floats = field(default_factory=_none)
    worker: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Which worker made each batch."""
    by_worker: bool = False
    """True where workers differ, so that each replays its own series."""
    worker_batches: tuple[int, ...] | None = None
    """Batches each worker yields in an epoch, where only some of them deliver or shards are uneven."""
    batches_per_epoch: int | None = None
    worker_cpu_s: float = 0.0
    """Taking a task and handing a batch over, in the worker."""
    feed_cpu_s: float = 0.0
    """CPU of the worker's queue thread: pickling and writing to the pipe."""
    share_cpu_s: float = 0.0
    """The part of ``feed_cpu_s`` that falls while the main process receives: the worker's end of every connection
    over which a tensor's file descriptor goes."""
    threads_cpu_s: float = 0.0
    """CPU of further threads beside the worker's main thread, which does not wait for it (BLAS, OpenMP), per batch."""
    main: MainCosts = field(default_factory=MainCosts)
    step: StepCosts = field(default_factory=StepCosts)
    startup: Startup = field(default_factory=Startup)
    memory: Memory = field(default_factory=Memory)
    serial: Serial | None = None
    inline_cpu_s: float | None = None
    """CPU of fetch and collate per batch in the main process, without workers [s]; None where it was not measured."""
    inline_blocked_s: float | None = None
    """Blocked time of the same [s]."""
    inline_release_s: float | None = None
    """Freeing a batch that lies in no shared memory [s]."""
    contention: float = 0.0
    """Slowdown of CPU work when all cores are busy against one [fraction]: hyper-threads, memory bandwidth."""
    waits_s: Floats = field(default_factory=_none)
    """Measured waits, for opaque loaders that can only be replayed."""
    inline_s: float = 0.0
    """Of an opaque loader's time per batch, what the loop's own thread works: no step hides it [s]."""
    beside_step_s: float = 0.0
    """Of an opaque loader's loop, what it does per batch beside its step, and no waiting [s]."""
    measured: Estimate | None = None
    """Throughput at ``current`` [samples/s], 95% interval."""
    correction: float = 1.0
    """Factor on the workers' times with which the replay reproduces ``current``."""
    batch_wall_s: float = 0.0
    """Mean time for which a worker was at a batch when it was measured [s]."""
    seen_alone: bool = False
    """Whether batches made with and without company were compared: then locks and contention are told apart."""
    foreign_share: float = 0.0
    """Share of the cores that other processes used while it was measured [fraction]."""
    n: int = 0
    """Batches that the calibration rests on."""
    caveats: tuple[Caveat, ...] = ()

    @property
    def adaptable(self) -> bool:
        """Whether workers can be varied."""
        return self.kind != "opaque"

    @property
    def service_cpu_s(self) -> float:
        """Mean CPU of a worker per batch, its queue thread included [s]."""
        own = float(self.fetch_cpu_s.mean() + self.collate_cpu_s.mean()) if self.fetch_cpu_s.size else 0.0
        return own + self.worker_cpu_s + self.feed_cpu_s + self.threads_cpu_s

    @property
    def service_blocked_s(self) -> float:
        """Mean blocked time of a worker per batch, queueing for a lock or a server left out [s]."""
        return float(self.fetch_blocked_s.mean() + self.collate_blocked_s.mean()) if self.fetch_blocked_s.size else 0.0


@dataclass(frozen=True)
class Bounds:
    """Closed-form ceilings; the lowest rate binds."""

    samples_per_s: float
    binding: str
    """``workers``, ``cores``, ``storage``, ``lock``, ``main`` or ``step``."""
    limits: dict[str, float]
    """Ceiling of each resource [samples/s]; only those that apply."""


@dataclass(frozen=True)
class Prediction:
    """What the model says of one setting.

    Intervals are meant to hold 90% of measured values; benchmarks/model.py says how many they do.
    """

    setting: Setting
    samples_per_s: Estimate
    """Loader and step coupled, steady state [samples/s]."""
    stall_share: Estimate
    """Time blocked for the next batch over wall, steady state [fraction]."""
    loader_samples_per_s: Estimate
    """The loader drained alone [samples/s]."""
    epoch_samples_per_s: float | None
    """Whole epochs, their edges included; None where the epoch's length is not known."""
    epoch_stall_share: float | None
    """The same of the stall share: worker start-up at each epoch's edge counts."""
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    time_to_first_batch_s: float
    binding: str
    """The resource that binds, as in :class:`Bounds`."""
    drains_after_steps: int | None
    """Steps until a full prefetch buffer is used up and stalls begin; None where it lasts."""
    memory_bytes: float | None
    """Workers and batches in flight."""
    shm_bytes: float | None
    """Batches in flight in /dev/shm."""
    extrapolates: tuple[Caveat, ...] = ()
    """Why to trust this less."""
