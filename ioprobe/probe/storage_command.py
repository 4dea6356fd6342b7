"""What ``ioprobe storage`` asks for, checked, and carried out."""

from __future__ import annotations

import datetime
import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ioprobe import __version__
from ioprobe.data.describe import describe
from ioprobe.data.shards import local_path
from ioprobe.errors import IoprobeError, UsageError
from ioprobe.probe.host import measure_host, usable_cores
from ioprobe.probe.storage import Progress, measure_dataset
from ioprobe.probe.storage_block import measure_block
from ioprobe.probe.storage_objects import measure_objects
from ioprobe.probe.storage_objects_words import side_by_side
from ioprobe.probe.storage_plan import list_files
from ioprobe.probe.storage_scratch import scratch_file
from ioprobe.run import Caveat, DatasetFacts, Run, StorageJob, Workload, dumps, write_atomic
from ioprobe.secrets import redact_url
from ioprobe.units import format_bytes, parse_block_size, parse_bytes, parse_seconds

_OBSTORE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


@dataclass(frozen=True, kw_only=True)
class StorageRequest:
    """A checked request."""

    url: str
    pattern: str
    block_bytes: int
    depth: int
    processes: int | None
    direct: bool
    cache: str
    engine: str
    seconds: float
    scratch: Path | None
    scratch_bytes: int
    columns: Sequence[str] | None
    samples_per_shard: float | None
    describe: bool
    output: Path | None
    client: str = "auto"
    """For object stores: ``fsspec``, ``obstore``, ``both``, or ``auto``: both where obstore is there and fits."""
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """For the client; never shown."""

    @classmethod
    def parse(cls, **given: Any) -> StorageRequest:
        """Return the request that the options mean.

        Raises:
            UsageError: an option or a combination cannot be meant.
        """
        url, scratch, pattern = given["url"], given["scratch"], given["pattern"]
        if (url is None) == (scratch is None):
            found = "neither" if url is None else "both"
            raise UsageError(f"URL or --scratch DIR is needed, {found} given", hint="name what to read")
        seconds = parse_seconds(given["seconds"])
        if not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"cannot measure for '{given['seconds']}'", hint="give a time such as 3 or 500ms")
        block_only = ("block_size", "depth", "cache", "engine")
        asked = [name for name in block_only if given[name] is not None]
        asked += ["direct"] if given["direct"] is not None else []
        if pattern is None:
            pattern = "random" if asked or scratch else "dataset"
        if pattern == "dataset" and (asked or scratch):
            name = "--scratch" if not asked else "--" + asked[0].replace("_", "-")
            raise UsageError(
                f"{name} has no meaning for the dataset's own pattern", hint="use --pattern random or sequential"
            )
        if given["cache"] and given["direct"] is not False:
            raise UsageError("--cache has no meaning past the page cache", hint="add --buffered")
        if given["engine"] == "mmap" and given["direct"] is not False:
            raise UsageError("a mapping is always read through the page cache", hint="add --buffered")
        return cls(
            url=url or "",
            pattern=pattern,
            block_bytes=parse_block_size(given["block_size"] or "16k"),
            depth=given["depth"] or 1,
            processes=given["processes"],
            direct=given["direct"] is not False,
            cache=given["cache"] or "cold",
            engine=given["engine"] or "auto",
            seconds=seconds,
            scratch=scratch,
            scratch_bytes=parse_bytes(given["scratch_size"]),
            columns=[c.strip() for c in given["columns"].split(",") if c.strip()] if given["columns"] else None,
            samples_per_shard=given["samples_per_shard"],
            describe=given["describe"],
            output=given["output"],
            client=given["client"],
            storage_options=_options(given["storage_option"]),
        )


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    """Return ``key=value`` pairs as options; a value is JSON where it can be read as such."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            # The pair may hold a secret, so it is not repeated.
            raise UsageError("a --storage-option is not of the form KEY=VALUE", hint="write endpoint_url=http://...")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


@dataclass(frozen=True)
class StorageOutcome:
    """What was measured, and of what."""

    name: str
    """The URL as it may be shown."""
    jobs: list[StorageJob]
    facts: DatasetFacts | None
    interrupted: bool = False
    """Ctrl-C came: the jobs are those measured before."""


def run_storage(request: StorageRequest, progress: Progress | None = None) -> StorageOutcome:
    """Measure what was asked; keep the run file where that was asked, too.

    Raises:
        IoprobeError: see :func:`measure_dataset` and :func:`measure_block`.
    """
    if request.scratch is not None:
        with scratch_file(request.scratch, request.scratch_bytes, progress) as path:
            name = f"scratch file of {format_bytes(request.scratch_bytes)} in {request.scratch}"
            outcome = StorageOutcome(name, [_block(request, path, name, progress)], None)
    elif request.pattern == "dataset":
        outcome = _dataset(request, progress)
    else:
        outcome = StorageOutcome(redact_url(request.url), [_largest(request, progress)], None)
    if request.output is not None:
        _keep(request, outcome)
    return outcome


def _dataset(request: StorageRequest, progress: Progress | None) -> StorageOutcome:
    remote = local_path(request.url) is None
    name = redact_url(request.url)
    cores = max(1, math.floor(usable_cores().usable))
    # Through a store the headers would be read by a client that may wait for minutes; listing is bounded there.
    facts = None if remote else _facts(request.url)
    jobs: list[StorageJob] = []
    try:
        if remote:
            jobs = _objects(request, cores, progress, jobs)
        else:
            measure_dataset(
                request.url,
                seconds=request.seconds,
                concurrency=request.processes or cores,
                samples_per_shard=request.samples_per_shard,
                facts=facts,
                columns=request.columns,
                progress=progress,
                into=jobs,
            )
    except KeyboardInterrupt:
        if not jobs:
            raise
        return StorageOutcome(name, jobs, facts, interrupted=True)
    return StorageOutcome(name, jobs, facts)


def _objects(
    request: StorageRequest, cores: int, progress: Progress | None, into: list[StorageJob]
) -> list[StorageJob]:
    clients = _clients(request)
    found: list[list[StorageJob]] = []
    for client in clients:
        jobs: list[StorageJob] = []
        try:
            measure_objects(
                request.url,
                seconds=request.seconds / len(clients),
                concurrency=request.processes or cores,
                samples_per_shard=request.samples_per_shard,
                progress=progress,
                storage_options=request.storage_options,
                client=client,
                ladder=True,
                into=jobs,
            )
        except IoprobeError as error:
            if request.client != "auto" or not found:
                raise
            text = f"{client} could not be set beside it: {error.message}"
            found[0][0].caveats = [*found[0][0].caveats, Caveat("clients", text, "choose one with --client")]
        else:
            found.append(jobs)
        finally:
            into += jobs  # an interruption keeps them
    return found[0] if len(found) == 1 else side_by_side(found)


def _clients(request: StorageRequest) -> list[str]:
    """Return the clients to measure: the user's own, and the fastest beside it where it is installed and fits."""
    if request.client not in ("auto", "both"):
        return [request.client]
    scheme = request.url.partition("://")[0]
    fits = scheme in _OBSTORE_SCHEMES and _installed("obstore")
    return ["fsspec", "obstore"] if request.client == "both" or fits else ["fsspec"]


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _facts(url: str) -> DatasetFacts | None:
    """Return what headers say, or None for files of no known format: their bytes are measured all the same."""
    try:
        return describe(url)
    except IoprobeError:
        return None


