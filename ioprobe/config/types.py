"""What ``ioprobe.toml`` may say; a unit under every field.

Sizes may be written as people write them (``"64MiB"``), durations too
(``"90ms"``), shares as ``0.05`` or ``"5%"``; here they are base units.
None means that the file does not say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ioprobe.run import TORCH_KNOBS, Host, LoaderSettings, Stage

TORCH_NAMES = (*TORCH_KNOBS, "shuffle")
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Bytes = Annotated[
    int, Meta(ge=0, extra_json_schema={"types": ["integer", "string"], "description": "bytes or '64MiB'"})
]
Seconds = Annotated[
    float, Meta(ge=0, extra_json_schema={"types": ["number", "string"], "description": "seconds or '90ms'"})
]
Share = Annotated[
    float, Meta(ge=0, le=1, extra_json_schema={"types": ["number", "string"], "description": "0..1 or '5%'"})
]
Format = Literal[
    "tar", "webdataset", "parquet", "arrow", "tfrecord", "mds", "litdata", "hdf5", "zarr", "npz", "npy", "jsonl",
    "tokens", "files", "imagefolder",
]  # fmt: skip
Undecided = Literal["fail", "pass", "retry"]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: unknown keys are errors."""


class HostConfig(_Table, frozen=True, kw_only=True):
    """``[host]`` or ``[hosts.NAME]``: the machine that trains, so that another one can judge."""

    cores: Annotated[float, Meta(gt=0)] | None = None
    """Cores that the job may use on one host (after affinity, cgroup and batch system)."""
    accelerators: Count | None = None
    """Accelerators of one host; 0 says that there is none."""
    accelerator: str = ""
    """Name of the accelerator, such as ``H100``."""
    memory_bytes: Bytes | None = None
    """Memory that the job may use on one host [bytes]."""
    shm_bytes: Bytes | None = None
    """Size of /dev/shm as the job sees it [bytes]."""
    open_files_limit: Positive | None = None
    """``ulimit -n``."""
    storage: str = ""
    """Where the data lies: ``nvme``, ``hdd``, ``nfs``, ``lustre``, ``s3``, ``gcs``, ``tmpfs``, ..."""
    local_ranks: Positive | None = None
    """Processes that train on one host, when that is not the number of accelerators."""

    def to_host(self) -> Host:
        """Return it as the facts of a machine; what the file does not say stays None.

        Raises:
            ValueError: ``cores`` is not given; a Host needs them.
        """
        if self.cores is None:
            raise ValueError("the host table gives no cores")
        return Host(
            logical_cores=max(1, int(self.cores)),
            usable_cores=float(self.cores),
            usable_cores_because="config",
            memory_bytes=self.memory_bytes,
            memory_available_bytes=self.memory_bytes,
            shm_bytes=self.shm_bytes,
            shm_available_bytes=self.shm_bytes,
            open_files_limit=self.open_files_limit,
            accelerators=[self.accelerator or "accelerator"] * (self.accelerators or 0),
        )


class BudgetsConfig(_Table, frozen=True, kw_only=True):
    """``[budgets]``: limits that a measured run must keep."""

    stall_share: Share | None = None
    """At most this share of the loop's wall time blocked for the next batch."""
    samples_per_s: Annotated[float, Meta(gt=0)] | None = None
    """At least this loop throughput [samples/s]."""
    tokens_per_s: Annotated[float, Meta(gt=0)] | None = None
    """At least this loop throughput [tokens/s]."""
    time_to_first_batch_s: Seconds | None = None
    """At most this from ``iter(loader)`` to the first batch [s]."""
    p99_wait_ms: Annotated[float, Meta(ge=0)] | None = None
    """At most this 99th percentile of a step's wait [ms]."""
    memory: Bytes | None = None
    """At most this proportional memory of all workers together [bytes]."""
    au: Share | None = None
    """At least this accelerator utilization, 1 − stall_share."""


