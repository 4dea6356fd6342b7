"""Sort what-if points into curves over num_workers, one for each combination of the other settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ioprobe.diagnosis.types import Report, WhatIfPoint
from ioprobe.report.words import clean

WORKERS = "num_workers"
MAX_CURVES = 120

AXIS_WORDS = {
    "prefetch_factor": ("prefetch factor", "{}"),
    "batch_size": ("batch size", "{}"),
    "step_ms": ("step", "{} ms"),
    "step_s": ("step", "{} s"),
    "cores": ("cores", "{}"),
    "storage_mb_s": ("storage", "{} MB/s"),
    "decode_x": ("decode time", "×{}"),
}
"""Name of an axis in words, and the form of its values."""

Key = tuple[Any, ...]


class Spot(msgspec.Struct, frozen=True):
    """What is known at one number of workers."""

    workers: int
    predicted: WhatIfPoint | None
    measured: WhatIfPoint | None

    @property
    def best(self) -> WhatIfPoint:
        """The measured point where there is one."""
        point = self.measured or self.predicted
        assert point is not None, "a spot is made of at least one point"
        return point


class Curve(msgspec.Struct, frozen=True):
    """Throughput over num_workers while the other settings stand still."""

    key: Key
    """Values of the other axes, in their order."""
    spots: list[Spot]
    """By number of workers, ascending."""


class WhatIf(msgspec.Struct, frozen=True):
    """All curves and the one to show first."""

    axes: list[str]
    """Settings, other than num_workers, that differ between points."""
    values: dict[str, list[Any]]
    """Values of each axis, ascending."""
    curves: list[Curve]
    base: Curve
    """The curve at the present settings, or else the one with most points."""
    current: int | None
    """Workers now; None where it is not known."""
    advised: int | None
    """Workers that the first advice with this setting recommends."""


def arrange(report: Report) -> WhatIf | None:
    """Return the report's what-if points as curves; None where there are none.

    Points without ``num_workers`` are left out: there is no axis to put them on.
    """
    points = [p for p in report.what_if if isinstance(p.settings.get(WORKERS), int)]
    if not points:
        return None
    axes = _axes(points)
    groups: dict[Key, list[WhatIfPoint]] = {}
    for point in points:
        groups.setdefault(tuple(point.settings.get(axis) for axis in axes), []).append(point)
    curves = [Curve(key, _spots(group)) for key, group in groups.items()]
    base = _base(curves, axes, report)
    curves = _nearest(curves, base)
    return WhatIf(
        axes=axes,
        values={axis: _ordered(curve.key[i] for curve in curves) for i, axis in enumerate(axes)},
        curves=curves,
        base=base,
        current=report.settings.num_workers if report.settings else None,
        advised=next((a.settings[WORKERS] for a in report.advice if isinstance(a.settings.get(WORKERS), int)), None),
    )


def axis_text(axis: str) -> str:
    """Return an axis in words; one that is not known keeps its own name.

    >>> axis_text("step_ms"), axis_text("drop_last")
    ('step', 'drop_last')
    """
    return clean(AXIS_WORDS[axis][0] if axis in AXIS_WORDS else axis)


def value_text(axis: str, value: Any) -> str:
    """Return a value of an axis with its unit.

    >>> value_text("step_ms", 62.5), value_text("cores", 32.0), value_text("prefetch_factor", None)
    ('62.5 ms', '32', 'default')
    """
    if value is None:
        return "default"
    text = f"{value:g}" if isinstance(value, float) else clean(str(value))
    return AXIS_WORDS[axis][1].format(text) if axis in AXIS_WORDS else text


def fixed_text(axes: Sequence[str], key: Key) -> str:
    """Return what stands still along a curve.

    >>> fixed_text(["prefetch_factor", "step_ms"], (2, 62.5))
    'prefetch factor 2, step 62.5 ms'
    """
    return ", ".join(f"{axis_text(a)} {value_text(a, v)}" for a, v in zip(axes, key, strict=True) if v is not None)


def _axes(points: Sequence[WhatIfPoint]) -> list[str]:
    names = {name: None for point in points for name in point.settings if name != WORKERS}
    return [name for name in names if len({repr(point.settings.get(name)) for point in points}) > 1]


def _ordered(values: Iterable[Any]) -> list[Any]:
    distinct = {repr(value): value for value in values}
    return sorted(distinct.values(), key=lambda v: (not isinstance(v, (int, float)), v if _number(v) else 0, repr(v)))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _spots(points: Sequence[WhatIfPoint]) -> list[Spot]:
    predicted = {p.settings[WORKERS]: p for p in points if not p.measured}
    measured = {p.settings[WORKERS]: p for p in points if p.measured}
    return [Spot(n, predicted.get(n), measured.get(n)) for n in sorted(predicted.keys() | measured.keys())]


def _base(curves: Sequence[Curve], axes: Sequence[str], report: Report) -> Curve:
    def fit(curve: Curve) -> tuple[int, int]:
        now = [getattr(report.settings, axis, None) for axis in axes]
        same = sum(1 for mine, theirs in zip(curve.key, now, strict=True) if theirs is not None and mine == theirs)
        return same, len(curve.spots)

    # Where the report does not say what the present value of an axis is, measured points do.
    seen = Counter(curve.key for curve in curves for spot in curve.spots if spot.measured)
    return max(curves, key=lambda curve: (fit(curve)[0], seen[curve.key], fit(curve)[1]))


def _nearest(curves: list[Curve], base: Curve) -> list[Curve]:
    if len(curves) <= MAX_CURVES:
        return curves
    by_distance = sorted(curves, key=lambda c: sum(a != b for a, b in zip(c.key, base.key, strict=True)))
    return by_distance[:MAX_CURVES]