def _largest(request: StorageRequest, progress: Progress | None) -> StorageJob:
    path = local_path(request.url)
    if path is None:
        raise UsageError(
            f"blocks of '{redact_url(request.url)}' cannot be read: it is no local file",
            hint="leave --pattern out: objects are read in ranges and as a whole",
        )
    if Path(path).exists() and not Path(path).is_dir():
        return _block(request, path, path, progress)
    files, _, _ = list_files(request.url)
    path, size = max(files, key=lambda file: file[1])
    job = _block(request, path, path, progress)
    text = f"blocks come from the largest of {len(files)} files, '{path}' ({format_bytes(size)})"
    job.caveats = [*job.caveats, Caveat("one-file", text, "leave --pattern out for the dataset's own reads")]
    return job


def _block(request: StorageRequest, path: str, name: str, progress: Progress | None) -> StorageJob:
    return measure_block(
        path,
        pattern=request.pattern,
        block_bytes=request.block_bytes,
        depth=request.depth,
        processes=request.processes or 1,
        direct=request.direct,
        seconds=request.seconds,
        cache=request.cache,
        engine=request.engine,
        name=name,
        progress=progress,
    )


def _keep(request: StorageRequest, outcome: StorageOutcome) -> None:
    assert request.output is not None
    run = Run(
        kind="storage",
        created_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        version=__version__,
        host=measure_host(),
        workload=Workload(target=outcome.name, seconds=request.seconds),
        dataset=outcome.facts,
        storage=outcome.jobs,
        complete=not outcome.interrupted,
    )
    write_atomic(request.output / "run.json", dumps(run))
