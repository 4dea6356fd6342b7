"""Storage alone: the dataset's own reads at the loader's concurrency, cold and warm kept apart.

``measure_dataset`` replays what a loader reads; ``measure_block`` (in
``storage_block``) reads fixed blocks as fio does. Both return
:class:`ioprobe.run.StorageJob`, raw enough to be analysed again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ioprobe.data.shards import local_path
from ioprobe.errors import StoreError
from ioprobe.probe import pagecache
from ioprobe.probe.host import memory
from ioprobe.probe.storage_crew import Crew, Reply, Watch
from ioprobe.probe.storage_members import members_of
from ioprobe.probe.storage_objects import measure_objects
from ioprobe.probe.storage_place import (
    Place,
    fits_in_memory_caveat,
    memory_caveat,
    network_caveat,
    not_dropped_caveat,
    place_of,
    shown,
)
from ioprobe.probe.storage_plan import Item, Plan, plan_dataset
from ioprobe.probe.storage_series import (
    Window,
    latency_summary,
    narrow_enough,
    replies_window,
    scaled_to_window,
    slice_series,
)
from ioprobe.run import Caveat, DatasetFacts, Failure, StorageJob
from ioprobe.units import format_bandwidth

Progress = Callable[[str, float], None]
"""Called with what is measured now and the share done [fraction]."""

MOST_PROCESSES = 64
_WARM_BYTES = 4 << 30
_COLD_ENOUGH, _WARM_ENOUGH = 0.05, 0.95
_LEAST_WINDOW_S = 0.3


def _bytes_per_s(job: StorageJob) -> float | None:
    return job.bytes_read / job.window_s if job.bytes_read and job.window_s > 0 else None


def measure_dataset(
    url: str,
    *,
    seconds: float,
    concurrency: int,
    samples_per_shard: float | None = None,
    facts: DatasetFacts | None = None,
    columns: Sequence[str] | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    into: list[StorageJob] | None = None,
) -> list[StorageJob]:
    """Replay the dataset's own reads, without decoding, cold, then warm, then single samples at random.

    Args:
        url: Dataset: path, braces, glob, folder, or an object-store URL.
        seconds: Budget for all of it [s].
        concurrency: Reading processes, as many as the loader has workers; 0 counts as 1.
        samples_per_shard: Gives samples/s where facts are not at hand.
        facts: What headers say of the dataset.
        columns: Parquet columns that the loader reads; None means all.
        progress: Told what is measured now.
        storage_options: For the object-store client; never stored.
        into: Where each job goes as soon as it is measured, so that an interruption keeps the earlier ones.

    Returns:
        Jobs in the order measured; a job with ``failure`` keeps what it measured before.

    Raises:
        TargetError: nothing is there.
        StoreError: it may not be read.
        MeasureError: the storage does not answer, or a measuring process died.
    """
    if local_path(url) is None:
        return measure_objects(
            url,
            seconds=seconds,
            concurrency=concurrency,
            samples_per_shard=samples_per_shard,
            facts=facts,
            progress=progress,
            storage_options=storage_options,
            into=into,
        )
    seed = random.SystemRandom().randrange(1 << 30)  # a fixed order would meet what the host cached last time
    plan = plan_dataset(url, facts=facts, samples_per_shard=samples_per_shard, columns=columns, seed=seed)
    place = place_of(plan.paths[0])
    _readable(plan)
    say = progress or (lambda text, share: None)
    members = members_of(plan, seed)
    shares = plan.shares(max(1, min(concurrency, MOST_PROCESSES)), seed)
    jobs: list[StorageJob] = [] if into is None else into
    cold_share = 0.0 if place.in_memory else (0.45 if members else 0.65)
    with Crew("replay", [{"items": share, "chunk_bytes": plan.chunk_bytes} for share in shares]) as crew:
        if cold_share:
            tell = _within(say, f"storage: {_TITLES[plan.pattern]}, cold", 0.0, cold_share)
            cold = _Phase(plan, place, crew, shares, seconds * cold_share, "cold", tell).run()
            jobs.append(cold.job)
        tell = _within(say, f"storage: {_TITLES[plan.pattern]}, warm", cold_share, 0.25)
        upto = cold.reached if cold_share else [len(s) for s in shares]
        jobs.append(_Phase(plan, place, crew, shares, seconds * 0.25, "warm", tell, upto).run().job)
    if members is not None and cold_share:
        tell = _within(say, "storage: single samples at random, cold", cold_share + 0.25, 0.25)
        shares = members.shares(max(1, min(concurrency, MOST_PROCESSES)), seed)
        with Crew("replay", [{"items": share, "chunk_bytes": members.chunk_bytes} for share in shares]) as crew:
            jobs.append(_Phase(members, place, crew, shares, seconds * 0.25, "cold", tell).run().job)
            jobs[-1].caveats = [*members.caveats, *jobs[-1].caveats]
    say("storage", 1.0)
    _add_dataset_caveats(plan, place, jobs, concurrency)
    return jobs


Tell = Callable[[float], None]


def _within(say: Progress, text: str, begin: float, share: float) -> Tell:
    """Return how a phase tells its own share done, as a part of the whole."""
    say(text, begin)
    return lambda done: say(text, begin + share * min(1.0, done))


_TITLES = {
    "shards": "shards in sequence",
    "row-groups": "row groups",
    "files": "whole files",
    "random": "random reads",
    "members": "single samples at random",
}


def _readable(plan: Plan) -> None:
    try:
        os.close(os.open(plan.paths[0], os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise StoreError(
            f"cannot read '{plan.paths[0]}': {error.strerror}", hint="check its permissions, or run as its owner"
        ) from None


@dataclass
class _Phase:
    """One cache state of one plan: rounds until the time is used up or the interval is narrow."""

    plan: Plan
    place: Place
    crew: Crew
    shares: list[list[Item]]
    seconds: float
    state: str
    tell: Tell
    upto: list[int] | None = None
    reached: list[int] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    device_bytes: int | None = 0
    round_bytes: int = 0
    """Read in all rounds, ramps and tails included; the device counts those, too."""
    residents: list[float] = field(default_factory=list)
    resident_after: float | None = None
    drop_reason: str = ""
    stopped: str = "seconds"
    began: float = 0.0

    def run(self) -> _Phase:
        self.began = time.monotonic()
        until = self.began + self.seconds
        if self.state == "warm":
            self._round(self.seconds * 0.4, keep=False)
        while True:
            left = until - time.monotonic()
            if self.windows and left < 0.02:
                break
            if self.state == "cold":
                self._drop()
            else:
                self._note(pagecache.span_residency(self._spans()).share)
            # Dropping costs time, too; a round that is too short to say anything is not worth it.
            if not self._round(max(0.1, min(self.seconds, until - time.monotonic())), keep=True):
                break
            enough = len(self.windows) >= 5 and sum(w.seconds for w in self.windows) >= _LEAST_WINDOW_S
            if enough and narrow_enough(*slice_series(self.windows)):
                self.stopped = "interval"
                break
        self.resident_after = pagecache.span_residency(self._spans()).share
        return self

    def _drop(self) -> None:
        dropped = pagecache.drop(self.plan.paths)
        self.drop_reason = self.drop_reason or dropped.reason
        self._note(dropped.after)

    def _note(self, share: float | None) -> None:
        if share is not None:
            self.residents.append(share)

    def _spans(self) -> list[pagecache.Span]:
        ends = self.reached or self.upto or [len(s) for s in self.shares]
        return [
            (path, offset, length)
            for share, end in zip(self.shares, ends, strict=True)
            for path, ranges in share[: min(end, 20_000)]
            for offset, length in ranges
        ]

    def _round(self, seconds: float, *, keep: bool) -> bool:
        """Measure once; return whether another round makes sense."""
        commands = self._warm_limits() if self.state == "warm" else None
        counter = pagecache.DeviceBytes(self.plan.paths[0])
        replies = self.crew.round({"rewind": True}, seconds, self._watch() if keep else None, each=commands)
        if not keep:
            return True
        self.reached = [max(1, r.facts["next_item"]) for r in replies]
        for reply in replies:
            self.errors += reply.facts["errors"]
            self.round_bytes += int(reply.column("nbytes").sum())
            self.opened += (reply.column("open_ns") / 1e9).tolist()
            self.first += (reply.column("first_ns") / 1e9).tolist()
        self._add_device_bytes(replies, counter)
        window = replies_window(replies)
        if window is not None:
            self.windows.append(window)
        if self.crew.board.stopped:
            self.stopped = "interval"
        if window is None or self.errors:
            return False
        return all(r.facts["exhausted"] for r in replies) or (self.state == "warm" and self.stopped != "interval")

    def _warm_limits(self) -> list[dict[str, Any]]:
        limits = []
        room = _WARM_BYTES // len(self.shares)
        for share, end in zip(self.shares, self.upto or [len(s) for s in self.shares], strict=True):
            count = total = 0
            for _, ranges in share[:end]:
                total += sum(length for _, length in ranges)
                if count and total > room:
                    break
                count += 1
            limits.append({"upto": count})
        return limits

    def _watch(self) -> Watch:
        seen: list[tuple[float, int]] = []

        def watch(elapsed_s: float, ops: int, nbytes: int) -> bool:
            self.tell((time.monotonic() - self.began) / self.seconds)
            seen.append((elapsed_s, nbytes))
            if elapsed_s < 1.0 or len(seen) < 12:
                return False
            times, totals = np.array(seen).T
            return narrow_enough(np.diff(totals) / np.diff(times), np.diff(times))

        return watch

    def _add_device_bytes(self, replies: list[Reply], counter: pagecache.DeviceBytes) -> None:
        found = [r.facts["device_bytes"] for r in replies]
        total = counter.since() if None in found else sum(found)
        self.device_bytes = None if total is None or self.device_bytes is None else self.device_bytes + total

    @property
    def job(self) -> StorageJob:
        nbytes = sum(int(w.nbytes.sum()) for w in self.windows)
        plan = self.plan
        resident = max(self.residents) if self.residents and self.state == "cold" else None
        if self.state == "warm" and self.residents:
            resident = min(self.residents)
        samples = plan.samples and plan.planned_bytes and round(nbytes * plan.samples / plan.planned_bytes)
        job = StorageJob(
            name=f"{_TITLES[plan.pattern]}, {self.state}",
            url=shown(plan.url),
            pattern=plan.pattern,
            block_bytes=plan.sample_bytes if plan.pattern in ("random", "members") else plan.chunk_bytes,
            processes=len(self.shares),
            ops=sum(w.ops for w in self.windows),
            bytes_read=nbytes,
            window_s=sum(w.seconds for w in self.windows),
            latency_s=latency_summary(self.windows),
            series_ops_per_s=slice_series(self.windows, ops=True)[0].tolist(),
            series_bytes_per_s=slice_series(self.windows)[0].tolist(),
            samples=samples if samples else None,
            open_s=float(np.median(self.opened)) if self.opened else None,
            first_byte_s=float(np.median(self.first)) if self.first else None,
            list_s=plan.list_s,
            cache_state=self._cache_state(resident),
            resident_before=resident,
            resident_after=self.resident_after,
            device_read_bytes=scaled_to_window(self.device_bytes, nbytes, self.round_bytes),
            engine="preadv",
            used_bytes=None if plan.used_share is None else round(nbytes * plan.used_share),
            stopped_because=self.stopped,
            failure=self._failure(),
        )
        job.caveats = self._caveats(job, resident)
        return job

    def _cache_state(self, resident: float | None) -> str:
        if resident is None:
            return "unknown"
        if self.state == "cold":
            return "cold" if resident <= _COLD_ENOUGH else "mixed"
        return "warm" if resident >= _WARM_ENOUGH else "mixed"

    def _failure(self) -> Failure | None:
        if not self.errors:
            return None
        first = {name: shown(str(value)) for name, value in self.errors[0].items()}
        return Failure(
            phase="storage",
            kind="exception",
            message=f"cannot read '{first['path']}': {first['text']}",
            where=first["path"],
            hint="look at the file; the figures cover only what was read before",
        )

    def _caveats(self, job: StorageJob, resident: float | None) -> list[Caveat]:
        caveats = []
        if self.place.in_memory:
            caveats.append(memory_caveat(self.place))
        if self.state == "cold" and (resident is None or resident > _COLD_ENOUGH):
            caveats.append(not_dropped_caveat(self.place, resident, self.drop_reason))
        if self.state == "cold" and self.place.remote:
            caveats.append(network_caveat(self.place))
        if self.state == "cold" and len(self.windows) >= 3:
            first, *rest = [w.nbytes.sum() / w.seconds for w in self.windows]
            if np.median(rest) > 1.3 * first:
                text = (
                    f"read {len(self.windows)} times because it is small; later reads were "
                    f"{np.median(rest) / first:.1f}x as fast as the first ({format_bandwidth(first)}): "
                    "a cache below this host serves them"
                )
                caveats.append(Caveat("cache-below", text, "measure a dataset larger than that cache"))
        return caveats


def _add_dataset_caveats(plan: Plan, place: Place, jobs: list[StorageJob], concurrency: int) -> None:
    """Put what holds for the whole dataset on the first job."""
    caveats = list(plan.caveats)
    available = memory()[1]
    rates = {job.cache_state: _bytes_per_s(job) for job in jobs if job.pattern == plan.pattern}
    if not place.in_memory and available is not None and plan.file_bytes < 0.8 * available:
        cold, warm = rates.get("cold"), rates.get("warm")
        caveats.append(fits_in_memory_caveat(plan.file_bytes, available, cold, warm))
    if len(plan.groups) < concurrency:
        what = {"shards": "shards", "row-groups": "row groups"}.get(plan.pattern, "pieces")
        text = f"{len(plan.groups)} {what} for {concurrency} workers: only {len(plan.groups)} read at a time"
        caveats.append(Caveat("few-shards", text, "write more, smaller shards"))
    jobs[0].caveats = jobs[0].caveats + caveats
