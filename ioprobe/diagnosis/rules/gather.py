"""Config, loader object, headers, run and host -> one :class:`PipelineFacts`, each fact with its source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from statistics import median
from typing import Any

import msgspec

from ioprobe.config import HostConfig, PipelineConfig
from ioprobe.diagnosis.rules.facts import TORCH_DEFAULT, PipelineFacts
from ioprobe.diagnosis.rules.from_run import run_facts
from ioprobe.run import DatasetFacts, Host, LoaderFacts, LoaderSettings, Run

# PipelineFacts <- PipelineConfig, where the two names differ.
_RENAMED = {"timeout_s": "timeout", "compiled": "compile"}
_MILLISECONDS = {
    "step_s": "step_ms",
    "sample_s": "sample_ms",
    "sample_p99_s": "sample_p99_ms",
    "sampler_s": "sampler_ms",
}
# What DataLoader takes where nothing is passed. batch_size and sampler are left out: datasets that batch by themselves
# and frameworks that put in a DistributedSampler are too common to take silence for 1 and for a plain sampler.
_TORCH_DEFAULTS: dict[str, Any] = {
    "num_workers": 0,
    "persistent_workers": False,
    "pin_memory": False,
    "in_order": True,
    "drop_last": False,
    "timeout_s": 0.0,
}
# A pool that is loaded is not yet used in workers: torch resets its own there, pyarrow's serves only its readers.
_POOLS_USED_IN_WORKERS = {"cv2": "opencv", "polars": "polars", "numexpr": "numexpr"}
_SUFFIX = re.compile(r"\.(tar|tgz|parquet|arrow|tfrecord)(?:\.(gz|bz2|xz|zst))?$", re.IGNORECASE)
_FORMATS = {"tar": "tar", "tgz": "tar", "parquet": "parquet", "arrow": "arrow", "tfrecord": "tfrecord"}
_COMPRESSIONS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd"}
_FORMAT_NAMES = {"webdataset": "tar", "imagefolder": "files"}
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_FIELDS = frozenset(PipelineFacts.__struct_fields__)


def gather(
    name: str,
    *,
    config: PipelineConfig | None = None,
    host: HostConfig | Host | None = None,
    loader: LoaderFacts | None = None,
    dataset: DatasetFacts | None = None,
    run: Run | None = None,
    bare_ignores: int = 0,
    written: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> PipelineFacts:
    """Return all that is known of a pipeline.

    What the config says goes before what the loader object says, then headers, then the run. Facts of one
    machine never fill gaps in another's table.

    Args:
        name: Of the pipeline.
        config: Its table.
        host: The training host: a table of the config, or this machine as measured.
        loader: What the loader object says.
        dataset: What headers and listings say.
        run: A saved or fresh run; its loader and dataset facts fill in where those are not given.
        bare_ignores: Inline ignores in its table that give no reason.
        written: Somebody wrote the table, so that what it leaves out is torch's default; False for one made up for a
            target that was named.
        extra: Further facts by name, seen where the loader was built (``parent_threads`` and the like).
    """
    known: dict[str, Any] = {"name": name}
    sources: dict[str, str] = {}

    def learn(source: str, facts: Mapping[str, Any]) -> None:
        for key, value in facts.items():
            if value is not None and key in _FIELDS and key not in known:
                known[key] = value
                sources[key] = source

    known["bare_ignores"] = bare_ignores
    config = config or PipelineConfig()
    settings = _measured_settings(run) if run else None
    learn("config", _from_config(config))
    if loader or (run and run.facts):
        facts = loader or run.facts  # type: ignore[union-attr]
        assert facts is not None
        learn("loader", _from_loader(facts))
    learn("loader", extra or {})
    if settings is not None:
        learn("run", _from_settings(settings))
    if written and loader is None and run is None and speaks_for_itself(config):
        learn(TORCH_DEFAULT, _torch_defaults(known))
    if dataset or (run and run.dataset):
        learn("headers", _from_dataset(dataset or run.dataset, known))  # type: ignore[union-attr,arg-type]
    learn("url", facts_of_url(str(known.get("url", ""))))
    if run is not None:
        learn("run", run_facts(run))
        learn("run", {"ranks": run.world_size if run.world_size > 1 else None})
        host = host or run.host
    learn("host", _from_host(host, known.get("ranks", 1), config.local_ranks))
    return PipelineFacts(sources=sources, **known)


def facts_of_url(url: str) -> dict[str, Any]:
    """Return what a dataset URL says by its spelling: format, compression and the number of shards.

    >>> facts_of_url("s3://b/train-{000..127}.tar.gz")
    {'format': 'tar', 'kind': 'iterable', 'compression': 'gzip', 'num_shards': 128}
    """
    found = _SUFFIX.search(url.split("?", 1)[0])
    if not found:
        return {}
    suffix = found.group(1).lower()
    out: dict[str, Any] = {"format": _FORMATS[suffix]}
    if suffix in ("tar", "tgz"):
        out["kind"] = "iterable"
        packed = "gz" if suffix == "tgz" else (found.group(2) or "").lower()
        out["compression"] = _COMPRESSIONS.get(packed, "none")
    ranges = _RANGE.findall(url)
    if ranges:
        out["num_shards"] = prod(max(0, int(last) - int(first) + 1) for first, last in ranges)
    return out


def speaks_for_itself(config: PipelineConfig) -> bool:
    """Return whether torch's defaults hold where the table is silent.

    It must speak of a loader, by an argument of DataLoader or by the data, and no factory may decide otherwise.
    """
    if ":" in config.target and "://" not in config.target:
        return False
    return bool(config.target or config.overrides())


def _from_config(config: PipelineConfig) -> dict[str, Any]:
    said = {key: value for key, value in msgspec.structs.asdict(config).items() if value is not None and value != ""}
    out = {key: value for key, value in said.items() if key in _FIELDS and key != "thread_pools"}
    if config.format is not None:
        out["format"] = _FORMAT_NAMES.get(config.format, config.format)
    for fact, key in _RENAMED.items():
        out[fact] = said.get(key)
    for fact, key in _MILLISECONDS.items():
        out[fact] = None if said.get(key) is None else said[key] / 1000
    if config.prefetch_factor is not None:
        out["prefetch_given"] = True
    if config.seed is not None or config.worker_init_fn:
        out["seeded"] = True
    if config.thread_pools:
        out["thread_pools"] = dict(config.thread_pools)
    if "://" in config.target or (config.target and ":" not in config.target):
        out["url"] = config.target
    out.pop("ranks", None)
    if config.ranks > 1:
        out["ranks"] = config.ranks
    out.pop("local_ranks", None)
    return out


def _torch_defaults(known: dict[str, Any]) -> dict[str, Any]:
    out = dict(_TORCH_DEFAULTS)
    out["seeded"] = False
    if known.get("num_workers"):
        out["prefetch_factor"] = 2
    return out


def _from_settings(settings: LoaderSettings) -> dict[str, Any]:
    return {
        "num_workers": settings.num_workers,
        "prefetch_factor": settings.prefetch_factor,
        "batch_size": settings.batch_size,
        "persistent_workers": settings.persistent_workers,
        "pin_memory": settings.pin_memory,
        "in_order": settings.in_order,
        "multiprocessing_context": settings.multiprocessing_context,
        "drop_last": settings.drop_last,
        "timeout_s": settings.timeout_s,
        "shuffle": settings.shuffle,
    }


def _measured_settings(run: Run) -> LoaderSettings | None:
    measured = run.loop() or run.loader_alone()
    return measured.settings if measured else None


def _from_loader(facts: LoaderFacts) -> dict[str, Any]:
    pools = {
        ours: facts.thread_pools[theirs]
        for theirs, ours in _POOLS_USED_IN_WORKERS.items()
        if theirs in facts.thread_pools
    }
    out: dict[str, Any] = {
        "kind": facts.kind,
        "dataset_type": facts.dataset_type,
        "num_samples": facts.num_samples,
        "epoch_batches": facts.num_batches,
        "sampler": facts.sampler_type,
        "dataset_pickle_bytes": facts.dataset_pickle_bytes,
        "python_object_items": facts.python_object_items,
        "num_shards": facts.num_shards,
        "thread_pools": pools or None,
    }
    if facts.settings is not None:
        out.update(_from_settings(facts.settings))
        out["seeded"] = facts.has_generator or facts.worker_init_fn is not None
    return out


def _from_dataset(facts: DatasetFacts, known: dict[str, Any]) -> dict[str, Any]:
    fmt = _FORMAT_NAMES.get(facts.format, facts.format) or None
    # One file a sample: then the files are no shards that workers could own.
    out: dict[str, Any] = {
        "url": facts.url,
        "format": fmt,
        "num_shards": facts.num_shards or None if fmt != "files" else None,
        "num_samples": facts.num_samples,
        "total_bytes": facts.total_bytes,
        "storage": facts.filesystem or None,
        "compression": facts.compression or "none",
    }
    if facts.shard_bytes and fmt != "files":
        out["shard_bytes"] = int(median(facts.shard_bytes))
    if facts.total_bytes and facts.num_samples:
        out["sample_bytes"] = facts.total_bytes // facts.num_samples
    if facts.row_group_rows:
        out["row_group_rows"] = int(median(facts.row_group_rows))
        if "sample_bytes" in out:
            out["row_group_bytes"] = out["row_group_rows"] * out["sample_bytes"]
    if known.get("kind") is None and fmt == "tar":
        out["kind"] = "iterable"
    return out


def _from_host(host: HostConfig | Host | None, ranks: int, local_ranks: int | None) -> dict[str, Any]:
    if host is None:
        return {"local_ranks": local_ranks or (1 if ranks == 1 else None)}
    if isinstance(host, HostConfig):
        out: dict[str, Any] = {
            "cores": host.cores,
            "cores_because": "config",
            "memory_bytes": host.memory_bytes,
            "shm_bytes": host.shm_bytes,
            "accelerators": host.accelerators,
            "open_files_limit": host.open_files_limit,
            "storage": host.storage or None,
        }
        mine, accelerators = local_ranks or host.local_ranks, host.accelerators
    else:
        out = {
            "cores": host.usable_cores,
            "cores_because": host.usable_cores_because,
            "memory_bytes": host.memory_bytes,
            "shm_bytes": host.shm_bytes,
            "accelerators": len(host.accelerators),
            "open_files_limit": host.open_files_limit,
        }
        mine, accelerators = local_ranks, len(host.accelerators)
    out["local_ranks"] = min(ranks, mine or accelerators or ranks)
    return out
