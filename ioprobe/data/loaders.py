"""A torch DataLoader for any dataset URL."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ioprobe.data.formats import MAP_STYLE
from ioprobe.data.formats.imagefolder import class_of
from ioprobe.data.urls import ShardSet, list_shards
from ioprobe.errors import TargetError, UsageError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def make_loader(
    url: str,
    *,
    batch_size: int = 32,
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
    pin_memory: bool = False,
    in_order: bool = True,
    shuffle: bool = False,
    drop_last: bool = False,
    multiprocessing_context: str | None = None,
    timeout: float = 0,
    decode: bool = True,
    image_size: int | None = 224,
    sequence_length: int | None = None,
    seed: int = 0,
    repeat: bool = False,
    format: str | None = None,  # noqa: A002 - as in list_shards
    storage_options: Mapping[str, Any] | None = None,
) -> DataLoader[Any]:
    """Return a DataLoader over the dataset at a URL, decoded as people do it.

    Batches are dicts, field name -> tensor (or list, where samples differ in
    shape); with ``decode=False`` lists of samples as stored. Parquet, HDF5, npy,
    npz, image folders and token files are map-style; the others are streams
    whose shards are divided among ranks (torch.distributed, else RANK and
    WORLD_SIZE) and workers.

    Args:
        url: See :func:`ioprobe.data.urls.list_shards`.
        batch_size, num_workers, prefetch_factor, persistent_workers, pin_memory,
        in_order, drop_last, multiprocessing_context, timeout: As torch has them;
            those that say nothing without workers are left out there.
        shuffle: Shards and a window of samples (streams), row groups and rows
            within (Parquet), or all samples.
        decode: False to deliver what is stored.
        image_size: Side of the square crop [pixels]; None keeps each image's size.
        sequence_length: Tokens of a sample of a ``.bin``; None for 1024.
        seed: Of the shuffle.
        repeat: Go round for ever.
        format: One of :data:`ioprobe.data.formats.FORMATS`; None to tell by the files.
        storage_options: For the fsspec file system.

    Raises:
        TargetError, DataError, UsageError: see ``list_shards``; also fewer shards than ranks.
    """
    if batch_size < 1 or num_workers < 0:
        raise UsageError(
            f"batch_size {batch_size} with num_workers {num_workers} cannot be meant",
            hint="batch_size is at least 1, num_workers at least 0",
        )
    found = list_shards(url, format=format, storage_options=storage_options)
    import torch
    from torch.utils.data import DataLoader

    from ioprobe.data.torch_datasets import GroupSampler, collate_samples, collate_stored

    rank, world_size = ranks()
    dataset: Any
    sampler: Any = None
    if found.format in MAP_STYLE:
        dataset = make_table(found, decode=decode, image_size=image_size, sequence_length=sequence_length)
        sampler = GroupSampler(
            dataset.groups,
            shuffle=shuffle,
            seed=seed,
            lanes=num_workers,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            repeat=repeat,
        )
    else:
        dataset = make_stream(
            found, decode=decode, image_size=image_size, shuffle=shuffle, seed=seed, repeat=repeat,
            rank=rank, world_size=world_size,
        )  # fmt: skip
    settings: dict[str, Any] = {"in_order": in_order} if _knows_in_order(DataLoader) else {}
    if num_workers > 0:
        settings |= {
            "prefetch_factor": prefetch_factor or 2,
            "persistent_workers": persistent_workers,
            "multiprocessing_context": multiprocessing_context,
            "timeout": timeout,
        }
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        pin_memory=pin_memory,
        drop_last=drop_last,
        collate_fn=collate_samples if decode else collate_stored,
        # The shuffle of a stream follows from it, the same on every rank.
        generator=torch.Generator().manual_seed(seed),
        **settings,
    )


def make_table(
    found: ShardSet, *, decode: bool = True, image_size: int | None = 224, sequence_length: int | None = None
) -> Any:
    """Return the map-style dataset of shards (``torch_datasets.ShardTable``)."""
    from ioprobe.data.torch_datasets import ShardTable

    labels = None
    shards = found.shards
    if found.format == "litdata":
        shards = shards[:1]  # its reader covers the folder
    if found.format == "imagefolder":
        names = [class_of(s) for s in found.shards]
        rank_of = {name: i for i, name in enumerate(sorted(set(names)))}
        labels = [rank_of[name] for name in names]
    options: dict[str, Any] = {}
    if found.format == "tokens" and sequence_length is not None:
        options["sequence_length"] = sequence_length
    table = ShardTable(
        shards, found.format, decode=decode, image_size=image_size, labels=labels, reader_options=options
    )
    if len(table) == 0:
        raise TargetError(f"'{found.name}' holds no sample", hint="write it again, or check the pattern")
    return table


def make_stream(found: ShardSet, *, rank: int = 0, world_size: int = 1, **options: Any) -> Any:
    """Return the iterable dataset of shards (``torch_datasets.ShardStream``).

    Raises:
        TargetError: there are fewer shards than ranks, so some ranks would have no data.
    """
    from ioprobe.data.torch_datasets import ShardStream

    if len(found.shards) < world_size:
        raise TargetError(
            f"'{found.name}' has {len(found.shards)} shards for {world_size} ranks: some would get no data",
            hint="write more, smaller shards",
        )
    return ShardStream(found.shards, found.format, rank=rank, world_size=world_size, **options)


def ranks() -> tuple[int, int]:
    """Return rank and world size: torch.distributed's where it runs, else what the launcher set (RANK, WORLD_SIZE)."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    return (rank, world_size) if 0 <= rank < world_size else (0, 1)


def _knows_in_order(loader: type[Any]) -> bool:
    return "in_order" in inspect.signature(loader).parameters  # torch >= 2.6
