"""WebDataset: tar shards whose members ``key.ext`` make up samples.

Headers are parsed here, not by ``tarfile``: reading a member costs two reads
and no object, and a plain tar can be indexed by its headers alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ioprobe.data.encode import encode_field
from ioprobe.data.formats import WriteOptions
from ioprobe.data.shards import Sample, Shard, reader_at, reading
from ioprobe.errors import DataError

COMPRESSIONS = ("gzip", "zstd")
BLOCK = 512
_END = bytes(BLOCK)
# Typeflags: plain files; names that follow as data (pax, GNU); everything else has no data of ours.
_FILES = b"0\x007"
_NAMES = b"xL"
_MOST_NAME_BYTES = 1 << 20
_MOST_MEMBER_BYTES = 16 << 30
_AT_ONCE_BYTES = 64 << 20
_EXTENSIONS = {"image": "jpg", "label": "cls", "array": "npy", "tokens": "tokens.npy", "audio": "wav"}


@dataclass(frozen=True)
class Member:
    """One file in a tar."""

    name: str
    offset: int
    """Where its data begins [bytes]."""
    size_bytes: int


def suffix(options: WriteOptions) -> str:
    """Return ``.tar``, ``.tar.gz`` or ``.tar.zst``."""
    return {None: ".tar", "gzip": ".tar.gz", "zstd": ".tar.zst"}[options.compression]


def split_name(name: str) -> tuple[str, str]:
    """Return key and field of a member, as the webdataset package splits it.

    >>> split_name("a/b.c/0001.seg.PNG"), split_name("noext")
    (('a/b.c/0001', 'seg.png'), ('noext', ''))
    """
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield samples: ``{"__key__": "0001", "jpg": bytes, "cls": bytes}``.

    Raises:
        DataError: the tar is empty, damaged or cut short; names shard and offset.
    """
    sample: Sample = {}
    key: str | None = None
    found = False
    with reading(shard), shard.open_decompressed() as file:
        for name, data in read_members(file, shard.name):
            stem, extension = split_name(name)
            if stem != key or extension in sample:
                if len(sample) > 1:
                    found = True
                    yield sample
                sample, key = {"__key__": stem}, stem
            if extension:
                sample[extension] = data
    if len(sample) > 1:
        found = True
        yield sample
    if not found:
        raise DataError(f"shard '{shard.name}' holds no sample", hint="write it again, or leave it out")


