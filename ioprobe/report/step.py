"""A table of steps as lines for people and as an object for scripts."""

from __future__ import annotations

from typing import Any

import msgspec

from ioprobe.diagnosis.step_table import StepFigures, StepRow, StepTable, caveats, figures
from ioprobe.report import words
from ioprobe.report.sheet import Sheet
from ioprobe.stats import Estimate
from ioprobe.units import format_count, format_flops, format_rate, format_seconds, format_share

SCHEMA = 1
"""Of the JSON object."""
_PARTS = ("compute", "communication", "transfer", "checkpoint", "idle")


def as_object(table: StepTable) -> dict[str, Any]:
    """Return what ``ioprobe step --format json`` prints."""
    return {
        "schema": SCHEMA,
        "kind": "step",
        "source": table.source,
        "created_at": table.created_at,
        "version": table.version,
        "complete": table.complete,
        "unit": table.unit,
        "host": msgspec.to_builtins(table.host),
        "rows": [_row_object(row, table) for row in table.rows],
        "caveats": msgspec.to_builtins(caveats(table)),
    }


def _row_object(row: StepRow, table: StepTable) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(figures(row, table.host))
    step = row.step
    return {
        "settings": row.settings,
        **found,
        "loader_samples_per_s": msgspec.to_builtins(row.loader_samples_per_s),
        "samples_per_step": step.samples_per_step,
        "updates_per_step": step.updates_per_step,
        "device": step.device,
        "dtype": step.dtype,
        "flops_per_step": step.flops_per_step,
        "executed_flops_per_step": step.executed_flops_per_step,
        "joules_per_step": step.joules_per_step,
        "kernel_time_share": step.kernel_time_share,
        "parts_s": step.parts_s,
        "steps": len(step.durations_s),
        "warmup_steps": len(step.warmup_s),
        "failure": msgspec.to_builtins(step.failure),
    }


def render(table: StepTable, *, width: int = 100, color: bool = False, unicode: bool = True) -> str:
    """Return the table, where the time of each step goes, and what to read with care."""
    sheet = Sheet(width=max(60, width), color=color, unicode=unicode)
    device = next((row.step.device for row in table.rows), "cpu")
    where = table.host.cpu_model if device == "cpu" else ", ".join(table.host.accelerators) or device
    sheet.title("STEP", "bold blue", f"{table.source} on {where or device}")
    header, rows = _columns(table)
    if rows:
        sheet.wide_table(header, rows)
    for row in table.rows:
        _details(sheet, row, figures(row, table.host), several=len(table.rows) > 1)
    declared = next((row.step.flops_source for row in table.rows if row.step.flops_source), "")
    if declared:
        sheet.paragraph(f"FLOPs are declared: {declared}", "dim")
    found = caveats(table)
    if found:
        sheet.heading("Read with care")
    for caveat in found:
        sheet.item("!", words.sentence(caveat.text), style="yellow")
        if caveat.settle:
            sheet.detail("settle", caveat.settle)
    if not table.complete:
        sheet.item("!", "Partial: it was interrupted.", style="yellow")
    return sheet.text()


def _columns(table: StepTable) -> tuple[list[str], list[list[str]]]:
    """Header and cells; a column that is empty in every row is left out."""
    unit = table.unit
    seen = [(row, figures(row, table.host)) for row in table.rows]
    columns: list[tuple[str, list[str]]] = [
        ("step", [_name(row) for row in table.rows]),
        (f"{unit}/s", [_estimate(f.samples_per_s) for _, f in seen]),
        ("tokens/s", [_estimate(f.tokens_per_s) for _, f in seen]),
        ("steps/s", [_plain(f.steps_per_s) for _, f in seen]),
        ("updates/s", [_plain(f.updates_per_s) if _accumulates(row) else "" for row, f in seen]),
        ("p50", [_seconds(f.latency_p50_s) for _, f in seen]),
        ("p95", [_seconds(f.latency_p95_s) for _, f in seen]),
        ("cores", ["" if f.cores is None else f"{f.cores:.1f}" for _, f in seen]),
        ("FLOP/s", [_flops(f) for _, f in seen]),
        ("MFU", [_share(f, "mfu") for _, f in seen]),
        ("HFU", [_share(f, "hfu") for _, f in seen]),
        ("loader", [_estimate(row.loader_samples_per_s) for row in table.rows]),
        ("bound by", [f.binding or "" for _, f in seen]),
    ]
    kept = [(title, cells) for title, cells in columns if any(cells)]
    return [title for title, _ in kept], [list(row) for row in zip(*(cells for _, cells in kept), strict=True)]


