"""Datasets that somebody else wrote: tar and Parquet headers, and the URLs that name them."""

from __future__ import annotations

import io
import os
import pickle
import re
import tarfile
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile import WORDS, command, damaged, fuzz, refused_or_read, within_bounds
from hypothesis import given
from hypothesis import strategies as st

from ioprobe.data.braces import expand_braces
from ioprobe.data.describe import describe
from ioprobe.data.formats import parquet, webdataset
from ioprobe.data.loaders import make_loader
from ioprobe.data.shards import Shard
from ioprobe.data.urls import list_shards
from ioprobe.errors import DataError, UsageError
from ioprobe.secrets import redact_url


def _tar(members: list[tuple[str, bytes]]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return whole.getvalue()


TAR = _tar([("a/0001.cls", b"7"), ("a/0001.txt", b"x" * 700), ("b" * 120 + ".txt", b"long"), ("0002.cls", b"8")])[:6144]


def _parquet() -> bytes:
    whole = io.BytesIO()
    table = pa.table(
        {"label": list(range(40)), "data": [b"x" * i for i in range(40)], "tokens": [[i, i] for i in range(40)]}
    )
    pq.write_table(table, whole, row_group_size=16, compression="snappy")
    return whole.getvalue()


PARQUET = _parquet()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def _sealed(tar: bytes) -> bytes:
    """Return the tar with the checksums of its headers made right, as somebody who means harm would."""
    sealed = bytearray(tar)
    for at in range(0, len(sealed) - 511, 512):
        if sealed[at + 257 : at + 262] == b"ustar":
            total = sum(sealed[at : at + 512]) - sum(sealed[at + 148 : at + 156]) + 8 * 32
            sealed[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(sealed)


def _read_tar(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    shard = Shard(str(path), len(data))
    refused_or_read(lambda: list(islice(webdataset.read_samples(shard), 1000)))
    refused_or_read(lambda: webdataset.index_members(shard))
    refused_or_read(lambda: describe(str(path)))


@pytest.mark.parametrize("seal", [bytes, _sealed], ids=["damaged", "forged"])
def test_a_changed_tar_is_read_or_refused_in_one_line(place: Path, seal: Any) -> None:
    @fuzz(120)
    @given(damaged(TAR))
    def holds(data: bytes) -> None:
        _read_tar(place / "x.tar", seal(data))

    holds()


@fuzz(80)
@given(
    st.sampled_from([b"-0000000001", b"-7777777777", b"77777777777", b"0o777", b"1_0", b" 7 ", b"\x80" + b"\xff" * 11,
                     b"\xff" * 12, b"\x80" + bytes(10) + b"\x07", b"9", b"x"]),
    st.sampled_from([*b"0\x00175xLgKS", 255]),
    st.sampled_from([b"", b"12 path=ab\n", b"9" * 5000 + b" path=a\n", b"0 path=a\n", b"7 =\n" * 50, b"-1 path=a\n",
                     b"99999999 path=a\n", b"\xff" * 100]),
)  # fmt: skip
def test_a_forged_header_neither_loops_nor_claims_memory(size: bytes, kind: int, body: bytes) -> None:
    header = bytearray(webdataset.make_header("0001.cls", len(body)))
    header[124:136] = size.ljust(12, b"\0")
    header[156] = kind
    data = _sealed(bytes(header)) + body + bytes(-len(body) % 512) + TAR
    refused_or_read(lambda: list(islice(webdataset.read_members(io.BytesIO(data), "x.tar"), 1000)))

    def walk() -> None:
        members = webdataset.walk_members(lambda at, n: data[at : at + n], len(data), "x.tar")
        assert len(list(islice(members, 1000))) < 1000

    refused_or_read(walk)


def _read_parquet(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    shard = Shard(str(path), len(data))

    def read() -> None:
        reader = parquet.Reader(shard)
        for index in range(min(3, len(reader))):
            reader.read_sample(index)

    refused_or_read(lambda: describe(str(path)))
    refused_or_read(read)
    refused_or_read(lambda: list(islice(parquet.read_samples(shard), 100)))


def test_a_damaged_parquet_file_is_read_or_refused_in_one_line(place: Path) -> None:
    footer = int.from_bytes(PARQUET[-8:-4], "little") + 8

    @fuzz(150)
    @given(damaged(PARQUET[-footer:-8]), st.booleans())
    def holds(tail: bytes, honest: bool) -> None:
        length = len(tail) if honest else footer - 8
        _read_parquet(place / "x.parquet", PARQUET[:-footer] + tail + length.to_bytes(4, "little") + b"PAR1")

    holds()


@fuzz(60)
@given(damaged(PARQUET))
def test_a_damaged_parquet_file_is_refused_wherever_the_damage_lies(place: Path, data: bytes) -> None:
    _read_parquet(place / "y.parquet", data)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch exploded",))


def test_a_loader_delivers_pickles_as_bytes_whatever_their_member_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blob = pickle.dumps(Bomb())
    names = ["pyd", "pickle", "pkl", "pth", "pt", "pyc", "npy.pickle"]
    (tmp_path / "x.tar").write_bytes(_tar([(f"0001.{name}", blob) for name in names] + [("0001.cls", b"1")]))
    (batch,) = list(make_loader(str(tmp_path / "x.tar"), batch_size=1, num_workers=1))
    assert {name: batch[name] for name in names} == {name: [blob] for name in names}
    assert not (tmp_path / "exploded").exists()


def test_an_image_that_claims_a_billion_pixels_is_refused(tmp_path: Path) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    size = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")
    (tmp_path / "x.tar").write_bytes(_tar([("0001.png", image)]))
    with pytest.raises(DataError, match=r"cannot decode 'png' of sample '0001'.*more pixels"):
        list(make_loader(str(tmp_path / "x.tar"), batch_size=1))


_PIECES = st.one_of(
    st.sampled_from(
        ["{", "}", ",", "..", "{0..3}", "{3..0..2}", "{a,b}", "{000..999}", "{-3..3}", "*", "?", "[", "]", "**/", "/",
         "~", "file://", "s3://", "http://", "memory://", "zip://", "::", "simplecache::", "user:p@ss@", "@", "?k=v",
         "#x", "data/x.tar", "\x00", "%00", "..//..", "://", ":"]
    ),
    st.sampled_from(WORDS),
    st.text(max_size=6),
)  # fmt: skip


@fuzz(300)
@given(st.lists(_PIECES, max_size=7).map("".join))
def test_any_pattern_expands_or_is_refused_in_one_line(pattern: str) -> None:
    refused_or_read(lambda: expand_braces(pattern, 10_000))
    redact_url(pattern)


# Only schemes that reach nothing outside this machine.
@fuzz(200)
@given(
    st.sampled_from(
        ["", "file://", "memory://", "nosuch://", "zip://x::", "simplecache::memory://", "filecache::file://"]
    ),
    st.lists(
        _PIECES.filter(lambda text: text.isascii() and not re.search(r"[\n\r]|http|s3|\*\*|\.\.", text)),
        max_size=4,
    ).map("".join),
)
def test_any_local_url_is_listed_or_refused_in_one_line(place: Path, scheme: str, rest: str) -> None:
    url = f"{scheme}{place}/none/{rest}" if scheme in ("", "file://") else f"{scheme}none/{rest}"
    refused_or_read(lambda: list_shards(url))


@pytest.mark.parametrize(
    "pattern",
    ["{" * 100_000, "{a," * 50_000 + "}" * 50_000, "{0..1}" * 500, "{" + "9" * 5000 + "..1}", "{0..99999999999999}",
     "x" * 1_000_000 + "{0..4000000}", "{" + "a," * 500_000 + "}"],
    ids=["open", "deep", "many", "digits", "long-range", "long-name", "long-list"],
)  # fmt: skip
def test_a_pattern_made_to_fill_memory_is_refused_or_short(pattern: str) -> None:
    try:
        assert len(expand_braces(pattern)) < 1_000_000
    except UsageError as error:
        assert len(error.message) < 2_000_000  # noqa: PT017 - either will do


def test_a_header_that_claims_sixteen_gibibytes_is_refused_without_taking_them(tmp_path: Path) -> None:
    code = """
from ioprobe.data.formats import webdataset
from ioprobe.errors import DataError
header = bytearray(webdataset.make_header("0001.cls", 1))
header[124:136] = b"\\x80" + (15 << 30).to_bytes(11, "big")
total = sum(header) - sum(header[148:156]) + 256
header[148:156] = b"%06o\\0 " % total
open("x.tar", "wb").write(bytes(header) + b"x" * 4096)
from ioprobe.data.shards import Shard
try:
    list(webdataset.read_samples(Shard("x.tar", 4608)))
except DataError as error:
    print(error.message)
"""
    assert "needs 16106127360 bytes, 4096 are there" in within_bounds(code, tmp_path)


def test_names_of_members_and_files_cannot_steer_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[2Jb"
    folder.mkdir()
    (folder / "[red]x[bold].tar").write_bytes(_tar([("\x1b[31m0001.cls", b"1")])[:700])
    for words in (["storage", str(folder), "--describe"], ["storage", str(folder / "none.tar")],
                  ["storage", f"{folder}/*.parquet", "--describe"]):  # fmt: skip
        code, out, err = command(*words)
        assert code in (0, 2)
        assert "\x1b" not in out + err
