"""A dataset URL to its shards: globs, folders and object stores; and what format they hold."""

from __future__ import annotations

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ioprobe.data.braces import expand_braces
from ioprobe.data.formats import FORMATS
from ioprobe.data.shards import COMPRESSED, Shard, local_path, readable
from ioprobe.errors import DataError, TargetError, UsageError
from ioprobe.secrets import redact_url

LISTED_FROM = 32
"""Named objects from which on one listing of their folder is cheaper than a request for each."""
SIDE_FILES = {"index.json", "index.mds.json", "_SUCCESS", "dataset_info.json", "state.json"}


@dataclass(frozen=True)
class ShardSet:
    """The shards of a dataset, sorted by name."""

    url: str
    """As given; may hold credentials."""
    format: str
    shards: tuple[Shard, ...]
    filesystem: str
    """``ext4``, ``tmpfs``, ``nfs``, ``s3``, ``memory``, ...; empty where it cannot be known."""

    @property
    def name(self) -> str:
        """The URL as it may be shown."""
        return redact_url(self.url)

    @property
    def total_bytes(self) -> int | None:
        """Sum of the sizes, or None where one is unknown."""
        sizes = [s.size_bytes for s in self.shards]
        return sum(s for s in sizes if s is not None) if None not in sizes else None


def list_shards(
    url: str,
    *,
    format: str | None = None,  # noqa: A002 - the word that users know from the command line
    storage_options: Mapping[str, Any] | None = None,
) -> ShardSet:
    """Return the shards that a URL names.

    Args:
        url: ``data/train-{000..127}.tar``, a glob, a folder, ``file://``, or any fsspec URL.
        format: One of :data:`FORMATS`; None to tell by suffix and content.
        storage_options: For the fsspec file system.

    Raises:
        TargetError: nothing is there, or it cannot be read.
        DataError: the files are of no or of several known formats.
        UsageError: the braces or the format cannot be read.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"unknown format '{format}'", hint=f"choose one of {', '.join(FORMATS)}")
    options = dict(storage_options or {})
    patterns = expand_braces(url)
    find = _find_local if local_path(url) is not None else _find_remote
    found: list[Shard] = []
    if find is _find_remote and len(patterns) > LISTED_FROM and not patterns[0].startswith("http"):
        found = _find_named(patterns, options)
    else:
        for pattern in patterns:
            found += find(pattern, options)
    shards = tuple(sorted(found, key=lambda s: s.url))
    if not shards:
        raise TargetError(f"no file matches '{redact_url(url)}'", hint="check the pattern; quote it in the shell")
    chosen, shards = _choose(shards, redact_url(url), format)
    return ShardSet(url, chosen, shards, filesystem_of(shards[0].url))


def _find_local(pattern: str, options: dict[str, Any]) -> list[Shard]:
    path = local_path(pattern) or "."
    with readable(pattern):
        # A file whose own name looks like a glob wins over the glob.
        if not glob.has_magic(path) or os.path.lexists(path):
            size = _size(path)
            return list(_walk(path)) if size is None else [Shard(path, size)]
        names = glob.glob(path, recursive=True)  # noqa: PTH207 - absolute patterns
        sizes = [(name, _size(name)) for name in names]
        files = [
            Shard(name, size) for name, size in sizes if size is not None and name[name.rfind("/") + 1 :][:1] != "."
        ]
        return files or [shard for name, size in sizes if size is None for shard in _walk(name)]


def _size(path: str) -> int | None:
    """Return the size of a file [bytes], None for a folder; one call and no Path, as datasets have 100,000 files."""
    found = os.stat(path)  # noqa: PTH116
    return None if stat.S_ISDIR(found.st_mode) else found.st_size


def _walk(folder: str) -> Iterator[Shard]:
    """Yield the files under a folder; hidden files and folders are no data."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(entry.path)
            elif entry.is_file():
                yield Shard(entry.path, entry.stat().st_size)


def _find_remote(pattern: str, options: dict[str, Any]) -> list[Shard]:
    head, chained, last = pattern.rpartition("::")
    if chained and glob.has_magic(last) and "://" not in head:
        # Such as simplecache::s3://bucket/x-*.tar: list the store, read through the cache.
        return [Shard(f"{head}::{s.url}", s.size_bytes, options) for s in _find_remote(last, options)]
    import fsspec

    name = redact_url(pattern)
    with readable(name):
        try:
            fs, path = fsspec.core.url_to_fs(pattern, **options)
        except ValueError as error:
            raise TargetError(f"cannot read '{name}': {error}", hint="check the scheme of the URL") from None
        protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
        if not (glob.has_magic(path) and not protocol.startswith("http")):
            info = fs.info(path)
            if info.get("type") != "directory":
                return [Shard(pattern, info.get("size"), options)]
        infos = fs.glob(path, detail=True) if glob.has_magic(path) else fs.find(path, detail=True)
    # What the URL itself told (host, user) is lost in a listed name, so it travels as options.
    told = {**options, **fs._get_kwargs_from_urls(pattern)}
    return [
        Shard(fs.unstrip_protocol(found), info.get("size"), told)
        for found, info in infos.items()
        if info.get("type") != "directory" and not found.rpartition("/")[2].startswith(".")
    ]


