"""All that rules know of a pipeline, from whatever told it: config, loader object, headers, a run, the host."""

from __future__ import annotations

import msgspec

TORCH_DEFAULT = "torch default"
"""Source of what a table leaves out."""


class PipelineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline. None means not known; a rule that needs it abstains."""

    name: str = ""
    sources: dict[str, str] = {}
    """Where each fact comes from: ``config``, ``torch default``, ``loader``, ``headers``, ``run`` or ``host``."""

    bare_ignores: int = 0
    """Inline ignores that give no reason or no code."""

    # the machine that trains
    cores: float | None = None
    """Usable cores of one host."""
    cores_because: str = ""
    ranks: int = 1
    local_ranks: int | None = None
    """Ranks on one host."""
    memory_bytes: int | None = None
    """Memory of one host that the job may use [bytes]."""
    shm_bytes: int | None = None
    accelerators: int | None = None
    open_files_limit: int | None = None
    storage: str | None = None
    """``nvme``, ``nfs``, ``s3``, ``ext4``, ..."""

    # the loader
    target: str = ""
    kind: str | None = None
    """``map``, ``iterable`` or ``opaque``."""
    num_workers: int | None = None
    prefetch_factor: int | None = None
    """As given; None where it is not known or there are no workers."""
    prefetch_given: bool = False
    """True where somebody wrote it down, rather than torch's default."""
    batch_size: int | None = None
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    in_order: bool | None = None
    multiprocessing_context: str | None = None
    drop_last: bool | None = None
    timeout_s: float | None = None
    shuffle: bool | None = None
    sampler: str | None = None
    seeded: bool | None = None
    """A generator or a worker_init_fn is passed, or a seed is named."""
    dataset_type: str = ""

    # the data
    url: str = ""
    format: str | None = None
    compression: str | None = None
    num_samples: int | None = None
    num_shards: int | None = None
    shard_bytes: int | None = None
    """Median size of a shard [bytes]."""
    total_bytes: int | None = None
    sample_bytes: int | None = None
    batch_bytes: int | None = None
    batch_tensors: int | None = None
    row_group_rows: int | None = None
    row_group_bytes: int | None = None
    reads: str | None = None
    epoch_batches: int | None = None
    epochs: int | None = None
    shuffle_buffer: int | None = None
    decoded_sample_bytes: int | None = None
    split_by_worker: bool | None = None
    split_by_rank: bool | None = None
    resampled: bool | None = None

    # the processes
    thread_pools: dict[str, int] = {}
    """Width of thread pools in a worker, by library."""
    parent_threads: int | None = None
    cuda_before_fork: bool | None = None
    dataset_pickle_bytes: int | None = None
    python_object_items: int | None = None
    worker_start_s: float | None = None
    """From start to ready of one worker [s]."""
    step_s: float | None = None
    """The step on a resident batch [s]."""
    sample_s: float | None = None
    sample_p99_s: float | None = None
    sampler_s: float | None = None
    """Drawing one batch's indices in the main process [s]."""
    blocks_on_io: bool | None = None
    compiled: bool | None = None

    # what a run showed
    stall_share: float | None = None
    """Share of the loop's wall time blocked for the next batch."""
    blocked_share: float | None = None
    """Share of the workers' busy time neither on a core nor waiting for one."""
    runq_share: float | None = None
    """Share of the workers' busy time runnable without a core."""
    threads_per_worker: float | None = None
    """CPU of all threads of a worker over that of its main thread, while it makes batches."""
    helper_cores: float | None = None
    """Cores that a worker's other threads take while it makes batches."""
    wanted_cores: float | None = None
    """Cores that one busy worker uses or waits for, all its threads together."""
    other_load: float | None = None
    """Share of the host's cores that other processes used during the run."""
    head_of_line_share: float | None = None
    """Share of the loop's time lost to order: waits for a batch while later ones lay ready and workers had to stop."""
    batch_spread: float | None = None
    """99th percentile of a batch's own time in a worker over the median, time in line for a core left out."""
    burst_batches: float | None = None
    """Batches that the step consumes during the longest 2% of fetches of one worker."""
    distinct_share: float | None = None
    """Different batches over batches seen."""
    idle_workers: int | None = None
    """Workers that delivered nothing."""
    edge_share: float | None = None
    """Share of the loop's wall time at epoch edges."""
    failure: str = ""
    """What broke, in the words of the run."""

    def is_default(self, fact: str) -> bool:
        """Return whether nobody said so and torch's default holds."""
        return self.sources.get(fact) == TORCH_DEFAULT

    @property
    def cores_per_rank(self) -> float | None:
        """Usable cores over the ranks that share them."""
        return None if self.cores is None else self.cores / (self.local_ranks or 1)

    @property
    def consumers(self) -> int | None:
        """Worker processes over all ranks; the main process counts where there is no worker."""
        return None if self.num_workers is None else max(1, self.num_workers) * self.ranks

    @property
    def remote(self) -> bool | None:
        """Whether the data lies behind a network; None where it is not known."""
        if self.url and "://" in self.url and not self.url.startswith("file://"):
            return True
        if self.storage:
            return self.storage.lower() in REMOTE
        return None

    @property
    def depth(self) -> int | None:
        """Batches in flight at most in one rank."""
        if self.num_workers is None or (self.num_workers > 0 and self.prefetch_factor is None):
            return None
        return self.num_workers * (self.prefetch_factor or 0)


OBJECT_STORES = frozenset({"s3", "gcs", "gs", "azure", "az", "abfs", "http", "https", "hf", "oss", "r2", "minio"})
NETWORK_FILES = frozenset({"ceph", "nfs", "nfs4", "lustre", "gpfs", "fuse", "smb", "cifs", "wekafs", "beegfs"})
REMOTE = OBJECT_STORES | NETWORK_FILES
