"""Object stores through the user's own client: whole objects, ranges, requests against concurrency."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ioprobe.data.braces import expand_braces
from ioprobe.errors import IoprobeError, MeasureError, StoreError, TargetError, UsageError
from ioprobe.probe.storage_crew import ChildError, Crew, Reply
from ioprobe.probe.storage_objects_words import (
    cpu_s_per_op,
    first_byte_s,
    get_caveats,
    is_flat,
    knee_caveat,
    knee_of,
    objects_window,
    scaling_caveat,
)
from ioprobe.probe.storage_series import latency_summary, slice_series
from ioprobe.run import Caveat, DatasetFacts, Failure, StorageJob
from ioprobe.secrets import redact_url
from ioprobe.units import format_bytes, format_count, format_seconds

_LIST_LIMIT_S = 8.0
_RANGE_BYTES = 16 << 10
_LADDER = (1, 2, 4, 8, 16, 32, 64)
_SHORT_LADDER = (1, 4, 16, 64)
_LONGEST_RUNG_S = 1.5

Progress = Callable[[str, float], None]

_HINTS = {
    "throttled": "lower the concurrency, or ask the store's owner for more",
    "denied": "check the credentials that the client finds: environment, profile, role; they may have expired",
    "tls": "give the client the CA of the server, such as AWS_CA_BUNDLE or SSL_CERT_FILE",
    "region": "set the bucket's region, such as AWS_DEFAULT_REGION",
    "missing": "check the bucket, the prefix and the endpoint",
    "timeout": "look whether the store and the network are up, and whether the endpoint is right",
    "refused": "check the endpoint and whether the store runs there",
    "cut": "look at the store's and any proxy's log",
    "short": "look at the store's and any proxy's log",
    "server": "look at the store's log",
    "client": "pip install 'ioprobe[s3]', or the package named",
    "other": "try the same URL with the client itself",
}


@dataclass(frozen=True)
class _Target:
    url: str
    protocol: str
    options: dict[str, Any]
    client: str

    @property
    def name(self) -> str:
        return redact_url(self.url)

    def job(self) -> dict[str, Any]:
        return {"protocol": self.protocol, "storage_options": self.options, "client": self.client}


@dataclass(frozen=True)
class _Listing:
    rows: list[tuple[str, int | None]]
    objects: int
    total_bytes: int
    list_s: float
    head_s: float | None
    client: str
    caveats: list[Caveat]

    @property
    def mean_bytes(self) -> float:
        sizes = [size for _, size in self.rows if size is not None]
        return float(np.mean(sizes)) if sizes else 0.0


def measure_objects(
    url: str,
    *,
    seconds: float,
    concurrency: int,
    samples_per_shard: float | None = None,
    facts: DatasetFacts | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    client: str = "fsspec",
    ladder: bool = False,
    into: list[StorageJob] | None = None,
) -> list[StorageJob]:
    """Read objects as a loader does, in processes that open and read one after another.

    Args:
        url: ``s3://``, ``gs://``, ``az://``, ``http(s)://``, ...: an object, braces, a glob or a prefix.
        seconds: Budget for the reads [s]; listing comes on top, bounded.
        concurrency: Reading processes.
        samples_per_shard: Samples of one object, for samples/s.
        facts: What is known of the dataset; gives the samples, too.
        progress: Told what is measured now.
        storage_options: For the client; sent to the children through a pipe, never stored or shown.
        client: ``fsspec`` (what the URL's scheme stands for) or ``obstore``.
        into: Where each job goes as soon as it is measured.
        ladder: Also ranges and whole GETs against concurrency, and several processes.

    Raises:
        TargetError: there is no such object, bucket or prefix.
        StoreError: the store refused, failed or does not answer.
        UsageError: the client's package is not installed.
    """
    say = progress or (lambda text, share: None)
    say("storage: listing", 0.0)
    with ObjectsProbe(url, storage_options, client=client, processes=max(1, min(concurrency, 32))) as probe:
        probe.samples_per_byte = _samples(facts, samples_per_shard, probe.listing)
        probe.allow(seconds)
        jobs: list[StorageJob] = [] if into is None else into
        jobs.append(probe.whole(seconds * (0.3 if ladder else 0.7), say))
        jobs[0].caveats = [*jobs[0].caveats, *probe.listing.caveats]
        if ladder and jobs[0].failure is None:
            probe.ladders(seconds * 0.7, say, jobs)
        elif jobs[0].failure is None:
            jobs.append(probe.get("range", 1, probe.processes, seconds * 0.3))
        return jobs


def _client_fault(error: ChildError) -> str:
    # Import errors name a package; anything else might repeat an option with a secret in it.
    return error.text if "module" in error.text.lower() or "install" in error.text.lower() else "its options are wrong"


def _samples(facts: DatasetFacts | None, per_shard: float | None, listing: _Listing) -> float | None:
    """Return the samples of one byte, or None where nothing tells."""
    if facts is not None and facts.num_samples and facts.total_bytes:
        return facts.num_samples / facts.total_bytes
    return per_shard / listing.mean_bytes if per_shard and listing.mean_bytes else None


def store_error(target_name: str, failed: Mapping[str, Any]) -> IoprobeError:
    """Return the error that a store's refusal means, in one line."""
    kind = failed["kind"]
    where = redact_url(failed.get("path") or target_name)
    message = f"cannot read '{where}': {failed['text']}"
    if kind == "missing":
        return TargetError(message, hint=_HINTS[kind])
    return StoreError(message, hint=_HINTS[kind])


def _list(target: _Target, crew: Crew) -> _Listing:
    patterns = expand_braces(target.url)
    try:
        # The first child lists; the others are told to look at nothing.
        commands: list[dict[str, Any]] = [{"patterns": patterns}, *[{"patterns": []} for _ in range(crew.size - 1)]]
        reply = crew.round({"do": "list", "url": target.name}, _LIST_LIMIT_S, each=commands)[0]
        if reply.facts["failed"]:
            raise store_error(target.name, reply.facts["failed"])
        facts = reply.facts
        rows = [(path, size) for path, size in facts["rows"] if size != 0]
        if not rows:
            what = "only objects of zero bytes" if facts["rows"] else "no object"
            raise TargetError(f"cannot read '{target.name}': {what} there", hint=_HINTS["missing"])
        some = [path for path, _ in random.sample(rows, min(4, len(rows)))]
        heads = crew.round({"do": "head", "url": target.name, "paths": some}, 2.0)[0]
    except MeasureError:
        raise StoreError(
            f"cannot list '{target.name}': the store does not answer within {format_seconds(_LIST_LIMIT_S)}",
            hint=_HINTS["timeout"],
        ) from None
    times = heads.column("latency_ns")
    caveats = []
    if facts["cut"]:
        text = f"listing stopped after {facts['list_s']:.1f} s at {format_count(facts['objects'])} keys"
        caveats.append(Caveat("listing-cut", text, "name the shards with braces instead of listing a prefix"))
    zero = len(facts["rows"]) - len(rows)
    if zero:
        caveats.append(Caveat("empty-files", f"{zero} objects have zero bytes", "write them again"))
    head_s = float(np.median(times)) / 1e9 if times.size else None
    return _Listing(rows, facts["objects"], facts["bytes"], facts["list_s"], head_s, facts["client"], caveats)


class ObjectsProbe:
    """Processes with a client each, and what is there to read. A context manager.

    Args:
        url: See :func:`measure_objects`.
        storage_options: For the client.
        client: ``fsspec`` or ``obstore``.
        processes: How many processes stand ready.

    Raises:
        TargetError, StoreError, UsageError: see :func:`measure_objects`.
    """

    def __init__(
        self, url: str, storage_options: Mapping[str, Any] | None = None, *, client: str = "fsspec", processes: int = 1
    ) -> None:
        scheme = url.partition("://")[0]
        self.target = _Target(url, scheme, dict(storage_options or {}), client)
        if "::" in scheme:
            raise UsageError(f"'{self.target.name}' is a chain of file systems", hint="name the store itself")
        if scheme == "memory":
            raise UsageError(
                f"'{self.target.name}' lives in one process only: other processes cannot read it",
                hint="write it to a folder such as /dev/shm",
            )
        self.processes = processes
        self.samples_per_byte: float | None = None
        self.dealt = False
        self.until = math.inf
        try:
            self.crew = Crew("objects", [self.target.job() for _ in range(processes)])
        except ChildError as error:
            raise UsageError(
                f"the client for '{self.target.name}' cannot be used: {_client_fault(error)}", hint=_HINTS["client"]
            ) from None
        try:
            self.listing = _list(self.target, self.crew)
        except BaseException:
            self.crew.close()
            raise

    def __enter__(self) -> ObjectsProbe:
        return self

    def __exit__(self, *exc: object) -> None:
        self.crew.close()

    def allow(self, seconds: float) -> None:
        """Measure rungs of slow answers longer for as many seconds from now."""
        self.until = time.monotonic() + seconds

    def _time_left(self, seconds: float) -> bool:
        return seconds < _LONGEST_RUNG_S and time.monotonic() < self.until

    def whole(self, seconds: float, say: Progress) -> StorageJob:
        """Open and read whole objects, one after another in each process: what loaders do."""
        say("storage: whole objects", 0.1)
        job = self.get("open", 1, self.processes, seconds)
        job.list_s, job.open_s = self.listing.list_s, self.listing.head_s
        job.caveats = self._request_costs(job)
        return job

    def ladders(self, seconds: float, say: Progress, jobs: list[StorageJob]) -> None:
        """Add ranges and whole GETs against requests in flight; then the knee in several processes."""
        levels = _LADDER if seconds >= 8 else _SHORT_LADDER
        each = seconds / (2 * len(levels) + 1)
        for number, mode in enumerate(("range", "whole")):
            rungs: list[StorageJob] = []
            for place, threads in enumerate(levels):
                say(f"storage: {mode} GETs, {threads} in flight", 0.3 + 0.3 * number + 0.3 * place / len(levels))
                rungs.append(self.get(mode, threads, 1, each))
                jobs.append(rungs[-1])
                if rungs[-1].failure is not None or is_flat(rungs):
                    break
            knee = knee_of(rungs)
            if knee is not None:
                rungs[-1].caveats = [*rungs[-1].caveats, knee_caveat(rungs, knee)]
            if rungs[-1].failure is not None:
                return
        if self.processes > 1 and knee is not None:
            jobs.append(self.get("whole", knee.depth, self.processes, each))
            jobs[-1].caveats = [*jobs[-1].caveats, scaling_caveat(knee, jobs[-1])]

    def get(self, mode: str, threads: int, processes: int, seconds: float) -> StorageJob:
        """Measure one mode at one concurrency; the other children wait."""
        sizes = [size for _, size in self.listing.rows if size]
        range_bytes = min([_RANGE_BYTES, *sizes])
        command = {"do": "get", "mode": mode, "range_bytes": range_bytes, "seed": time.perf_counter_ns() % (1 << 30)}
        each = []
        for number in range(self.crew.size):
            busy = {"threads": threads if number < processes else 0}
            each.append(busy if self.dealt else {**busy, "items": self.listing.rows[number :: self.crew.size]
                                                 or self.listing.rows})  # fmt: skip
        self.dealt = True
        try:
            replies = self.crew.round(command, seconds, each=each)[:processes]
        except MeasureError as error:
            return self._job(mode, threads, processes, [], range_bytes, error)
        job = self._job(mode, threads, processes, replies, range_bytes, None)
        if job.failure is None and job.ops < 3 * threads * processes and self._time_left(seconds):
            # Slow answers: a rung needs a few of each request to say anything.
            return self.get(mode, threads, processes, min(3 * seconds, _LONGEST_RUNG_S))
        return job

    def _job(
        self,
        mode: str,
        threads: int,
        processes: int,
        replies: Sequence[Reply],
        range_bytes: int,
        died: MeasureError | None,
    ) -> StorageJob:
        window = objects_window(replies, threads)
        windows = [window] if window is not None else []
        nbytes = sum(int(w.nbytes.sum()) for w in windows)
        what = {"open": "objects opened and read", "range": f"ranges of {format_bytes(range_bytes)}"}
        title = what.get(mode, "whole GETs")
        flight = f" x{threads}" + (f" in {processes} processes" if processes > 1 else "")
        failed = next((r.facts["failed"] for r in replies if r.facts["failed"]), None)
        job = StorageJob(
            name=title + flight,
            url=self.target.name,
            pattern="objects",
            block_bytes=range_bytes if mode == "range" else round(self.listing.mean_bytes) or None,
            depth=threads,
            processes=processes,
            ops=sum(w.ops for w in windows),
            bytes_read=nbytes,
            window_s=sum(w.seconds for w in windows),
            latency_s=latency_summary(windows),
            series_ops_per_s=slice_series(windows, ops=True)[0].tolist(),
            series_bytes_per_s=slice_series(windows)[0].tolist(),
            first_byte_s=first_byte_s(replies) if mode == "range" else None,
            client=self.listing.client,
            cpu_s_per_op=cpu_s_per_op(replies),
            retries=sum(r.facts["retries"] for r in replies),
            throttled=sum(r.facts["throttled"] for r in replies),
            used_bytes=nbytes if mode == "range" else None,
            stopped_because="failed" if failed or died else "seconds",
        )
        if self.samples_per_byte is not None and mode != "range":
            job.samples = round(nbytes * self.samples_per_byte) or None
        if died is not None:
            job.failure = Failure(
                phase="storage", kind="hang", message="the store does not answer", hint=_HINTS["timeout"]
            )
        elif failed is not None:
            error = store_error(self.target.name, failed)
            job.failure = Failure(phase="storage", kind="exception", message=error.message, hint=error.hint)
        job.caveats = get_caveats(job, replies)
        return job

    def _request_costs(self, job: StorageJob) -> list[Caveat]:
        head_s = self.listing.head_s
        if head_s is None or not job.latency_s:
            return job.caveats
        text = (
            f"through {self.listing.client} a HEAD costs {format_seconds(head_s)}, opening and reading a whole object "
            f"{format_seconds(job.latency_s['p50'])}; listing {format_count(self.listing.objects)} objects "
            f"({format_bytes(self.listing.total_bytes)}) took {format_seconds(self.listing.list_s)}"
        )
        return [*job.caveats, Caveat("request-costs", text, "use larger shards to pay them less often")]
