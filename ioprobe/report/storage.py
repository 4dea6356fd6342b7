"""Storage jobs as a table for people and as an object for scripts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import msgspec

from ioprobe.diagnosis.storage import bytes_per_s, ops_per_s, read_amplification, samples_per_s
from ioprobe.report.words import clean
from ioprobe.run import Caveat, DatasetFacts, StorageJob
from ioprobe.stats import Estimate
from ioprobe.units import (
    NOT_MEASURED,
    format_bandwidth,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_share,
)

SCHEMA = 1
"""Of the JSON object."""


def as_object(url: str, jobs: Sequence[StorageJob], facts: DatasetFacts | None = None) -> dict[str, Any]:
    """Return what ``ioprobe storage --format json`` prints."""
    return {
        "schema": SCHEMA,
        "kind": "storage",
        "url": url,
        "dataset": None if facts is None else msgspec.to_builtins(facts),
        "jobs": [job_object(job) for job in jobs],
        "caveats": msgspec.to_builtins(all_caveats(jobs)),
    }


def job_object(job: StorageJob) -> dict[str, Any]:
    """Return one job: raw fields, with the rates as estimates and the cache as one object."""
    raw: dict[str, Any] = msgspec.to_builtins(job)
    cache = {
        "state": raw.pop("cache_state"),
        "resident_before": raw.pop("resident_before"),
        "resident_after": raw.pop("resident_after"),
        "device_bytes": raw.pop("device_read_bytes"),
    }
    return {
        "name": raw.pop("name"),
        "engine": raw.pop("engine"),
        "iops": _estimate(ops_per_s(job)),
        "bytes_per_s": _estimate(bytes_per_s(job)),
        "samples_per_s": _estimate(samples_per_s(job)),
        "latency_s": raw.pop("latency_s") or None,
        "cache": cache,
        "read_amplification": read_amplification(job),
        **raw,
    }


def _estimate(value: Estimate | None) -> dict[str, Any] | None:
    return None if value is None else {"value": value.value, "low": value.low, "high": value.high, "n": value.n}


def all_caveats(jobs: Sequence[StorageJob]) -> list[Caveat]:
    """Return the jobs' caveats, each once, in order."""
    return list({(c.code, c.text): c for job in jobs for c in job.caveats}.values())


def render_text(
    url: str,
    jobs: Sequence[StorageJob],
    facts: DatasetFacts | None = None,
    *,
    width: int = 100,
    color: bool = False,
) -> str:
    """Return the table, the costs beside it, and the caveats."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    console.print(f"[bold]Storage[/bold]  {escape(url)}", soft_wrap=True)
    if facts is not None:
        console.print(escape(_facts_line(facts)), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("what", style="bold")
    for title in ("samples/s", "reads/s", "bandwidth", "p50", "p99", "cache"):
        table.add_column(title, justify="right" if title != "cache" else "left", no_wrap=True)
    for job in jobs:
        table.add_row(escape(job.name), *[escape(cell) for cell in _cells(job)])
    console.print(table)
    for job in jobs:
        for line in _beside(job):
            console.print(escape(line), soft_wrap=True)
    failures = [job.failure for job in jobs if job.failure is not None]
    for failure in failures:
        console.print(f"[red]Failed:[/red] {escape(failure.message)}. {escape(failure.hint)}", soft_wrap=True)
    for caveat in all_caveats(jobs):
        settle = f" [dim]→ {escape(caveat.settle)}[/dim]" if caveat.settle else ""
        console.print(f"[yellow]![/yellow] {escape(caveat.text)}.{settle}", soft_wrap=True)
    return stream.getvalue().rstrip() + "\n"


def _cells(job: StorageJob) -> list[str]:
    samples, ops, nbytes = samples_per_s(job), ops_per_s(job), bytes_per_s(job)
    latency = job.latency_s
    return [
        _with_spread(samples),
        _with_spread(ops),
        NOT_MEASURED if nbytes is None else format_bandwidth(nbytes.value),
        *[format_seconds(latency.get(name)) for name in ("p50", "p99")],
        job.cache_state,
    ]


def _with_spread(value: Estimate | None) -> str:
    if value is None:
        return "-"
    if value.n < 2:
        return format_count(round(value.value))
    return f"{format_count(round(value.value))} ±{100 * value.relative_halfwidth:.0f}%"


def _beside(job: StorageJob) -> list[str]:
    parts = [f"{job.engine or job.client} engine" if job.engine else f"client {job.client}"]
    if job.processes > 1 or job.depth > 1:
        parts.append(f"{job.processes} × {job.depth} in flight")
    if job.engine_ceiling_ops_per_s is not None:
        parts.append(f"own ceiling here {format_rate(job.engine_ceiling_ops_per_s, 'reads/s')}")
    if job.cpu_s_per_op is not None:
        parts.append(f"CPU {format_seconds(job.cpu_s_per_op)} a read")
    for label, value in (
        ("slowest", job.latency_s.get("max")),
        ("open", job.open_s),
        ("first byte", job.first_byte_s),
        ("listing", job.list_s),
    ):
        if value is not None:
            parts.append(f"{label} {format_seconds(value)}")
    amplification = read_amplification(job)
    if amplification is not None:
        parts.append(f"read amplification {amplification:.2f}")
    if job.resident_before is not None:
        parts.append(f"in page cache before {format_share(job.resident_before)}")
    if job.device_read_bytes is not None:
        parts.append(f"{format_bytes(job.device_read_bytes)} from the device for {format_bytes(job.bytes_read)}")
    if job.retries or job.throttled:
        parts.append(f"{job.retries} retries, {job.throttled} throttled")
    how = {"interval": "stopped by its interval", "exhausted": "all was read"}.get(job.stopped_because)
    parts.append(f"{format_seconds(job.window_s)} measured" + (f", {how}" if how else ""))
    return [f"  {job.name}: " + "; ".join(parts) + "."]


def render_facts(facts: DatasetFacts) -> str:
    """Return what headers and listings say of a dataset, one line a fact."""
    sizes = facts.shard_bytes
    rows = [
        ("dataset", facts.url),
        ("format", facts.format),
        ("file system", facts.filesystem or NOT_MEASURED),
        ("shards", format_count(facts.num_shards)),
        ("samples", "not told by headers" if facts.num_samples is None else format_count(facts.num_samples)),
        ("bytes", format_bytes(facts.total_bytes)),
        ("shard size", f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}" if sizes else NOT_MEASURED),
        ("compression", facts.compression or "none"),
    ]
    if facts.num_samples and facts.total_bytes is not None:
        rows.append(("bytes a sample", format_bytes(facts.total_bytes / facts.num_samples)))
    if facts.row_group_rows:
        groups = facts.row_group_rows
        rows.append(("row groups", f"{len(groups)} of {min(groups)} to {max(groups)} rows"))
    return "".join(f"{name + ':':<16}{clean(value)}\n" for name, value in rows)


def _facts_line(facts: DatasetFacts) -> str:
    samples = "" if facts.num_samples is None else f", {format_count(facts.num_samples)} samples"
    where = f" on {facts.filesystem}" if facts.filesystem else ""
    return f"{facts.format}, {format_count(facts.num_shards)} shards, {format_bytes(facts.total_bytes)}{samples}{where}"
