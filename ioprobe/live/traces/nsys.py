"""Nsight Systems exports (``nsys export --type sqlite``) as timelines, one for each process.

Tables are made only where there is something to put in, and columns come and go between versions, so each is looked
for before it is used. The file is opened read-only and never written to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ioprobe.errors import RunFileError
from ioprobe.live.traces.intervals import Floats
from ioprobe.live.traces.timeline import (
    DeviceWork,
    Kind,
    Spans,
    Timeline,
    is_collective_kernel,
    is_collective_range,
    is_step_range,
    loader_range,
    match_launches,
    spans,
)
from ioprobe.run import Caveat

_NS = 1e-9
_KERNELS, _COPIES, _FILLS, _LAUNCHES, _RANGES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)
_HOST_TO_DEVICE = 1  # CUpti_ActivityMemcpyKind
_PAGEABLE = 0  # where the export has no table of memory kinds


def read_nsys(path: str | Path) -> list[Timeline]:
    """Return a timeline for each process in a Nsight Systems SQLite export.

    Raises:
        RunFileError: the file cannot be read, or holds neither device work nor ranges.
    """
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1", uri=True)
        ) as base:
            export = _Export(base)
            if not export.tables & {_KERNELS, _COPIES, _RANGES}:
                raise RunFileError(
                    f"'{path}' is an SQLite file, but no Nsight Systems export with device work or NVTX ranges",
                    hint="run nsys profile --trace=cuda,nvtx, then nsys export --type sqlite",
                )
            return _timelines(str(path), export)
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:  # columns have no types in SQLite
        raise RunFileError(
            f"cannot read Nsight Systems export '{path}': {str(error)[:200]}",
            hint="export it again with nsys export --type sqlite",
        ) from None


class _Export:
    def __init__(self, base: sqlite3.Connection) -> None:
        self.base = base
        self.base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        # No views: one may be a query without end.
        rows = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {str(name) for (name,) in rows}

    def columns(self, table: str) -> set[str]:
        """Return the columns of a table; empty where it does not exist."""
        if table not in self.tables:
            return set()
        return {str(row[1]) for row in self.base.execute(f'PRAGMA table_info("{table}")')}

    def read(self, table: str, wanted: Iterable[str]) -> dict[str, NDArray[np.int64]]:
        """Return whole-number columns of a table; one that is missing, like a NULL, is -1."""
        names, there = list(wanted), self.columns(table)
        if not {"start", "end"} <= there:
            return {}
        terms = ", ".join(f'COALESCE("{n}", -1)' if n in there else "-1" for n in names)
        cursor = self.base.execute(f'SELECT {terms} FROM "{table}" WHERE "end" IS NOT NULL')
        flat = np.fromiter((v for row in cursor for v in row), dtype=np.int64)
        rows = flat.reshape(-1, len(names))
        return {name: rows[:, i] for i, name in enumerate(names)}

    def strings(self) -> dict[int, str]:
        """Return the string table by id."""
        if not {"id", "value"} <= self.columns("StringIds"):
            return {}
        return {int(i): str(v) for i, v in self.base.execute("SELECT id, value FROM StringIds") if v is not None}

    def labels(self, table: str) -> dict[int, str]:
        """Return an enumeration's labels by id; empty where the export has none."""
        there = self.columns(table)
        column = next((c for c in ("label", "name") if c in there), None)
        if column is None or "id" not in there:
            return {}
        return {int(i): str(v) for i, v in self.base.execute(f'SELECT id, "{column}" FROM "{table}"')}


