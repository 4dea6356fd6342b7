"""Where samples lie in a plain tar, from its headers alone, as far as time and number allow."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field

from ioprobe.data.formats.webdataset import split_name, walk_members
from ioprobe.data.shards import Shard, readable, reader_at
from ioprobe.errors import IoprobeError

Spans = list[tuple[int, int]]
"""(offset, length) [bytes] of a sample's members."""


@dataclass
class TarIndex:
    """The samples found."""

    samples: list[Spans] = field(default_factory=list)
    members: int = 0
    payload_bytes: int = 0
    """Sum of the members' sizes, empty ones included."""
    span_bytes: int = 0
    """Bytes of the tar from its start that the members take, headers and padding included."""
    complete: bool = False
    """Whether the end was reached."""


def index_tar(path: str, *, most_members: int | None = None, until_s: float = math.inf) -> TarIndex:
    """Return the samples of a tar from its start on.

    A damaged or vanished tar gives what was found before: the reading itself reports it.

    Args:
        path: A plain tar.
        most_members: Stop after so many.
        until_s: Stop when ``time.perf_counter()`` is past this [s].
    """
    index, key, fields = TarIndex(), "", set[str]()
    shard = Shard(path)
    with suppress(IoprobeError), readable(path), shard.open() as file:
        for member in walk_members(reader_at(shard, file), file.seek(0, 2), path):
            stem, extension = split_name(member.name)
            if stem != key or extension in fields or not index.samples:
                index.samples.append([])
                key, fields = stem, set()
            fields.add(extension)
            if member.size_bytes:
                index.samples[-1].append((member.offset, member.size_bytes))
            index.members += 1
            index.payload_bytes += member.size_bytes
            index.span_bytes = member.offset + -(-member.size_bytes // 512) * 512
            if index.members == most_members or time.perf_counter() > until_s:
                return index
        index.complete = True
    return index
