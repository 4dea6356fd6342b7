"""Whether a decoded run file can be a measurement: columns of equal length, no figure beyond what any machine gives.

Types are checked by the decoder. What is left are files that somebody edited or that a disk garbled; without this they
would end deep inside the statistics, or keep a replay busy for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

_MOST_INT = 1 << 60
_MOST = 1e30
_MOST_S = 1e10
"""Of anything in seconds: three centuries."""
_SLACK_S = 1.0
"""A duration may come out negative by what two clocks differ, never by more."""
_MOST_OF = {"num_workers": 65_536, "prefetch_factor": 65_536, "batch_size": 1 << 40, "world_size": 1 << 24}
_LEAST_OF = {
    "num_workers": 0,
    "prefetch_factor": 1,
    "batch_size": 1,
    "world_size": 1,
    "local_ranks": 1,
    "usable_cores": 0,
    "worker": 0,
    "samples": 0,
    "nbytes": 0,
}
_NONE: Mapping[type, frozenset[str]] = {}
_INSTANTS = {"call_s", "start_s", "put_s", "begun_s"}
"""Points in time, which may lie before the measurement began."""


def complaint(value: Any, tables: Mapping[type, frozenset[str]] = _NONE, place: str = "$") -> str | None:
    """Return what cannot be measured in a structure and where, None where all can.

    Args:
        value: A ``msgspec.Struct``, or what its fields hold.
        tables: Struct types whose lists are columns of one table, and which of them a measurement that was cut short
            may leave shorter, or empty. The others are of equal length.
        place: Path of value, for the message.
    """
    if isinstance(value, msgspec.Struct):
        fields = [(name, getattr(value, name)) for name in value.__struct_fields__]
        if type(value) in tables:
            may_end = tables[type(value)]
            lengths = {len(column) for name, column in fields if name not in may_end}
            most = max(len(column) for _, column in fields)
            if len(lengths) > 1 or most > max(lengths, default=0):
                return f"columns differ in length - at `{place}`"
        return _first(complaint(held, tables, f"{place}.{name}") for name, held in fields)
    if isinstance(value, Mapping):
        return _first(complaint(held, tables, f"{place}[...]") for held in value.values())
    if isinstance(value, list) and value and not isinstance(value[0], (int, float)):
        return _first(complaint(held, tables, f"{place}[{number}]") for number, held in enumerate(value))
    numbers = value if isinstance(value, list) else [value]
    if not numbers or isinstance(numbers[0], bool) or not isinstance(numbers[0], (int, float)):
        return None
    return _outside(numbers, place)


def _first(found: Iterable[str | None]) -> str | None:
    return next((text for text in found if text is not None), None)


def _outside(numbers: list[Any], place: str) -> str | None:
    name = place.rpartition(".")[2].partition("[")[0]
    in_seconds = name.endswith("_s") and not name.endswith("_per_s")
    most = _MOST_OF.get(name, _MOST_S if in_seconds else _MOST_INT if isinstance(numbers[0], int) else _MOST)
    least = _LEAST_OF.get(name, -_SLACK_S if in_seconds and name not in _INSTANTS else -most)
    wrong = next((n for n in (min(numbers), max(numbers)) if not least <= n <= most), None)
    return None if wrong is None else f"{wrong:g} cannot be - at `{place}`"