class PipelineConfig(_Table, frozen=True, kw_only=True):
    """``[pipelines.NAME]``: one loader, in torch's own words, and what is known of its data."""

    # what to run
    target: str = ""
    """Dataset URL or factory ``module:function`` / ``path/train.py:function``."""
    step: str = ""
    """Factory of the training step."""
    step_ms: Annotated[float, Meta(gt=0)] | None = None
    """Step time of an emulated accelerator [ms]."""
    host: str = ""
    """Name of a ``[hosts.NAME]`` table; else ``[host]``."""
    ranks: Positive = 1
    """Processes that train, over all hosts."""
    local_ranks: Positive | None = None
    """Processes that train on one host; by default the host's, else its accelerators, at most ``ranks``."""

    # torch.utils.data.DataLoader
    batch_size: Positive | None = None
    num_workers: Count | None = None
    prefetch_factor: Positive | None = None
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    in_order: bool | None = None
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    drop_last: bool | None = None
    timeout: Seconds | None = None
    """``timeout`` of the DataLoader [s]; 0 waits for ever."""
    shuffle: bool | None = None
    seed: int | None = None
    """Seed of the ``generator`` passed to the loader."""
    worker_init_fn: str | None = None
    sampler: str | None = None
    """Class of the sampler or batch sampler, such as ``DistributedSampler``."""

    # the data
    kind: Literal["map", "iterable"] | None = None
    format: Literal["tar", "parquet", "files", "arrow", "tfrecord", "mds", "litdata", "hdf5", "zarr", "npy"] | None = (
        None
    )
    compression: Literal["none", "gzip", "bzip2", "xz", "zstd", "snappy", "lz4"] | None = None
    num_samples: Count | None = None
    num_shards: Count | None = None
    shard_bytes: Bytes | None = None
    """Typical size of a shard [bytes]."""
    sample_bytes: Bytes | None = None
    """Typical size of a sample as stored [bytes]."""
    batch_bytes: Bytes | None = None
    """Bytes of tensors in one batch as the loader delivers it [bytes]."""
    batch_tensors: Count | None = None
    """Tensors in one batch; each holds a file descriptor on its way."""
    row_group_rows: Positive | None = None
    row_group_bytes: Bytes | None = None
    reads: Literal["stream", "row-group-per-sample", "file-per-sample"] | None = None
    """How samples are fetched from their container."""
    epoch_batches: Count | None = None
    """Batches that one rank sees in an epoch."""
    epochs: Positive | None = None
    shuffle_buffer: Count | None = None
    """Samples in the shuffle buffer of each worker."""
    decoded_sample_bytes: Bytes | None = None
    """Size of a sample as it lies in the shuffle buffer [bytes]; else ``sample_bytes``."""
    split_by_worker: bool | None = None
    """Whether an iterable dataset shares its shards or samples among workers."""
    split_by_rank: bool | None = None
    """Whether it shares them among ranks."""
    resampled: bool | None = None
    """Shards are drawn with replacement (webdataset ``resampled=True``): idle workers cannot happen."""

    # the processes
    thread_pools: dict[str, Count] = {}
    """Width of thread pools in each worker: ``torch openmp opencv pyarrow polars tokenizers``."""
    parent_threads: Count | None = None
    """Threads alive in the main process when the workers fork."""
    cuda_before_fork: bool | None = None
    """The main process touches CUDA before the workers start."""
    dataset_pickle_bytes: Bytes | None = None
    python_object_items: Count | None = None
    """Length of the longest list of Python objects that the dataset holds."""
    worker_start_s: Seconds | None = None
    """From start to ready of one worker [s]."""
    sample_ms: Annotated[float, Meta(gt=0)] | None = None
    """Median time of one sample in a worker [ms]."""
    sample_p99_ms: Annotated[float, Meta(gt=0)] | None = None
    """99th percentile of one sample [ms]."""
    sampler_ms: Annotated[float, Meta(ge=0)] | None = None
    """Drawing the indices of one batch in the main process [ms]."""
    blocks_on_io: bool | None = None
    """Workers mostly wait for storage, so more of them than cores is right."""
    compile: bool | None = None
    """The step is compiled (``torch.compile``, XLA) or captured in graphs, so shapes must not change."""

    # judging
    select: list[str] | None = None
    ignore: list[str] = []
    budgets: BudgetsConfig | None = None

    def settings(self) -> LoaderSettings:
        """Return the loader's settings with torch's defaults where the file is silent."""
        workers = self.num_workers or 0
        return LoaderSettings(
            num_workers=workers,
            prefetch_factor=(self.prefetch_factor or 2) if workers else None,
            batch_size=self.batch_size,
            persistent_workers=bool(self.persistent_workers) and workers > 0,
            pin_memory=bool(self.pin_memory),
            in_order=self.in_order is not False,
            multiprocessing_context=self.multiprocessing_context if workers else None,
            drop_last=bool(self.drop_last),
            timeout_s=self.timeout or 0.0,
            shuffle=self.shuffle,
        )

    def overrides(self) -> dict[str, Any]:
        """Return the DataLoader arguments that the file names, in torch's spelling."""
        return {name: getattr(self, name) for name in TORCH_NAMES if getattr(self, name) is not None}


