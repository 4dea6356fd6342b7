"""Makes one spelling and one unit of a parsed tree, and collects every mistake in it with its key path."""

from __future__ import annotations

import difflib
import enum
import re
import types
import typing
from typing import Any, NamedTuple

import msgspec

from ioprobe.config.types import BudgetsConfig, HostConfig, PipelineConfig
from ioprobe.errors import UsageError
from ioprobe.units import parse_bytes, parse_seconds

_SIZES = ("_bytes", "memory")
_SHARES = {"stall_share", "au", "noise", "large"}
_SECONDS = {"timeout", "seconds", "measure"}


class Problem(NamedTuple):
    """One mistake."""

    path: tuple[str, ...]
    text: str
    hint: str


def tidy(value: Any, kind: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    """Return a value with spellings and units made one; collect what is wrong with it."""
    kind = _bare(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if not isinstance(value, dict):
            problems.append(Problem(path, f"must be a table, not {_found(value)}", ""))
            return {}
        return _tidy_table(value, kind, path, problems)
    if origin is dict and isinstance(value, dict):
        return {k: tidy(v, arguments[1], (*path, k), problems) for k, v in value.items()}
    if origin is list and isinstance(value, list):
        return [tidy(v, arguments[0], (*path, str(i)), problems) for i, v in enumerate(value)]
    return value


def _tidy_table(
    table: dict[str, Any], kind: type[msgspec.Struct], path: tuple[str, ...], problems: list[Problem]
) -> dict[str, Any]:
    hints = _hints(kind)
    out: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        here = (*path, key)
        if name not in hints:
            problems.append(Problem(here, f"unknown key '{key}'", _suggest(name, hints, path)))
            continue
        before = len(problems)
        out[name] = _in_base_units(name, tidy(value, hints[name], here, problems), here, problems)
        if len(problems) == before:
            try:
                msgspec.convert(out[name], hints[name])
            except msgspec.ValidationError as error:
                problems.append(Problem(here, f"'{key}' {_expectation(error, value)}", _choices(hints[name], value)))
    return out


def _in_base_units(name: str, value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if name.endswith(_SIZES):
            return parse_bytes(value)
        if name in _SECONDS or name.endswith("_s"):
            return parse_seconds(value)
        if name in _SHARES and (match := re.fullmatch(r"\s*([0-9.]+)\s*%\s*", value)):
            return float(match.group(1)) / 100
    except (UsageError, ValueError) as error:
        problems.append(Problem(path, f"'{path[-1]}': {error}", getattr(error, "hint", "")))
        return None
    return value


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind, include_extras=True)
    return _HINTS[kind]


def _bare(kind: Any) -> Any:
    """Strip Annotated and ``| None``."""
    if typing.get_origin(kind) is typing.Annotated:
        return _bare(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        rest = [a for a in typing.get_args(kind) if a is not type(None)]
        return _bare(rest[0]) if len(rest) == 1 else kind
    return kind


def _suggest(name: str, hints: dict[str, Any], path: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, list(hints), n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    for table, kind in (("pipelines.NAME", PipelineConfig), ("host", HostConfig), ("budgets", BudgetsConfig)):
        if name in _hints(kind):
            return f"'{name}' belongs in [{table}]"
    shown = sorted(hints)
    return f"known here: {', '.join(shown)}" if len(shown) <= 12 else "see 'ioprobe schema config'"


def _expectation(error: msgspec.ValidationError, value: Any) -> str:
    text = re.sub(r" - at `.*`$", "", str(error))
    text = text.replace(" | null", "")
    return f"is {_found(value)}: {text[0].lower()}{text[1:]}"


def _choices(kind: Any, value: Any) -> str:
    kind = _bare(kind)
    if typing.get_origin(kind) is typing.Literal:
        known = [str(choice) for choice in typing.get_args(kind)]
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        known = [str(member.value) for member in kind]
    else:
        return ""
    near = difflib.get_close_matches(str(value), known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"one of: {', '.join(known)}"


def _found(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    return f"`{value!r}`" if not isinstance(value, bool) else f"`{str(value).lower()}`"
