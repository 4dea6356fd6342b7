"""What a loader object says of itself, without iterating it; and the same loader at other settings."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

from ioprobe.errors import UsageError
from ioprobe.run import TORCH_KNOBS, LoaderFacts, LoaderSettings


def is_dataloader(value: Any) -> bool:
    """Return whether value is a ``torch.utils.data.DataLoader`` (StatefulDataLoader counts)."""
    from torch.utils.data import DataLoader

    if isinstance(value, DataLoader):
        return True
    # torchdata's StatefulDataLoader subclasses it in most versions, but not in all.
    return all(hasattr(value, name) for name in ("dataset", "num_workers", "collate_fn", "_index_sampler"))


def find_dataloaders(value: Any, depth: int = 3) -> list[Any]:
    """Return the DataLoaders that value is or holds (WebLoader, wrappers with threads, lists of loaders)."""
    if is_dataloader(value):
        return [value]
    found: list[Any] = []
    if depth <= 0 or isinstance(value, (str, bytes, int, float)) or value is None:
        return found
    for part in _held(value):
        for loader in find_dataloaders(part, depth - 1):
            if all(loader is not other for other in found):
                found.append(loader)
    return found


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from list(value.values())[:32]
    elif isinstance(value, (list, tuple)):
        yield from value[:32]
    else:
        names = getattr(value, "__dict__", None)
        if isinstance(names, dict):
            yield from list(names.values())[:64]


def settings_of(loader: Any) -> LoaderSettings:
    """Return a DataLoader's settings in our terms."""
    workers = int(loader.num_workers)
    context: Any = getattr(loader, "multiprocessing_context", None)
    method: Any
    if workers and context is None:
        import torch.multiprocessing as mp

        method = mp.get_context().get_start_method()
    else:
        method = context.get_start_method() if hasattr(context, "get_start_method") else context
    sampler = type(getattr(loader, "sampler", None)).__name__
    return LoaderSettings(
        num_workers=workers,
        prefetch_factor=loader.prefetch_factor if workers else None,
        batch_size=loader.batch_size,
        persistent_workers=bool(loader.persistent_workers),
        pin_memory=bool(loader.pin_memory),
        in_order=bool(getattr(loader, "in_order", True)),
        multiprocessing_context=method if workers else None,
        drop_last=bool(loader.drop_last),
        timeout_s=float(loader.timeout or 0),
        shuffle={"RandomSampler": True, "SequentialSampler": False}.get(sampler),
    )


def loader_facts(loader: Any, *, pickle_dataset: bool = True) -> LoaderFacts:
    """Return the facts of a loader, or of the DataLoader that a wrapper holds.

    Args:
        loader: A DataLoader or any iterable of batches.
        pickle_dataset: Pickle the dataset to learn its size, where workers are spawned; never in a user's own job.
    """
    from torch.utils.data import IterableDataset

    inner = find_dataloaders(loader)
    name = f"{type(loader).__module__}.{type(loader).__qualname__}"
    if not inner:
        return LoaderFacts(kind="opaque", loader_type=name, adaptable=False, num_batches=_length(loader))
    main = inner[0]
    settings = settings_of(main)
    dataset = main.dataset
    iterable = isinstance(dataset, IterableDataset)
    return LoaderFacts(
        kind="iterable" if iterable else "map",
        loader_type=name,
        dataset_type=f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        sampler_type=_sampler_type(main),
        collate_fn=getattr(main.collate_fn, "__qualname__", type(main.collate_fn).__qualname__),
        settings=settings,
        num_samples=_length(dataset),
        num_batches=_length(main),
        worker_init_fn=getattr(main.worker_init_fn, "__qualname__", None) if main.worker_init_fn else None,
        has_generator=main.generator is not None,
        adaptable=loader is main,
        inner_loaders=len(inner) if loader is not main else 0,
        dataset_pickle_bytes=_pickle_bytes(dataset, settings) if pickle_dataset else None,
        num_shards=_shards(dataset),
        thread_pools=_thread_pools(),
        python_object_items=_python_objects(dataset),
    )


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # webdataset and others raise whatever they like
        return None


def _sampler_type(loader: Any) -> str | None:
    batch = getattr(loader, "batch_sampler", None)
    if batch is not None and type(batch).__name__ != "BatchSampler":
        return f"{type(batch).__module__}.{type(batch).__qualname__}"
    sampler = getattr(loader, "sampler", None)
    return None if sampler is None else f"{type(sampler).__module__}.{type(sampler).__qualname__}"


def _pickle_bytes(dataset: Any, settings: LoaderSettings) -> int | None:
    if settings.multiprocessing_context not in ("spawn", "forkserver"):
        return None

    class Counter:
        size = 0

        def write(self, data: Any) -> int:
            self.size += len(data)
            return len(data)

    counter = Counter()
    try:
        pickle.Pickler(counter, protocol=pickle.HIGHEST_PROTOCOL).dump(dataset)
    except Exception:  # the user's __getstate__ may do anything; torch will tell them better than we can
        return None
    return counter.size