def _find_named(urls: list[str], options: dict[str, Any]) -> list[Shard]:
    """Return the shards of many URLs without globs, by one listing of each folder.

    Raises:
        TargetError: one of them is not there.
    """
    folders: dict[str, dict[str, Shard]] = {}
    found: list[Shard] = []
    for url in urls:
        folder, _, name = url.rpartition("/")
        if glob.has_magic(url) or "::" in url:
            found += _find_remote(url, options)
            continue
        if folder not in folders:
            listed = _find_remote(f"{folder}/*", options)
            folders[folder] = {s.url.rpartition("/")[2]: s for s in listed}
        if name not in folders[folder]:
            with readable(redact_url(url)):
                raise FileNotFoundError
        found.append(folders[folder][name])
    return found


def suffix_of(url: str) -> tuple[str, str | None]:
    """Return the format suffix and the codec of the whole file.

    >>> suffix_of("a/b.tar.zst"), suffix_of("x.PARQUET"), suffix_of("shard.00000.mds"), suffix_of("README")
    (('.tar', 'zstd'), ('.parquet', None), ('.mds', None), ('', None))
    """
    name = (urlsplit(url).path if "://" in url else url).rpartition("/")[2].lower()
    if name.endswith(".tgz"):
        return ".tar", "gzip"
    codec = next((c for s, c in COMPRESSED.items() if name.endswith(s)), None)
    if codec:
        name = name.rpartition(".")[0]
    return (f".{name.rpartition('.')[2]}" if "." in name else ""), codec


_BY_SUFFIX = {suffix: name for name, suffixes in FORMATS.items() for suffix in suffixes}


def _choose(shards: tuple[Shard, ...], name: str, asked: str | None) -> tuple[str, tuple[Shard, ...]]:
    """Return the one format of the shards, and the shards without side files (indexes, notes)."""
    index = _index_format(shards)
    if asked is None and index is not None:
        asked = index
    suffix = [suffix_of(s.url)[0] for s in shards]
    suffixes = Counter(suffix)
    if asked is not None:
        wanted = {".bin"} if asked == "litdata" else set(FORMATS[asked])
        kept = tuple(s for s, end in zip(shards, suffix, strict=True) if end in wanted)
        return asked, kept or tuple(s for s in shards if s.url.rpartition("/")[2] not in SIDE_FILES) or shards
    found = Counter(_BY_SUFFIX[s] for s in suffixes.elements() if s in _BY_SUFFIX)
    if len(found) == 1:
        (only,) = found
        return only, tuple(s for s, end in zip(shards, suffix, strict=True) if _BY_SUFFIX.get(end) == only)
    if not found:
        by_content = sniff(shards[0])
        if by_content is not None:
            return by_content, shards
    listed = ", ".join(f"{n} x {s or 'no extension'}" for s, n in suffixes.most_common(8))
    known = ", ".join(f"{n} ({' '.join(s)})" for n, s in FORMATS.items() if n != "litdata")
    if not found and name.endswith(".py"):
        raise DataError(
            f"'{name}' is Python code, and no function of it is named",
            hint=f"name the one that makes the loader: {name}:FUNCTION",
        )
    if len(found) > 1:
        raise DataError(f"'{name}' holds several formats: {listed}", hint="narrow the pattern, or pass --format")
    raise DataError(f"'{name}' holds no format that is known: found {listed}", hint=f"supported: {known}, litdata")


def _index_format(shards: tuple[Shard, ...]) -> str | None:
    """Return ``mds`` or ``litdata`` where an index.json says so; their shards alone may look like others."""
    for shard in shards:
        if shard.url.rpartition("/")[2] == "index.json" and (shard.size_bytes or 0) < 1 << 28:
            with shard.open() as file:
                head = file.read(4096)
            if b'"chunks"' in head and b'"config"' in file_tail(shard, head):
                return "litdata"
            if b'"shards"' in head:
                return "mds"
    return None


def file_tail(shard: Shard, head: bytes) -> bytes:
    """Return the last bytes of a small side file (all of it, where the head was all)."""
    if (shard.size_bytes or 0) <= len(head):
        return head
    with shard.open() as file:
        file.seek(max(0, (shard.size_bytes or 0) - 1 << 16))
        return file.read()


def sniff(shard: Shard) -> str | None:
    """Return the format by the file's first bytes, or None."""
    with readable(shard.name), shard.open() as file:
        head = file.read(512)
    magics = {
        b"PAR1": "parquet",
        b"ARROW1": "arrow",
        b"\x89HDF\r\n\x1a\n": "hdf5",
        b"\x93NUMPY": "npy",
        b"\xff\xd8\xff": "imagefolder",
        b"\x89PNG\r\n": "imagefolder",
    }
    for magic, name in magics.items():
        if head.startswith(magic):
            return name
    return "webdataset" if head[257:262] == b"ustar" else None


def filesystem_of(url: str) -> str:
    """Return the type of the file system that holds a path or URL: ``ext4``, ``tmpfs``, ``s3``, ...

    >>> filesystem_of("s3://bucket/x")
    's3'
    """
    path = local_path(url)
    if path is None:
        return url.partition("://")[0].rpartition("::")[2]
    real = os.path.realpath(path)
    best, kind = -1, ""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        _, mount, type_, *_ = line.split(" ")
        mount = mount.encode().decode("unicode_escape") if "\\" in mount else mount
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        # Of two mounts on one folder the later hides the earlier.
        if inside and len(mount) >= best:
            best, kind = len(mount), type_
    return kind
