"""Formats of records and tables against their own libraries, and each kind of damage."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from format_files import SAMPLES, TOKENS, cut, plain, read, write

from ioprobe.data.crc32c import crc32c_numpy, masked
from ioprobe.data.formats import FORMATS, MAP_STYLE, load_format, open_reader, tfrecord, webdataset
from ioprobe.data.shards import Sample, Shard
from ioprobe.data.store import FolderStore
from ioprobe.errors import DataError


def test_every_format_has_a_module_with_the_whole_surface() -> None:
    for name in FORMATS:
        module = load_format(name)
        for part in ("COMPRESSIONS", "suffix", "read_samples", "decode_fields", "count_samples", "write_shard"):
            assert hasattr(module, part), f"{name} lacks {part}"
        if name in MAP_STYLE:
            assert hasattr(module, "Reader"), name


# WebDataset


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_a_tar_that_we_write_is_read_by_webdataset_and_by_us_alike(tmp_path: Path, compression: str | None) -> None:
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    shard = write(tmp_path, "webdataset", SAMPLES, compression)
    ours = read("webdataset", shard)
    assert [s["jpg"] for s in ours] == [s["image"] for s in SAMPLES]
    assert [s["cls"] for s in ours] == [str(s["label"]).encode() for s in SAMPLES]
    if compression == "zstd":
        return  # webdataset would start an external zstd
    with open(shard.url, "rb") as stream:
        members = [{**m, "__url__": "x"} for m in tar_file_iterator(stream)]
    theirs = [{k: s[k] for k in ("__key__", "jpg", "cls")} for s in group_by_keys(members)]
    assert theirs == ours


def test_a_tar_that_tarfile_wrote_with_long_names_is_read(tmp_path: Path) -> None:
    names = ["a" * 150 + "/" + "b" * 120 + ".txt", "dir/umlaut-ä.seg.txt", "short.txt"]
    for format_ in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        place = tmp_path / f"{format_}.tar"
        with tarfile.open(place, "w", format=format_) as tar:
            tar.addfile(tarfile.TarInfo("folder.d"))
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = 5
                info.mtime = 1.5  # makes pax write a record of its own
                tar.addfile(info, io.BytesIO(b"hello"))
        found = read("webdataset", Shard(str(place)))[1:]
        keys = [webdataset.split_name(n) for n in names]
        assert [(s["__key__"], next(k for k in s if k != "__key__")) for s in found] == keys


def test_the_tar_index_finds_each_members_bytes_from_headers_alone(tmp_path: Path) -> None:
    shard = write(tmp_path, "webdataset", SAMPLES)
    data = Path(shard.url).read_bytes()
    members = webdataset.index_members(shard)
    with tarfile.open(shard.url) as tar:
        assert [(m.name, m.offset, m.size_bytes) for m in members] == [
            (t.name, t.offset_data, t.size) for t in tar.getmembers()
        ]
    assert data[members[0].offset :][: members[0].size_bytes] == SAMPLES[0]["image"]
    assert webdataset.count_samples(shard) == len(SAMPLES)


def test_a_truncated_tar_names_shard_member_and_offset(tmp_path: Path) -> None:
    shard = cut(write(tmp_path, "webdataset", SAMPLES), 1300)
    with pytest.raises(DataError, match=r"shard\.tar' is cut short at byte 1024"):
        read("webdataset", shard)
    shard = cut(shard, 600)
    for action in (lambda: read("webdataset", shard), lambda: webdataset.count_samples(shard)):
        with pytest.raises(DataError, match=r"shard\.tar' is cut short: member '0000\.jpg' at byte 0"):
            action()


@pytest.mark.parametrize(("data", "said"), [(b"", "is empty"), (bytes(10240), "is empty"), (b"x" * 2048, "damaged")])
def test_an_empty_or_foreign_tar_is_an_error(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(DataError, match=said):
        read("webdataset", Shard(f"{tmp_path}/x.tar"))


def test_a_gzip_cut_short_is_an_error_that_names_it(tmp_path: Path) -> None:
    shard = cut(write(tmp_path, "webdataset", SAMPLES, "gzip"), 100)
    with pytest.raises(DataError, match=r"shard\.tar\.gz"):
        read("webdataset", shard)


def test_a_zstd_cut_short_is_an_error_that_names_it(tmp_path: Path) -> None:
    shard = cut(write(tmp_path, "webdataset", SAMPLES, "zstd"), 100)
    with pytest.raises(DataError, match=r"shard\.tar\.zst"):
        read("webdataset", shard)


# Parquet and Arrow


@pytest.mark.parametrize("compression", [None, "snappy", "zstd"])
def test_parquet_that_we_write_holds_the_samples_for_pyarrow_and_for_us(
    tmp_path: Path, compression: str | None
) -> None:
    shard = write(tmp_path, "parquet", SAMPLES, compression)
    table = pq.read_table(shard.url)
    assert table.column("image").to_pylist() == [s["image"] for s in SAMPLES]
    assert pq.ParquetFile(shard.url).metadata.num_row_groups == 3
    assert read("parquet", shard) == [{"key": s["__key__"], "image": s["image"], "label": s["label"]} for s in SAMPLES]


def test_parquet_tokens_are_a_list_column(tmp_path: Path) -> None:
    shard = write(tmp_path, "parquet", [{"__key__": "0", "tokens": TOKENS}])
    assert pq.read_table(shard.url).column("tokens").to_pylist() == [TOKENS.tolist()]
    assert read("parquet", shard)[0]["tokens"] == TOKENS.tolist()


def test_foreign_parquet_types_are_read_as_pyarrow_reads_them(tmp_path: Path) -> None:
    table = pa.table(
        {
            "t": pa.array(["a", None, "c"]),
            "b": pa.array([b"x", None, b""]),
            "l": pa.array([[1.5], [], None], pa.list_(pa.float32())),
            "s": pa.array([{"bytes": b"x", "path": "p"}, None, {"bytes": b"", "path": "q"}]),
            "big": pa.array([b"1", b"22", b""], pa.large_binary()),
        }
    )
    place = str(tmp_path / "x.parquet")
    pq.write_table(table, place)
    assert read("parquet", Shard(place, Path(place).stat().st_size)) == table.to_pylist()


def test_a_reader_reads_each_row_group_once_while_it_stays_in_it(tmp_path: Path) -> None:
    reader: Any = open_reader("parquet", write(tmp_path, "parquet", SAMPLES))
    groups: list[int] = []
    whole = reader.read_group
    reader.read_group = lambda group: (groups.append(group), whole(group))[1]
    assert [reader.read_sample(i)["label"] for i in (2, 0, 1, 5, 3, 4, 2, 6)] == [2, 0, 1, 5, 3, 4, 2, 6]
    assert groups == [0, 1, 2]
    assert list(reader.groups) == [3, 3, 1]


def test_zero_rows_damage_and_a_foreign_file_are_errors_for_parquet(tmp_path: Path) -> None:
    place = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), place)
    with pytest.raises(DataError, match=r"x\.parquet' has no rows"):
        read("parquet", Shard(str(place), place.stat().st_size))
    for data in (b"", b"PAR1 is not enough"):
        place.write_bytes(data)
        with pytest.raises(DataError, match=r"cannot read Parquet shard '.*x\.parquet'"):
            read("parquet", Shard(str(place), len(data)))


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    shard = write(tmp_path, "parquet", SAMPLES, "zstd")
    start = pq.ParquetFile(shard.url).metadata.row_group(1).column(1).data_page_offset
    data = bytearray(Path(shard.url).read_bytes())
    data[start : start + 40] = b"\xff" * 40
    Path(shard.url).write_bytes(data)
    with pytest.raises(DataError, match=r"row group 1 of '.*shard\.parquet'"):
        read("parquet", shard)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_that_we_write_is_feather(tmp_path: Path, compression: str | None) -> None:
    shard = write(tmp_path, "arrow", SAMPLES, compression)
    assert feather.read_table(shard.url).column("label").to_pylist() == [s["label"] for s in SAMPLES]
    assert [s["image"] for s in read("arrow", shard)] == [s["image"] for s in SAMPLES]


def test_an_arrow_stream_as_huggingface_writes_it_is_read(tmp_path: Path) -> None:
    place = tmp_path / "x.arrow"
    table = pa.table({"a": [1, 2, 3]})
    with pa.ipc.new_stream(str(place), table.schema) as out:
        out.write_table(table)
    assert read("arrow", Shard(str(place), place.stat().st_size)) == table.to_pylist()


@pytest.mark.parametrize("keep", [0, 20, 400])
def test_a_truncated_arrow_file_is_an_error(tmp_path: Path, keep: int) -> None:
    shard = cut(write(tmp_path, "arrow", SAMPLES), keep)
    with pytest.raises(DataError, match=r"shard\.arrow"):
        read("arrow", shard)


# TFRecord


def test_crc32c_gives_the_published_check_values() -> None:
    # RFC 3720, B.4, and the catalogue's check value.
    assert crc32c_numpy(b"123456789") == 0xE3069283
    assert crc32c_numpy(bytes(32)) == 0x8A9136AA
    assert crc32c_numpy(b"\xff" * 32) == 0x62A8AB43
    assert crc32c_numpy(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 1000, 4096, 70_001])
def test_crc32c_of_lanes_equals_the_bytewise_one(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    assert crc32c_numpy(data) == state ^ 0xFFFFFFFF


def test_an_example_made_by_hand_from_the_protobuf_spec_is_decoded() -> None:
    # Example{features{feature{key:"i" value{int64_list{300,-1}}} feature{key:"f" float_list{0.5}} key:"b" bytes_list}}
    ints = bytes([0x0A, 2 + 10]) + b"\xac\x02" + b"\xff" * 9 + b"\x01"
    unpacked = b"\x08\x07\x08\x09"
    floats = b"\x0a\x04" + struct.pack("<f", 0.5)

    def entry(name: bytes, kind: int, body: bytes) -> bytes:
        feature = bytes([kind << 3 | 2, len(body)]) + body
        inner = bytes([0x0A, len(name)]) + name + bytes([0x12, len(feature)]) + feature
        return bytes([0x0A, len(inner)]) + inner

    features = entry(b"i", 3, ints) + entry(b"u", 3, unpacked) + entry(b"f", 2, floats) + entry(b"b", 1, b"\x0a\x02hi")
    found = tfrecord.decode_example(b"\x0a" + bytes([len(features)]) + features)
    assert {k: plain(v) for k, v in found.items()} == {"i": [300, -1], "u": [7, 9], "f": 0.5, "b": b"hi"}


def test_a_record_framed_by_hand_is_read(tmp_path: Path) -> None:
    # Frame of the 4 bytes "abcd", checksums by the reference definition.
    length = struct.pack("<Q", 4)
    frame = length + struct.pack("<I", masked(length)) + b"abcd" + struct.pack("<I", masked(b"abcd"))
    assert list(tfrecord.read_records(io.BytesIO(frame * 2), "x")) == [b"abcd", b"abcd"]


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_tfrecord_samples_come_back(tmp_path: Path, compression: str | None) -> None:
    samples: list[Sample] = [{**s, "tokens": TOKENS} for s in SAMPLES]
    shard = write(tmp_path, "tfrecord", samples, compression)
    assert [{k: v for k, v in s.items() if k != "__key__"} for s in read("tfrecord", shard)] == [
        {"image": s["image"], "label": s["label"], "tokens": TOKENS.tolist()} for s in SAMPLES
    ]
    assert tfrecord.count_samples(shard) == (None if compression else len(SAMPLES))


def test_a_flipped_bit_and_a_cut_in_a_tfrecord_name_the_records_offset(tmp_path: Path) -> None:
    shard = write(tmp_path, "tfrecord", SAMPLES)
    data = bytearray(Path(shard.url).read_bytes())
    second = 16 + struct.unpack_from("<Q", data)[0]
    data[second + 30] ^= 1
    Path(shard.url).write_bytes(data)
    with pytest.raises(DataError, match=f"checksum of the record at byte {second} differs"):
        read("tfrecord", shard)
    data[second] ^= 1
    Path(shard.url).write_bytes(data)
    with pytest.raises(DataError, match=f"checksum of the record length at byte {second} differs"):
        tfrecord.count_samples(shard)
    with pytest.raises(DataError, match="record at byte 0 is incomplete"):
        read("tfrecord", cut(shard, 50))


# JSON lines


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_json_lines_samples_come_back_and_json_reads_them(tmp_path: Path, compression: str | None) -> None:
    samples: list[Sample] = [{**s, "tokens": TOKENS} for s in SAMPLES]
    shard = write(tmp_path, "jsonl", samples, compression)
    assert [{k: v for k, v in s.items() if k != "__key__"} for s in read("jsonl", shard)] == [
        {"image": s["image"], "label": s["label"], "tokens": TOKENS.tolist()} for s in SAMPLES
    ]
    if compression == "gzip":
        assert json.loads(gzip.decompress(Path(shard.url).read_bytes()).splitlines()[0])["label"] == 0


def test_a_line_that_is_no_json_names_shard_and_line(tmp_path: Path) -> None:
    place = tmp_path / "x.jsonl"
    place.write_text('{"a": 1}\n\n[1]\n')
    with pytest.raises(DataError, match=r"line 3 of '.*x\.jsonl' is no JSON object"):
        read("jsonl", Shard(str(place)))
    place.write_text("")
    with pytest.raises(DataError, match="is empty"):
        read("jsonl", Shard(str(place)))


def test_a_folder_store_is_what_the_writers_use(tmp_path: Path) -> None:
    assert FolderStore(str(tmp_path)).put("a", lambda file: None) == 0
    assert FolderStore(str(tmp_path)).entries() == {"a": 0}
