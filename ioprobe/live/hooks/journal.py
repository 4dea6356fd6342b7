"""What a process of the job writes down: records appended to one file, readable up to the last whole one.

A record is two lengths, a JSON header and a block of doubles, column after column; it
is appended by one write, so that a reader, or the end of the process at any moment,
loses the last record at most.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_LENGTHS = struct.Struct("<II")
SUFFIX = ".rec"


class Record(NamedTuple):
    """One record."""

    head: dict[str, Any]
    """``kind`` says what it is."""
    columns: dict[str, list[float]]


class Journal:
    """The writer; after the first error it is silent, for the job comes first.

    Args:
        path: A new file, readable by its owner only.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:  # the folder is gone: whoever asked is gone, too
            self._fd = -1

    def write(self, head: dict[str, Any], columns: dict[str, list[float]] | None = None) -> None:
        """Append one record; columns have equal lengths."""
        if self._fd < 0:
            return
        columns = columns or {}
        count = len(next(iter(columns.values()), []))
        text = json.dumps({**head, "columns": list(columns), "count": count}).encode()
        body = b"".join(struct.pack(f"<{count}d", *values) for values in columns.values())
        try:
            os.write(self._fd, _LENGTHS.pack(len(text), len(body)) + text + body)
        except OSError:
            self.close()

    def close(self) -> None:
        """Write no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_records(data: bytes) -> Iterator[Record]:
    """Yield the whole records of a journal's bytes; a last one that is cut short is left out."""
    at = 0
    while at + _LENGTHS.size <= len(data):
        head_size, body_size = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        if at + head_size + body_size > len(data):
            return
        try:
            head = json.loads(data[at : at + head_size])
            names, count = list(head.pop("columns")), int(head.pop("count"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        at += head_size
        if body_size != 8 * count * len(names):
            return
        columns = {
            name: list(struct.unpack_from(f"<{count}d", data, at + 8 * count * k)) for k, name in enumerate(names)
        }
        at += body_size
        yield Record(head, columns)


def whole_length(data: bytes) -> int:
    """Return how many bytes from the start are whole records."""
    at = 0
    while at + _LENGTHS.size <= len(data):
        end = at + _LENGTHS.size + sum(_LENGTHS.unpack_from(data, at))
        if end > len(data):
            break
        at = end
    return at