class CheckConfig(_Table, frozen=True, kw_only=True):
    """``[check]``: which rules speak, and what becomes of doubt."""

    select: list[str] = []
    """Codes or prefixes; empty selects all."""
    ignore: list[str] = []
    per_pipeline: dict[str, list[str]] = {}
    """Codes or prefixes to ignore, by pipeline (shell pattern)."""
    undecided: Undecided | None = None
    measure: Seconds | None = None
    """Measure each pipeline for at most this long [s]."""
    load: bool | None = None
    """Build the loader of factory targets (in a child process) to read its settings."""
    load_timeout_s: Seconds = 60.0
    """Give up on a factory or a listing after this [s]."""


class CompareConfig(_Table, frozen=True, kw_only=True):
    """``[compare]``: the noise bands."""

    noise: Share = 0.03
    """Changes below this are noise, however significant [fraction]."""
    large: Share = 0.08
    """Changes above this are large; one that is not significant leaves the comparison undecided [fraction]."""


class FrameRule(_Table, frozen=True, kw_only=True):
    """One of ``[[attach.rules]]``: puts stack frames of your own code into a stage."""

    stage: Stage
    function: str = ""
    """Shell pattern on the function's name; empty matches all."""
    file: str = ""
    """Shell pattern on the file's path; empty matches all."""


class AttachConfig(_Table, frozen=True, kw_only=True):
    """``[attach]``: for ``ioprobe attach``, ``run`` and ``profile``."""

    rules: list[FrameRule] = []


class AnalyzeConfig(_Table, frozen=True, kw_only=True):
    """``[analyze]``: defaults of ``ioprobe analyze`` and ``tune``."""

    seconds: Seconds | None = None
    """Longest coupled measurement [s]."""
    unit: Literal["samples", "tokens"] | None = None
    tokens_per_sample: Positive | None = None
    seed: int | None = None
    verify: bool | None = None
    """Measure again at the recommended settings."""
    output: str | None = None
    """Folder of the run file and the page."""


class ConfigFile(_Table, frozen=True, kw_only=True):
    """The whole of ``ioprobe.toml`` or ``[tool.ioprobe]``."""

    pipelines: dict[str, PipelineConfig] = {}
    host: HostConfig | None = None
    hosts: dict[str, HostConfig] = {}
    budgets: BudgetsConfig = BudgetsConfig()
    check: CheckConfig = CheckConfig()
    compare: CompareConfig = CompareConfig()
    attach: AttachConfig = AttachConfig()
    analyze: AnalyzeConfig = AnalyzeConfig()
