"""Keys of a prefix or a glob, page by page: a million keys take the memory of one page and a sample."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

MOST_LISTED = 10_000
_MOST_ASKED = 64
"""Single objects whose sizes are asked for: the first tell enough."""
_PAGE_KEYS = 1000
_MAGIC = re.compile(r"[*?\[]")

Row = tuple[str, "int | None"]
"""Path and size [bytes]."""


def list_objects(fs: Any, protocol: str, command: dict[str, Any]) -> dict[str, Any]:
    """Return a sample of (path, size) of the patterns' objects, the counts of all, and the time it took.

    Args:
        fs: An fsspec file system.
        protocol: Scheme of the URL.
        command: ``patterns`` (URLs, globs among them) and ``end_ns``, when listing ends, whole or not.
    """
    began = time.perf_counter()
    keep = Sample(MOST_LISTED)
    cut, asked = False, 0
    for pattern in command["patterns"]:
        path = fs._strip_protocol(pattern)  # obstore's own names lack the bucket
        web = protocol.startswith("http")
        magic = None if web else _MAGIC.search(path)
        if magic:
            cut |= _add(keep, pages(fs, protocol, path[: magic.start()].rpartition("/")[0]), command["end_ns"], path)
            continue
        if asked >= _MOST_ASKED:
            keep.add(path, None)
            continue
        asked += 1
        info = _info(fs, pattern, path)
        bucket = "/" not in path.strip("/") and not web
        if info.get("type") != "directory" and not bucket:
            keep.add(path, info.get("size"))
        else:
            cut |= _add(keep, pages(fs, protocol, path if web else path.strip("/")), command["end_ns"])
    return {
        "failed": None,
        "rows": keep.rows,
        "objects": keep.count,
        "bytes": keep.bytes,
        "cut": cut,
        "list_s": time.perf_counter() - began,
    }


def _info(fs: Any, pattern: str, path: str) -> dict[str, Any]:
    """Return what the client knows of one path; to obstore's adapter a folder is all of its keys in one answer."""
    bucket, _, key = path.strip("/").partition("/")
    if not (hasattr(fs, "_construct_store") and bucket):
        found: dict[str, Any] = fs.info(pattern)
        return found
    if key and not pattern.endswith("/"):
        try:
            return {"size": fs._construct_store(bucket).head(key)["size"]}
        except FileNotFoundError:
            pass
    return {"type": "directory"}


def _add(keep: Sample, found: Iterable[Iterable[Row]], end_ns: int, glob: str | None = None) -> bool:
    """Add pages until the end or until time is over; return whether it was over before the last page."""
    from fsspec.utils import glob_translate

    match = re.compile(glob_translate(glob)).match if glob is not None else None
    for number, page in enumerate(found):
        if number and time.perf_counter_ns() >= end_ns:
            return True
        for path, size in page:
            if match is None or match(path):
                keep.add(path, size)
    return False


def pages(fs: Any, protocol: str, folder: str) -> Iterator[Iterable[Row]]:
    """Yield the objects below a folder in pages: the store's own where the client gives them, else one a folder."""
    bucket, _, prefix = folder.partition("/")
    if protocol in ("s3", "s3a") and hasattr(fs, "get_s3"):
        return _s3_pages(fs, bucket, f"{prefix}/" if prefix else "")
    if hasattr(fs, "_construct_store") and bucket:
        return _obstore_pages(fs, bucket, prefix or None)
    return (
        [(info["name"], info.get("size")) for info in files.values()] for _, _, files in fs.walk(folder, detail=True)
    )


def _s3_pages(fs: Any, bucket: str, prefix: str) -> Iterator[Iterable[Row]]:
    from fsspec.asyn import sync

    async def begin() -> Any:
        await fs.set_session()
        client = await fs.get_s3(bucket)
        return client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix).__aiter__()

    async def step() -> Any:
        return await anext(found, None)

    found = sync(fs.loop, begin)
    while (page := sync(fs.loop, step)) is not None:
        yield [(f"{bucket}/{entry['Key']}", entry["Size"]) for entry in page.get("Contents", [])]


def _obstore_pages(fs: Any, bucket: str, prefix: str | None) -> Iterator[Iterable[Row]]:
    for page in fs._construct_store(bucket).list(prefix, chunk_size=_PAGE_KEYS):
        yield [(f"{bucket}/{entry['path']}", entry["size"]) for entry in page]


class Sample:
    """Every key is counted, a uniform sample is kept (reservoir sampling, algorithm R)."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows: list[Row] = []
        self.count = self.bytes = 0
        self._random = random.Random(0)

    def add(self, path: str, size: int | None) -> None:
        """Count an object; hidden ones and folder marks are no data."""
        if path.endswith("/") or path.rpartition("/")[2].startswith("."):
            return
        self.count += 1
        self.bytes += size or 0
        if len(self.rows) < self.most:
            self.rows.append((path, size))
        else:
            place = self._random.randrange(self.count)
            if place < self.most:
                self.rows[place] = (path, size)
