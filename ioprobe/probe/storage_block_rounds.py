"""Rounds of block reads: prepare the cache, read, add up, judge."""

from __future__ import annotations

import random
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ioprobe.probe import pagecache
from ioprobe.probe.engines.common import BINS_PER_OCTAVE, SLICE_NS
from ioprobe.probe.storage_ceiling import TOOL_LIMITED, marks_total, read_through
from ioprobe.probe.storage_crew import ChildError, Crew, Reply, Watch
from ioprobe.probe.storage_place import Place, network_caveat, not_dropped_caveat, shown
from ioprobe.probe.storage_series import narrow_enough, scaled_to_window
from ioprobe.run import Caveat, Failure, StorageJob
from ioprobe.units import format_bytes, format_count, format_share

RAMP_S = 0.3
_WARM_BYTES = 1 << 30
_POINTS = 120

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Ask:
    """What is to be read, and how."""

    path: str
    pattern: str
    block_bytes: int
    depth: int
    processes: int
    direct: bool
    seconds: float
    cache: str


class Measurement:
    """One pattern at one depth, in as many rounds as the time allows."""

    def __init__(
        self,
        ask: Ask,
        size_bytes: int,
        place: Place,
        direct: bool,
        engine: str,
        ceiling: float | None,
        crew: Crew,
        caveats: list[Caveat],
        name: str,
    ) -> None:
        self.ask, self.place, self.direct, self.engine = ask, place, direct, engine
        self.ceiling, self.crew, self.caveats, self.url = ceiling, crew, caveats, name
        self.state = "direct" if direct else ask.cache
        limit = _WARM_BYTES if self.state == "warm" else size_bytes
        self.size_bytes = max(ask.block_bytes, min(size_bytes, limit))
        self.seed = random.SystemRandom().randrange(1 << 30)
        self.series: list[float] = []
        self.slice_s = SLICE_NS / 1e9
        self.ops = 0
        self.window_s = 0.0
        self.bins: dict[int, int] = {}
        self.max_ns = 0
        self.cpu_s, self.cpu_ops = 0.0, 0
        self.device_bytes: int | None = 0
        self.all_ops = 0  # ramp included: the device counts it, too
        self.before: float | None = None
        self.stopped = "seconds"
        self.failure: Failure | None = None
        self.rounds = 0

    def run(self, say: Progress) -> StorageJob:
        """Measure until the time is used up or the interval is narrow."""
        title = f"storage: {self._title()}"
        while self.window_s < self.ask.seconds - 0.02 and self.rounds < 200:
            say(title, self.window_s / self.ask.seconds)
            self._prepare()
            try:
                exhausted = self._round(self.ask.seconds - self.window_s)
            except ChildError as error:
                self.failure = self._failed(error)
                break
            self.rounds += 1
            rates = np.array(self.series)
            if self.window_s > 0.5 and narrow_enough(rates, np.full(rates.size, 1.0)):
                self.stopped = "interval"
            if not exhausted or self.stopped == "interval":
                break
        say(title, 1.0)
        return self._job()

    def _prepare(self) -> None:
        if self.state == "warm":
            read_through(self.ask.path, self.size_bytes)
        elif self.state == "cold":
            dropped = pagecache.drop([self.ask.path])
            if dropped.after is None or dropped.after > 0.05:
                if not self.place.in_memory and self.rounds == 0:
                    self.caveats.append(not_dropped_caveat(self.place, dropped.after, dropped.reason))
            elif self.place.remote and self.rounds == 0:
                self.caveats.append(network_caveat(self.place))
        if self.rounds == 0:
            self.before = self._resident()

    def _resident(self) -> float | None:
        return pagecache.span_residency([(self.ask.path, 0, self.size_bytes)]).share

    def _round(self, seconds: float) -> bool:
        """Measure once; return whether a single cold pass ended before the time did."""
        ramp_s = 0.0 if self.state == "cold" else RAMP_S
        command = {
            "path": self.ask.path,
            "block_bytes": self.ask.block_bytes,
            "size_bytes": self.size_bytes,
            "random": self.ask.pattern == "random",
            "direct": self.direct,
            "once": self.state == "cold",
            "advise": True,
            "seed": self.seed + self.rounds,
            "ramp_ns": int(ramp_s * 1e9),
        }
        counter = pagecache.DeviceBytes(self.ask.path)
        replies = self.crew.round(command, ramp_s + max(0.1, seconds), self._watch(ramp_s))
        if self.crew.board.stopped:
            self.stopped = "interval"
        self._add(replies, counter)
        return any(r.facts["exhausted"] for r in replies)

    def _watch(self, ramp_s: float) -> Watch:
        seen: list[tuple[float, int]] = []

        def watch(elapsed_s: float, ops: int, nbytes: int) -> bool:
            if elapsed_s < ramp_s:
                return False
            seen.append((elapsed_s, ops))
            if elapsed_s < ramp_s + 1.0 or len(seen) < 16:
                return False
            times, totals = np.array(seen).T
            return narrow_enough(np.diff(totals) / np.diff(times), np.diff(times))

        return watch

    def _add(self, replies: list[Reply], counter: pagecache.DeviceBytes) -> None:
        marks = marks_total(replies)
        if marks.size >= 3:
            steps = np.diff(marks)
            self.series += (steps / self.slice_s).tolist()
            self.ops += int(steps.sum())
            self.window_s += steps.size * self.slice_s
        elif replies:  # over before the grid says anything: the whole round counts
            ops = sum(int(r.facts["ops"]) for r in replies)
            elapsed_s = max(r.facts["elapsed_ns"] for r in replies) / 1e9
            if ops and elapsed_s > 0:
                self.series.append(ops / elapsed_s)
                self.ops += ops
                self.window_s += elapsed_s
        self.all_ops += sum(int(r.facts["ops"]) for r in replies)
        for reply in replies:
            counts = zip(reply.column("latency_bins").tolist(), reply.column("latency_counts").tolist(), strict=True)
            for key, count in counts:
                self.bins[key] = self.bins.get(key, 0) + count
            self.max_ns = max(self.max_ns, reply.facts["max_ns"])
            if reply.facts["cpu_s"] is not None:
                self.cpu_s += reply.facts["cpu_s"]
                self.cpu_ops += reply.facts["cpu_ops"]
        told = [reply.facts["device_bytes"] for reply in replies]
        device = counter.since() if None in told else sum(told)
        self.device_bytes = None if device is None or self.device_bytes is None else self.device_bytes + device

    def _failed(self, error: ChildError) -> Failure:
        where = shown(self.url)
        return Failure(
            phase="storage",
            kind="exception",
            message=f"cannot read '{where}': {error.text}",
            where=where,
            hint="look at the file and, with 'dmesg', at the device",
        )

    def _title(self) -> str:
        many = f" in each of {self.ask.processes} processes" if self.ask.processes > 1 else ""
        return f"{self.ask.pattern} {format_bytes(self.ask.block_bytes)} x{self.ask.depth}{many} {self.state}"

    def _job(self) -> StorageJob:
        after = None if self.failure else self._resident()
        series = _regroup(self.series, _POINTS)
        job = StorageJob(
            name=self._title(),
            url=shown(self.url),
            pattern=self.ask.pattern,
            block_bytes=self.ask.block_bytes,
            depth=self.ask.depth,
            processes=self.ask.processes,
            direct=self.direct,
            ops=self.ops,
            bytes_read=self.ops * self.ask.block_bytes,
            window_s=self.window_s,
            latency_s=percentiles_of_bins(self.bins, self.max_ns),
            series_ops_per_s=series,
            series_bytes_per_s=[rate * self.ask.block_bytes for rate in series],
            cache_state=self._cache_state(),
            resident_before=self.before,
            resident_after=after,
            device_read_bytes=scaled_to_window(self.device_bytes, self.ops, self.all_ops),
            engine=self.engine,
            engine_ceiling_ops_per_s=self.ceiling,
            cpu_s_per_op=self.cpu_s / self.cpu_ops if self.cpu_ops else None,
            stopped_because="failed" if self.failure else self.stopped,
            caveats=self.caveats,
            failure=self.failure,
        )
        job.caveats = [*self.caveats, *self._judge(job)]
        return job

    def _cache_state(self) -> str:
        if self.direct:
            return "warm" if self.place.in_memory else "direct"
        if self.before is None:
            return "unknown"
        if self.before >= 0.95:
            return "warm"
        return "cold" if self.before <= 0.05 else "mixed"

    def _judge(self, job: StorageJob) -> list[Caveat]:
        found = []
        rate = job.ops / job.window_s if job.window_s else 0.0
        if self.ceiling and rate >= TOOL_LIMITED * self.ceiling:
            text = (
                f"limited by the tool: {format_count(rate)} reads/s are {format_share(rate / self.ceiling)} of what "
                f"{self.engine} reaches here on memory; the storage may be faster"
            )
            found.append(Caveat("tool-limited", text, "use more processes or larger blocks"))
        blocks = self.size_bytes // self.ask.block_bytes
        if self.direct and job.ops > blocks:
            text = (
                f"each of the {format_count(blocks)} blocks was read {job.ops / blocks:.1f} times: "
                "caches below this host may have served some"
            )
            found.append(Caveat("file-small", text, "measure a larger file, or use --scratch with a large size"))
        info = Path(self.ask.path).stat()
        if stat.S_ISREG(info.st_mode) and info.st_blocks * 512 < info.st_size / 2 and not self.place.in_memory:
            text = (
                f"the file is sparse: {format_bytes(info.st_blocks * 512)} on disk for {format_bytes(info.st_size)}; "
                "holes cost the storage nothing, so the figure is too good"
            )
            found.append(Caveat("sparse-files", text, "measure a file that holds real data"))
        return found


def _regroup(series: list[float], most: int) -> list[float]:
    """Return a series of equal slices joined to at most so many points."""
    if len(series) <= most:
        return series
    width = -(-len(series) // most)
    whole = len(series) // width * width
    return [float(v) for v in np.array(series[:whole]).reshape(-1, width).mean(axis=1)]


def percentiles_of_bins(bins: dict[int, int], max_ns: int) -> dict[str, float]:
    """Return ``p50 p95 p99 p999 max`` [s] from a logarithmic histogram; empty for an empty one."""
    total = sum(bins.values())
    if total == 0:
        return {}
    keys = np.array(sorted(bins))
    upto = np.cumsum([bins[k] for k in keys.tolist()])
    middle = 2.0 ** ((keys + 0.5) / BINS_PER_OCTAVE) / 1e9
    found = {}
    for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
        found[label] = min(float(middle[np.searchsorted(upto, share * total)]), max_ns / 1e9)
    return {**found, "max": max_ns / 1e9}
