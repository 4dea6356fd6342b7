"""The report as one self-contained page: it asks the network for nothing and opens from disk."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ioprobe.diagnosis.types import Report
from ioprobe.report import figures, words
from ioprobe.report.glossary import GLOSSARY
from ioprobe.report.panel import WhatIfFigure
from ioprobe.report.panel import what_if as make_panel
from ioprobe.units import NOT_MEASURED, format_bytes, format_count, format_seconds, format_share

if TYPE_CHECKING:
    import jinja2

OPEN_RANK_ROWS = 16
"""Rows of the table of ranks that are shown without a click."""

PARTITION_WORDS = {
    "compute": "compute",
    "communication": "communication, exposed",
    "transfer": "transfer, exposed",
    "data_stall": "data stall",
    "other_idle": "other idle",
}


def render(report: Report) -> str:
    """Return the page. Every text is escaped where it lands, in markup as well as in the page's data."""
    panel = make_panel(report)
    word, clause = words.headline(report)
    return page(
        "page.html.j2",
        version=report.version,
        report=report,
        diagnosis=report.diagnosis,
        word=word,
        clause=clause,
        singular=report.unit.removesuffix("s"),
        tiles=_tiles(report),
        ladder=figures.ladder(report),
        stages=figures.stages(report.diagnosis.stages),
        timeline=figures.timeline(report.timeline, report.diagnosis.stall_share.measured),
        panel=panel,
        panel_data=_panel_data(panel),
        ranks=figures.ranks(report.ranks),
        open_rank_rows=OPEN_RANK_ROWS,
        partition=_partition(report),
        partitions=_partition_rows(report),
        metrics=[words.metric(name, value) for name, value in report.metrics.items()],
        facts=_facts(report),
        glossary=GLOSSARY,
    )


def page(template: str, **context: Any) -> str:
    """Return a template of this folder filled in, with the style and the script that all pages share."""
    script = _source("page.js")
    return (
        _environment()
        .get_template(template)
        .render(css=_source("page.css"), script=script, script_hash=_hash(script), **context)
    )


def _hash(script: str) -> str:
    # The page's policy names its one script by content: markup that slipped in could not run another.
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _source(name: str) -> str:
    return resources.files("ioprobe.report").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        # Whatever lands on the page, a version or a date included, comes from a file that somebody may have edited.
        finalize=lambda value: (
            words.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        sentence=words.sentence,
        seconds=lambda value: words.UNMEASURED if value is None else format_seconds(value),
        share=lambda value: words.UNMEASURED if value is None else format_share(value),
        rate=lambda estimate: " ".join(words.rate_parts(estimate)).strip(),
        share_estimate=words.share,
        gain=words.gain,
        hot_frame=words.hot_frame,
        verification=words.verification,
        judgement=lambda tip: (words.judgement(tip), words.JUDGEMENTS[words.judgement(tip)]),
        gains=figures.gains,
        # Our own files, not data: the only texts that go in as they are.
        trusted=Markup,
    )
    return environment


def _tiles(report: Report) -> list[tuple[str, str, str, str]]:
    """Name, value, remark and kind of each figure in the page's head."""
    diagnosis = report.diagnosis
    stall = diagnosis.stall_share
    tiles = []
    if stall.measured is not None or stall.predicted is not None:
        predicted = f"predicted {words.share(stall.predicted)}" if stall.predicted is not None else ""
        value = words.share(stall.measured) if stall.measured is not None else NOT_MEASURED
        tiles.append(("stall share", value, predicted, "stall"))
    if diagnosis.headroom is not None:
        tiles.append(("headroom", words.gain(diagnosis.headroom), "at most, from faster input", "headroom"))
    if diagnosis.loop_samples_per_s is not None:
        value, interval = words.rate_parts(diagnosis.loop_samples_per_s)
        tiles.append(("loop", value, f"{report.unit}/s {interval}".strip(), "loop"))
    if diagnosis.limiting_stage is not None:
        tiles.append(("limit", diagnosis.limiting_stage.value, "", "limit"))
    return tiles


def _panel_data(panel: WhatIfFigure | None) -> dict[str, Any] | None:
    if panel is None:
        return None
    return {
        "workers": panel.workers,
        "base": panel.base,
        "current": panel.current,
        "advised": panel.advised,
        "curves": {curve.key: curve.spots for curve in panel.curves},
    }


def _partition(report: Report) -> list[tuple[str, str, float, float]]:
    """Kind, label, start and width [percent] of each part."""
    parts, start = [], 0.0
    for name, value in (report.partition or {}).items():
        width = round(100 * value, 2)
        parts.append((name if name in PARTITION_WORDS else "other", PARTITION_WORDS.get(name, name), start, width))
        start = round(start + width, 2)
    return parts


def _partition_rows(report: Report) -> list[list[str]]:
    """Rank and device, steps, window, then seconds a step: exposed, and with what is hidden under compute."""
    rows = []
    for part in report.partitions:
        steps = max(1, part.steps)
        cells = []
        for name in ("compute", "communication", "transfer", "data_stall", "other_idle"):
            exposed = format_seconds(getattr(part, f"{name}_s") / steps)
            whole = part.hidden_s.get(name)
            cells.append(exposed if whole is None else f"{exposed} of {format_seconds(whole / steps)}")
        rows.append([f"{part.rank}, {part.device}", f"{part.steps:,}", format_seconds(part.window_s), *cells])
    return rows


def _facts(report: Report) -> list[tuple[str, str]]:
    host = report.host
    # A recording made elsewhere carries no facts of its host.
    cores = f"{format_count(host.usable_cores)} of {host.logical_cores} cores usable" if host.hostname else ""
    if cores and host.usable_cores_because:
        cores += f" ({host.usable_cores_because})"
    memory = ""
    if host.memory_bytes is not None:
        memory = f"{format_bytes(host.memory_bytes)}, {format_bytes(host.memory_available_bytes)} available"
    shm = ""
    if host.shm_bytes is not None:
        shm = f"{format_bytes(host.shm_bytes)}, {format_bytes(host.shm_available_bytes)} available"
    versions = {"python": host.python, "torch": host.torch or "", **host.versions}
    rows = [
        ("command", report.command),
        ("target", report.target),
        ("settings", words.settings_text(report.settings)),
        ("host", " ".join(filter(None, [host.hostname, host.platform]))),
        ("processor", ", ".join(filter(None, [host.cpu_model, cores]))),
        ("memory", memory),
        ("/dev/shm", shm),
        ("accelerators", ", ".join(host.accelerators)),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version)),
        ("run file", report.run or ""),
        ("measured", f"{report.created_at}, ioprobe {report.version}"),
    ]
    return [(name, value) for name, value in rows if value]