def read_members(file: BinaryIO, shard_name: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each regular file of a tar stream."""
    read, offset = file.read, 0
    long_name = ""
    while True:
        header = read(BLOCK)
        if len(header) < BLOCK or header == _END:
            _check_end(header, offset, shard_name)
            return
        name, size, kind = parse_header(header, offset, shard_name)
        padded = -(-size // BLOCK) * BLOCK
        body = _take(file, padded)
        if len(body) < size:
            raise DataError(
                f"shard '{shard_name}' is cut short: member '{long_name or name}' at byte {offset} needs "
                f"{size} bytes, {len(body)} are there",
                hint="write or download it again",
            )
        offset += BLOCK + padded
        if kind in _NAMES:
            long_name = _name_from(kind, body[:size]) or long_name
        else:
            if kind in _FILES:
                yield long_name or name, body if padded == size else body[:size]
            long_name = ""


def _take(file: BinaryIO, size: int) -> bytes:
    """Read so many bytes, or what there is: a header may claim more than memory holds, so not all at once."""
    if size <= _AT_ONCE_BYTES:
        return file.read(size)
    parts = []
    while size and (part := file.read(min(size, _AT_ONCE_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def parse_header(header: bytes, offset: int, shard_name: str) -> tuple[str, int, bytes]:
    """Return name, size [bytes] and typeflag of a tar header.

    Raises:
        DataError: it is no tar header, or its checksum is wrong.
    """
    try:
        stored = int(header[148:156].rstrip(b"\0 ") or b"0", 8)
        size_field = header[124:136]
        if size_field[0] & 0x80:
            size = int.from_bytes(size_field[1:], "big")
        else:
            size = int(size_field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        stored = size = -1
    kind = header[156:157]
    if not 0 <= size <= (_MOST_NAME_BYTES if kind in _NAMES else _MOST_MEMBER_BYTES):
        stored = -1
    if sum(header) - sum(header[148:156]) + 8 * 32 != stored:
        raise DataError(
            f"shard '{shard_name}' is damaged: no tar header at byte {offset}", hint="write or download it again"
        )
    name = header[:100].rstrip(b"\0").decode("utf-8", "surrogateescape")
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].rstrip(b"\0").decode("utf-8", "surrogateescape") + "/" + name
    return name, size, kind


def _check_end(header: bytes, offset: int, shard_name: str) -> None:
    if header and len(header) < BLOCK:
        raise DataError(f"shard '{shard_name}' is cut short at byte {offset}", hint="write or download it again")
    if offset == 0:
        raise DataError(f"shard '{shard_name}' is empty", hint="write it again, or leave it out")


def _name_from(kind: bytes, body: bytes) -> str:
    """Return the long name in a pax ('x') or GNU ('L') record; empty where a pax record has none."""
    if kind == b"L":
        return body.rstrip(b"\0").decode("utf-8", "surrogateescape")
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 9)
        length = body[at:space]
        if space < 0 or not length.isdigit() or int(length) <= len(length) + 1:
            return ""
        field, _, value = body[space + 1 : at + int(length)].rstrip(b"\n").partition(b"=")
        if field == b"path":
            return value.decode("utf-8", "surrogateescape")
        at += int(length)
    return ""


def index_members(shard: Shard) -> list[Member]:
    """Return where every member of a plain tar lies, by its headers alone.

    Raises:
        DataError: it is compressed (no seeking), damaged or cut short.
    """
    if shard.compression is not None:
        raise DataError(f"shard '{shard.name}' is compressed: it has no index", hint="use plain tar shards")
    with reading(shard), shard.open() as file:
        return list(walk_members(reader_at(shard, file), file.seek(0, 2), shard.name))


def walk_members(read_at: Callable[[int, int], bytes], total_bytes: int, shard_name: str) -> Iterator[Member]:
    """Yield the regular files of a plain tar from its headers, one read of 512 bytes each.

    Args:
        read_at: Reads so many bytes from an offset: (offset, length) -> bytes.
        total_bytes: Size of the tar.
        shard_name: For messages.

    Raises:
        DataError: it is damaged or cut short.
    """
    offset, long_name = 0, ""
    while True:
        header = read_at(offset, BLOCK)
        if len(header) < BLOCK or header == _END:
            _check_end(header, offset, shard_name)
            return
        name, size, kind = parse_header(header, offset, shard_name)
        if offset + BLOCK + size > total_bytes:
            raise DataError(
                f"shard '{shard_name}' is cut short: member '{name}' at byte {offset} needs {size} bytes",
                hint="write or download it again",
            )
        if kind in _NAMES:
            long_name = _name_from(kind, read_at(offset + BLOCK, size)) or long_name
        else:
            if kind in _FILES:
                yield Member(long_name or name, offset + BLOCK, size)
            long_name = ""
        offset += BLOCK + -(-size // BLOCK) * BLOCK


def count_samples(shard: Shard) -> int | None:
    """Return the samples of a plain local tar by its headers; None where that would mean reading the data."""
    if shard.compression is not None or shard.path is None:
        return None
    count, seen = 0, ("", set[str]())
    for member in index_members(shard):
        key, extension = split_name(member.name)
        if count == 0 or key != seen[0] or extension in seen[1]:
            count, seen = count + 1, (key, set())
        seen[1].add(extension)
    return count


def decode_fields(sample: Sample) -> Sample:
    """Return the sample: its members are its fields."""
    return sample


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write samples as tar members; owner, time and mode are fixed, so equal samples give equal bytes."""
    offset = 0
    for sample in samples:
        key = sample["__key__"]
        for name, value in sample.items():
            if name == "__key__":
                continue
            parts = encode_field(value)
            size = sum(len(p) for p in parts)
            file.write(make_header(f"{key}.{_EXTENSIONS.get(name, name)}", size))
            for part in parts:
                file.write(part)
            file.write(_END[: -size % BLOCK])
            offset += BLOCK + size + -size % BLOCK
    # Two zero blocks, then up to tar's record of 20 blocks, as every tar does.
    file.write(bytes(2 * BLOCK + -(offset + 2 * BLOCK) % (20 * BLOCK)))


def make_header(name: str, size: int) -> bytes:
    """Return the ustar header of a regular file.

    Raises:
        ValueError: the name is over 100 bytes, or the size over 8 GiB.
    """
    encoded = name.encode()
    if len(encoded) > 100 or size >= 8 << 30:
        raise ValueError(f"member '{name}' of {size} bytes does not fit a plain tar header")
    head = struct.pack(
        "100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x",
        encoded, b"0000644\0", b"0000000\0", b"0000000\0", b"%011o\0" % size, b"00000000000\0", b" " * 8,
        b"0", b"", b"ustar\0", b"00", b"", b"", b"0000000\0", b"0000000\0", b"",
    )  # fmt: skip
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]