def _pid(global_id: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the process id inside Nsight's global thread or process id; -1 stays -1."""
    return np.where(global_id < 0, -1, (global_id >> 24) & 0xFFFFFF)


def _timelines(path: str, export: _Export) -> list[Timeline]:
    strings = export.strings()
    work = _device_work(export, strings)
    ranges = _ranges(export, strings)
    launches = export.read(_LAUNCHES, ("start", "end", "correlationId", "globalTid"))
    launch_pid = _pid(launches["globalTid"]) if launches else np.empty(0, dtype=np.int64)
    known = {int(p) for p in np.concatenate([work["pid"], launch_pid]) if p >= 0} | {r[0] for r in ranges if r[0] >= 0}
    training = {pid for pid, _, _, name in ranges if loader_range(name) is not None or is_step_range(name)}
    pids = sorted({int(p) for p in work["pid"] if p >= 0} | training) or sorted(known) or [-1]
    if len(pids) > 1 and (work["pid"] < 0).any() and not (work["pid"] >= 0).any():
        pids = pids[:1]  # an old export that does not say whose work it is
    return [_timeline(path, i, pid, len(pids) == 1, work, ranges, launches, launch_pid) for i, pid in enumerate(pids)]


def _timeline(
    path: str,
    index: int,
    pid: int,
    alone: bool,
    work: dict[str, NDArray[np.int64]],
    ranges: list[tuple[int, float, float, str]],
    launches: dict[str, NDArray[np.int64]],
    launch_pid: NDArray[np.int64],
) -> Timeline:
    timeline = Timeline(source=path, rank=None if alone else index)
    mine = [(s, e, n) for p, s, e, n in ranges if alone or p == pid]
    timeline.events = len(mine) + int(work["start"].size)
    marked = [(s, e) for s, e, n in mine if n.startswith("ProfilerStep#")]
    timeline.steps = _pairs(marked or [(s, e) for s, e, n in mine if is_step_range(n)])
    loader = [(s, e, kind) for s, e, n in mine if (kind := loader_range(n)) is not None]
    timeline.loader = _pairs([(s, e) for s, e, _ in loader])
    timeline.loader_kind = next((k for _, _, k in loader if k), "")
    collectives = [(s, e) for s, e, n in mine if is_collective_range(n)]
    timeline.host_communication = _pairs(collectives)
    timeline.host_compute = _pairs([(s, e) for s, e, n in mine if n.startswith("aten::")])
    chosen = (work["pid"] == pid) | (work["pid"] < 0) if not alone else np.ones(work["pid"].size, dtype=bool)
    ids, times = np.empty(0, dtype=np.int64), np.empty(0)
    if launches:
        own = (launch_pid == pid) | alone
        order = np.argsort(launches["correlationId"][own], kind="stable")
        ids, times = launches["correlationId"][own][order], launches["start"][own][order] * _NS
    for device in np.unique(work["device"][chosen]):
        here = chosen & (work["device"] == device)
        timeline.devices.append(_device(int(device), work, here, match_launches(work["correlation"][here], ids, times)))
    calls = chosen & (work["kind"] == Kind.COMMUNICATION)
    if calls.any():
        order = np.argsort(work["start"][calls], kind="stable")
        timeline.collectives = {"collective kernel": ((work["end"] - work["start"])[calls] * _NS)[order]}
    if not len(timeline.loader):
        timeline.caveats.append(
            Caveat(
                "no-loader-ranges",
                f"'{Path(path).name}' has no ranges of the DataLoader: time in it counts as other idle",
                "record with torch.autograd.profiler.emit_nvtx() around the loop and nsys profile --trace=cuda,nvtx",
            )
        )
    return timeline


def _device(number: int, work: dict[str, NDArray[np.int64]], here: NDArray[np.bool_], launched: Floats) -> DeviceWork:
    pageable = here & (work["pageable"] == 1)
    nbytes = work["bytes"][pageable]
    return DeviceWork(
        device=str(number),
        spans=Spans((work["start"][here] * _NS).astype(np.float64), (work["end"][here] * _NS).astype(np.float64)),
        kinds=work["kind"][here].astype(np.int8),
        launched=launched,
        pageable_s=float((work["end"] - work["start"])[pageable].sum() * _NS),
        pageable_copies=int(pageable.sum()),
        pageable_bytes=int(nbytes.sum()) if nbytes.size and (nbytes >= 0).all() else None,
    )


def _device_work(export: _Export, strings: dict[int, str]) -> dict[str, NDArray[np.int64]]:
    """Return kernels, copies and fills as columns: start, end [ns], device, correlation, pid, kind, pageable, bytes."""
    names = (
        "start",
        "end",
        "deviceId",
        "correlationId",
        "globalPid",
        "demangledName",
        "shortName",
        "copyKind",
        "srcKind",
    )
    tables = [export.read(table, (*names, "bytes")) for table in (_KERNELS, _COPIES, _FILLS)]
    kernels, copies, _ = tables
    collective = np.array([i for i, text in strings.items() if is_collective_kernel(text)], dtype=np.int64)
    memory = export.labels("ENUM_CUDA_MEM_KIND")
    from_pageable = [i for i, text in memory.items() if "pageable" in text.lower()] if memory else [_PAGEABLE]
    kinds, pageable = [], []
    for table in tables:
        if not table:
            continue
        kind = np.full(table["start"].size, int(Kind.COPY))
        slow = np.zeros(table["start"].size, dtype=np.int64)
        if table is kernels:
            called = np.isin(table["demangledName"], collective) | np.isin(table["shortName"], collective)
            kind = np.where(called, int(Kind.COMMUNICATION), int(Kind.COMPUTE))
        elif table is copies:
            up = table["copyKind"] == _HOST_TO_DEVICE
            kind = np.where(up, int(Kind.TRANSFER), int(Kind.COPY))
            slow = (up & np.isin(table["srcKind"], from_pageable)).astype(np.int64)
        kinds.append(kind)
        pageable.append(slow)
    there = [t for t in tables if t]
    whole = {new: _stack([t[old] for t in there]) for new, old in _RENAMED.items()}
    whole["pid"] = _pid(whole["pid"])
    whole["kind"], whole["pageable"] = _stack(kinds), _stack(pageable)
    return whole


_RENAMED = {
    "start": "start",
    "end": "end",
    "device": "deviceId",
    "correlation": "correlationId",
    "pid": "globalPid",
    "bytes": "bytes",
}


def _stack(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _ranges(export: _Export, strings: dict[int, str]) -> list[tuple[int, float, float, str]]:
    """Return NVTX ranges as (pid, start [s], end [s], name)."""
    there = export.columns(_RANGES)
    if not {"start", "end"} <= there:
        return []
    terms = [f'"{c}"' if c in there else "NULL" for c in ("start", "end", "text", "textId", "globalTid")]
    found = []
    for start, end, text, text_id, thread in export.base.execute(
        f'SELECT {", ".join(terms)} FROM {_RANGES} WHERE "end" IS NOT NULL'
    ):
        name = text if text is not None else strings.get(text_id, "")
        # emit_nvtx appends ", op_id = 12, seq = 3" to the names of its ranges.
        name = str(name).split(", op_id")[0].split(", seq =")[0]
        pid = -1 if thread is None else (int(thread) >> 24) & 0xFFFFFF
        found.append((pid, float(start) * _NS, float(end) * _NS, name))
    return found


def _pairs(pairs: list[tuple[float, float]]) -> Spans:
    return spans([s for s, _ in pairs], [e for _, e in pairs])