def _shards(dataset: Any, depth: int = 4) -> int | None:
    """Return how many shards a dataset names (webdataset, HF datasets, attributes called shards/urls/files)."""
    for name in ("num_shards", "n_shards"):
        value = getattr(dataset, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    for name in ("shards", "urls", "files", "shard_list", "paths"):
        value = getattr(dataset, name, None)
        if isinstance(value, (list, tuple)) and value and all(isinstance(v, (str, dict)) for v in value[:4]):
            return len(value)
    if depth <= 0:
        return None
    pipeline = getattr(dataset, "pipeline", None)
    parts = list(pipeline) if isinstance(pipeline, (list, tuple)) else []
    for attribute in ("dataset", "source", "_dataset"):
        inner = getattr(dataset, attribute, None)
        if inner is not None and inner is not dataset:
            parts.append(inner)
    for part in parts:
        found = _shards(part, depth - 1)
        if found is not None:
            return found
    return None


def _thread_pools() -> dict[str, int]:
    """Return the width of the thread pools of libraries that are loaded; imports none of them."""
    import sys

    pools: dict[str, int] = {}
    asks: dict[str, Callable[[Any], Any]] = {
        "torch": lambda m: m.get_num_threads(),
        "cv2": lambda m: m.getNumThreads(),
        "pyarrow": lambda m: m.cpu_count(),
        "polars": lambda m: m.thread_pool_size(),
        "numexpr": lambda m: m.nthreads,
    }
    for name, ask in asks.items():
        module = sys.modules.get(name)
        if module is not None:
            try:
                pools[name] = int(ask(module))
            except Exception:  # a half-imported or exotic build: no fact, no harm
                continue
    return pools


def _python_objects(dataset: Any) -> int | None:
    """Return the length of the longest list, tuple or dict of Python objects that the dataset holds."""
    longest = 0
    names = getattr(dataset, "__dict__", {})
    for value in list(names.values())[:64] if isinstance(names, dict) else []:
        if isinstance(value, (list, tuple, dict, set)):
            longest = max(longest, len(value))
    return longest or None


def rebuild(loader: Any, **changes: Any) -> Any:
    """Return a DataLoader over the same dataset, sampler and collate function at other settings.

    Args:
        loader: A DataLoader; it is not changed.
        changes: Knobs of DataLoader: num_workers, prefetch_factor, batch_size, persistent_workers,
            pin_memory, in_order, multiprocessing_context, timeout, drop_last.

    Raises:
        UsageError: the loader cannot be rebuilt (batch_size with a custom batch sampler, unknown knob).
    """
    unknown = set(changes) - set(TORCH_KNOBS)
    if unknown:
        raise UsageError(f"no such DataLoader setting: {', '.join(sorted(unknown))}")
    from torch.utils.data import IterableDataset

    workers = int(changes.get("num_workers", loader.num_workers))
    args: dict[str, Any] = {
        "num_workers": workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": changes.get("pin_memory", loader.pin_memory),
        "timeout": changes.get("timeout", loader.timeout) if workers else 0,
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
    }
    if workers:
        args["multiprocessing_context"] = changes.get("multiprocessing_context", loader.multiprocessing_context)
        args["prefetch_factor"] = changes.get("prefetch_factor", loader.prefetch_factor) or 2
        # A loader without workers could not be persistent; with workers, staying alive costs nothing.
        args["persistent_workers"] = changes.get(
            "persistent_workers", loader.persistent_workers if loader.num_workers else True
        )
        if hasattr(loader, "in_order"):
            args["in_order"] = changes.get("in_order", loader.in_order)
    args.update(_batching(loader, changes, isinstance(loader.dataset, IterableDataset)))
    from torch.utils.data import DataLoader

    kind = type(loader) if issubclass(type(loader), DataLoader) else DataLoader
    try:
        return kind(loader.dataset, **args)
    except TypeError:  # a subclass with a signature of its own
        return DataLoader(loader.dataset, **args)


def _batching(loader: Any, changes: dict[str, Any], iterable: bool) -> dict[str, Any]:
    batch_size = changes.get("batch_size", loader.batch_size)
    drop_last = changes.get("drop_last", loader.drop_last)
    if iterable:
        return {"batch_size": batch_size, "drop_last": drop_last if batch_size is not None else False}
    if loader.batch_size is None and loader.batch_sampler is not None:
        if changes.get("batch_size") is not None:
            raise UsageError("cannot change batch_size: the loader has a batch sampler of its own")
        return {"batch_sampler": loader.batch_sampler}
    if batch_size is None:
        return {"batch_size": None, "sampler": loader.sampler}
    if type(loader.batch_sampler).__name__ != "BatchSampler" and loader.batch_sampler is not None:
        return {"batch_sampler": loader.batch_sampler}
    return {"batch_size": batch_size, "sampler": loader.sampler, "drop_last": drop_last}