def _accumulates(row: StepRow) -> bool:
    """Whether there are fewer optimizer steps than calls: then a step is a micro-step."""
    return row.step.updates_per_step is not None and row.step.updates_per_step < 1


def _name(row: StepRow) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.settings.items()) or "as it is"


def _estimate(value: Estimate | None) -> str:
    if value is None:
        return ""
    spread = f" ±{100 * value.relative_halfwidth:.0f}%" if value.n > 1 else ""
    return format_count(value.value) + spread


def _plain(value: Estimate | None) -> str:
    return "" if value is None else format_count(value.value)


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)


def _flops(seen: StepFigures) -> str:
    rate = None if seen.utilization is None else seen.utilization.flops_per_s
    return "" if rate is None else format_flops(rate).removesuffix("FLOP/s").strip()


def _share(seen: StepFigures, name: str) -> str:
    share = None if seen.utilization is None else getattr(seen.utilization, name)
    return "" if share is None else format_share(share)


def _details(sheet: Sheet, row: StepRow, seen: StepFigures, *, several: bool) -> None:
    step = row.step
    head = f"{_name(row)}: " if several else ""
    if step.failure is not None:
        sheet.item("x", f"{head}{step.failure.message}", style="red")
        if step.failure.where:
            sheet.detail("at", step.failure.where)
        if step.failure.hint:
            sheet.detail("next", step.failure.hint)
    parts = [(name, step.parts_s[name]) for name in _PARTS if step.parts_s.get(name)]
    if len(parts) > 1 or (parts and not several):
        total = sum(step.parts_s.values())
        text = ", ".join(f"{name} {format_seconds(part)} ({format_share(part / total)})" for name, part in parts)
        sheet.item("-", f"{head}{text}; from {step.parts_steps} traced steps")
    if not several and step.durations_s:
        of_type = f", {step.dtype}" if step.dtype else ""
        sheet.item("-", f"{len(step.durations_s)} steps after {len(step.warmup_s)} of warm-up{of_type}")
        if seen.utilization is not None:
            sheet.item("-", f"MFU: {seen.utilization.basis}")
    if step.joules_per_step is not None:
        joules = step.joules_per_step / step.samples_per_step
        sheet.item("-", f"{head}{joules:.3g} J/sample, whole board, by its energy counter")
    if step.kernel_time_share is not None:
        share = format_share(step.kernel_time_share)
        sheet.item("-", f"{head}a kernel ran {share} of the driver's last sampling period; how full it was is not told")


def render_preset(source: str, batch_size: int, step_s: float, bytes_per_sample: float, unit: str, note: str) -> str:
    """Return a published step as lines."""
    sheet = Sheet(width=100, color=False, unicode=True)
    rate = batch_size / step_s
    sheet.title("STEP", "bold blue", source)
    sheet.pairs(
        [
            ("step", f"{format_seconds(step_s)} at batch {batch_size}"),
            (f"{unit}/s", format_rate(rate, f"{unit}/s")),
            ("storage", f"{rate * bytes_per_sample / 1e6:,.1f} MB/s"),
            ("per sample", f"{bytes_per_sample / 1e3:,.1f} kB"),
        ]
    )
    if note:
        sheet.item("-", note)
    return sheet.text()
