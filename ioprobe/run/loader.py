"""What a loader and its dataset say of themselves, in torch's own words."""

from __future__ import annotations

import msgspec

TORCH_KNOBS = (
    "num_workers",
    "prefetch_factor",
    "batch_size",
    "persistent_workers",
    "pin_memory",
    "in_order",
    "multiprocessing_context",
    "drop_last",
    "timeout",
)
"""Arguments of ``torch.utils.data.DataLoader`` that a loader can be rebuilt with, as torch spells them."""


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
