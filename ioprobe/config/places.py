"""Where each key of a TOML text stands, and its comments; ``tomllib`` keeps neither.

The text has been parsed already, so it is well-formed; this only finds lines and
columns. Keys inside inline tables and arrays get the place of their statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

Path = tuple[str, ...]
_MOST_DEPTH = 16
"""Parts of a key that are places of their own; no key of ours has as many."""
_PART = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*""")
_IGNORE = re.compile(r"#\s*ioprobe:\s*ignore\s*\[([A-Za-z0-9,\s]*)\]\s*:?\s*(.*?)\s*$")


class Place(NamedTuple):
    """Line and column, both from 1."""

    line: int
    column: int


class InlineIgnore(NamedTuple):
    """``# ioprobe: ignore[IO101] reason`` at the end of a key's line or of a table's header."""

    path: Path
    """The key or table on whose line it stands."""
    codes: tuple[str, ...]
    reason: str
    line: int


class Places(NamedTuple):
    """What a scan finds."""

    keys: dict[Path, Place]
    ignores: list[InlineIgnore]

    def of(self, path: Path) -> Place | None:
        """Return the place of a key, or of the nearest enclosing one that stands in the text."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.keys:
                return self.keys[path[:length]]
        return None


def scan(text: str) -> Places:
    """Return the place of every table header and key, and the inline ignores.

    >>> scan("[a]\\nb.c = 1  # ioprobe: ignore[IO101] measured").keys[("a", "b", "c")]
    Place(line=2, column=1)
    """
    keys: dict[Path, Place] = {}
    ignores: list[InlineIgnore] = []
    arrays: dict[Path, int] = {}
    table: Path = ()
    for line, statement, comment in _statements(text):
        body = statement.lstrip()
        column = len(statement) - len(body) + 1
        if not body:
            continue
        if body.startswith("["):
            table = _header(body, arrays)
            path = table
        else:
            path = table + _dotted(body, "=")
        for length in range(len(table) + 1, min(len(path), _MOST_DEPTH) + 1):
            keys.setdefault(path[:length], Place(line, column))
        keys.setdefault(path, Place(line, column))
        found = _IGNORE.search(comment)
        if found:
            codes = tuple(code.strip().upper() for code in found.group(1).split(",") if code.strip())
            ignores.append(InlineIgnore(path, codes, found.group(2), line))
    return Places(keys, ignores)


def _header(body: str, arrays: dict[Path, int]) -> Path:
    array = body.startswith("[[")
    path = _dotted(body[2 if array else 1 :], "]")
    if array:
        arrays[path] = arrays.get(path, -1) + 1
        return (*path, str(arrays[path]))
    for length in range(len(path), 0, -1):  # [x.y] under [[x]] belongs to its last element
        if path[:length] in arrays:
            return (*path[:length], str(arrays[path[:length]]), *path[length:])
    return path


def _dotted(body: str, end: str) -> Path:
    parts: list[str] = []
    at = 0
    while match := _PART.match(body, at):
        parts.append(next(group for group in match.groups() if group is not None))
        at = match.end()
        if at >= len(body) or body[at] == end:
            break
        at += 1
    return tuple(parts)


def _statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, first line of the statement, comment that ends it); values over several lines are skipped."""
    depth, quote = 0, ""
    start, first = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not depth and not quote:
            start, first = number, line
        header = not depth and not quote and line.lstrip().startswith("[")
        depth, quote, comment_at = _walk(line, depth, quote)
        comment = line[comment_at:] if comment_at is not None else ""
        if header:
            depth = 0
        if not depth and not quote:
            code = first[: comment_at if start == number else None]
            yield start, code, comment


def _walk(line: str, depth: int, quote: str) -> tuple[int, str, int | None]:
    """Return bracket depth and open multi-line quote after a line, and where its comment starts."""
    at = 0
    while at < len(line):
        if quote:
            if quote[0] == '"' and line[at] == "\\":
                at += 2
                continue
            if line.startswith(quote, at):
                at += len(quote)
                quote = ""
                continue
        elif line[at] in "\"'":
            quote = line[at] * 3 if line.startswith(line[at] * 3, at) else line[at]
            at += len(quote)
            continue
        elif line[at] == "#":
            return depth, "", at
        else:
            depth += (line[at] in "[{") - (line[at] in "]}")
        at += 1
    return depth, quote if len(quote) == 3 else "", None
