"""Each format against its own library, and each kind of damage."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from ioprobe.data.crc32c import crc32c_numpy, masked
from ioprobe.data.formats import FORMATS, MAP_STYLE, WriteOptions, load_format, open_reader, tfrecord, webdataset
from ioprobe.data.shards import Sample, Shard, extra
from ioprobe.data.store import FolderStore, compressing
from ioprobe.errors import DataError, TargetError, UsageError

TOKENS = np.array([5, 0, 50_256, 300], np.uint16)
SAMPLES: list[Sample] = [
    {"__key__": f"{i:04d}", "image": b"\xff\xd8\xff" + bytes([i]) * (100 + i), "label": i} for i in range(7)
]
ARRAYS: list[Sample] = [{"__key__": str(i), "array": np.arange(12, dtype=np.uint8) + i, "label": i} for i in range(5)]


def write(folder: Path, name: str, samples: list[Sample], compression: str | None = None, rows: int = 3) -> Shard:
    """Write a shard as the synthesizer does; return it."""
    module = load_format(name)
    options = WriteOptions(compression, rows, len(samples))
    place = folder / f"shard{module.suffix(options)}"
    codec = compression if name in {"webdataset", "jsonl", "tfrecord"} else None
    with open(place, "w+b") as file, compressing(file, codec) as out:
        module.write_shard(out, samples, options)
    return Shard(str(place), place.stat().st_size)


def read(name: str, shard: Shard) -> list[Sample]:
    module = load_format(name)
    return [{k: plain(v) for k, v in module.decode_fields(s).items()} for s in module.read_samples(shard)]


def plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def cut(shard: Shard, keep: int) -> Shard:
    data = Path(shard.url).read_bytes()
    Path(shard.url).write_bytes(data[:keep])
    return Shard(shard.url, keep)


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


# Arrays and tokens


def test_npy_is_what_numpy_reads_and_writes(tmp_path: Path) -> None:
    shard = write(tmp_path, "npy", ARRAYS)
    assert np.array_equal(np.load(shard.url), np.stack([s["array"] for s in ARRAYS]))
    assert [s["array"] for s in read("npy", shard)] == [s["array"].tolist() for s in ARRAYS]
    np.save(tmp_path / "f.npy", np.asfortranarray(np.arange(6.0).reshape(3, 2)))
    assert [s["array"] for s in read("npy", Shard(f"{tmp_path}/f.npy"))] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_npz_is_what_numpy_reads_and_writes(tmp_path: Path, compression: str | None) -> None:
    shard = write(tmp_path, "npz", ARRAYS, compression)
    with np.load(shard.url) as archive:
        assert archive["label"].tolist() == [0, 1, 2, 3, 4]
    assert read("npz", shard)[3] == {"__key__": "3", "array": ARRAYS[3]["array"].tolist(), "label": 3}


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path(os.environ["IOPROBE_TEST_BOMB"]),))


def test_no_pickle_in_the_data_is_ever_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ioprobe.data.decode import decode_sample

    monkeypatch.setenv("IOPROBE_TEST_BOMB", str(tmp_path / "exploded"))
    np.save(tmp_path / "x.npy", np.array([Bomb()], object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", a=np.array([Bomb()], object))
    for name in ("npy", "npz"):
        with pytest.raises(DataError, match="pickled Python objects, which are never loaded"):
            read(name, Shard(f"{tmp_path}/x.{name}", 1 << 20))
    blob = pickle.dumps(Bomb())
    member = (tmp_path / "x.npy").read_bytes()
    decoded = decode_sample({"__key__": "0", "pyd": blob, "pickle": blob, "pth": blob})
    assert decoded["pyd"] == blob
    with pytest.raises(DataError, match="cannot decode 'npy' of sample '0'"):
        decode_sample({"__key__": "0", "npy": member})
    assert not (tmp_path / "exploded").exists()


def test_damaged_arrays_are_errors(tmp_path: Path) -> None:
    shard = write(tmp_path, "npy", ARRAYS)
    with pytest.raises(DataError, match="is cut short: it needs 188 bytes, 150 are there"):
        read("npy", cut(shard, 150))
    np.save(tmp_path / "shard.npy", np.zeros((0, 3)))
    with pytest.raises(DataError, match="holds no sample"):
        read("npy", Shard(shard.url))
    (tmp_path / "shard.npy").write_bytes(b"no")
    with pytest.raises(DataError, match=r"is no \.npy array"):
        read("npy", Shard(shard.url))
    np.savez(tmp_path / "x.npz", a=np.zeros(2), b=np.zeros(3))
    with pytest.raises(DataError, match="differ in length"):
        read("npz", Shard(f"{tmp_path}/x.npz"))
    with zipfile.ZipFile(tmp_path / "x.npz", "w"):
        pass
    with pytest.raises(DataError, match="holds no sample"):
        read("npz", Shard(f"{tmp_path}/x.npz"))


def test_arrays_of_different_sizes_do_not_fit_a_dense_format(tmp_path: Path) -> None:
    ragged: list[Sample] = [{"__key__": str(n), "array": np.zeros(n, np.uint8)} for n in (3, 4)]
    for name in ("npy", "npz"):
        with pytest.raises(UsageError, match="holds samples of one size"):
            write(tmp_path, name, ragged)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_hdf5_is_what_h5py_reads(tmp_path: Path, compression: str | None) -> None:
    h5py = pytest.importorskip("h5py")
    shard = write(tmp_path, "hdf5", ARRAYS, compression)
    with h5py.File(shard.url) as file:
        assert file["array"].compression == compression
        assert file["label"][:].tolist() == [0, 1, 2, 3, 4]
    assert read("hdf5", shard)[4] == {"__key__": "4", "array": ARRAYS[4]["array"].tolist(), "label": 4}
    images = write(tmp_path, "hdf5", SAMPLES)
    assert [bytes(s["image"]) for s in read("hdf5", images)] == [s["image"] for s in SAMPLES]


def test_a_damaged_hdf5_is_an_error_that_names_it(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    shard = cut(write(tmp_path, "hdf5", ARRAYS), 100)
    with pytest.raises(DataError, match=r"cannot read HDF5 shard '.*shard\.h5'"):
        read("hdf5", shard)


def test_a_token_file_without_header_gives_overlapping_windows(tmp_path: Path) -> None:
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "x.bin")
    reader = open_reader("tokens", Shard(f"{tmp_path}/x.bin", 20), sequence_length=4)
    assert [reader.read_sample(i)["tokens"].tolist() for i in range(len(reader))] == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]


def test_llm_c_and_megatron_headers_tell_the_token_type(tmp_path: Path) -> None:
    header = np.zeros(256, np.int32)
    header[:3] = 20240801, 1, 5
    (tmp_path / "c.bin").write_bytes(header.tobytes() + np.arange(70_000, 70_005, dtype=np.uint32).tobytes())
    reader = open_reader("tokens", Shard(f"{tmp_path}/c.bin", 1044), sequence_length=4)
    assert reader.read_sample(0)["tokens"].tolist() == [70_000, 70_001, 70_002, 70_003, 70_004]
    np.arange(5, dtype=np.int32).tofile(tmp_path / "m.bin")
    (tmp_path / "m.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QB", 1, 4) + bytes(16))
    reader = open_reader("tokens", Shard(f"{tmp_path}/m.bin", 20), sequence_length=4)
    assert reader.read_sample(0)["tokens"].tolist() == [0, 1, 2, 3, 4]


def test_a_token_file_shorter_than_a_sample_is_an_error(tmp_path: Path) -> None:
    np.arange(4, dtype=np.uint16).tofile(tmp_path / "x.bin")
    with pytest.raises(DataError, match=r"holds 4 tokens, fewer than one sample of 4 \+ 1"):
        open_reader("tokens", Shard(f"{tmp_path}/x.bin", 8), sequence_length=4)
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        open_reader("tokens", Shard(f"{tmp_path}/x.bin", 0))


# MDS and litdata: their packages are optional, so what needs none is checked without


def test_a_missing_optional_package_names_the_extra() -> None:
    with pytest.raises(TargetError) as caught:
        extra("no_such_package.sub", "mds", "decoding MDS")
    assert caught.value.message == "decoding MDS needs the package 'no_such_package', which is not installed"
    assert caught.value.hint == "pip install 'ioprobe[mds]'"


def test_pickle_columns_of_mds_and_litdata_are_refused(tmp_path: Path) -> None:
    entry = {
        "column_names": ["x"],
        "column_encodings": ["pkl"],
        "raw_data": {"basename": "shard.00000.mds"},
        "samples": 1,
    }
    (tmp_path / "shard.00000.mds").write_bytes(bytes(64))
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    with pytest.raises(DataError, match=r"column 'x' of .* holds pickles, which are never loaded"):
        read("mds", Shard(f"{tmp_path}/shard.00000.mds"))
    chunk = {"chunk_bytes": 1, "chunk_size": 1, "filename": "chunk-0-0.bin"}
    (tmp_path / "index.json").write_text(json.dumps({"chunks": [chunk], "config": {"data_format": ["pickle"]}}))
    with pytest.raises(DataError, match="holds pickles, which are never loaded"):
        load_format("litdata").count_samples(Shard(f"{tmp_path}/chunk-0-0.bin"))


def test_mds_framing_is_read_and_a_cut_is_named() -> None:
    mds: Any = load_format("mds")
    offsets = struct.pack("<IIII", 2, 18, 21, 26)
    whole = offsets + b"{}" + b"abc" + b"defgh"
    assert list(mds.read_records(io.BytesIO(whole), "x")) == [b"abc", b"defgh"]
    with pytest.raises(DataError, match="'x' is cut short: sample 1 at byte 21 is incomplete"):
        list(mds.read_records(io.BytesIO(whole[:-1]), "x"))
    with pytest.raises(DataError, match="empty or cut short"):
        list(mds.read_records(io.BytesIO(b""), "x"))


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_shards_written_through_the_formats_own_package_come_back(tmp_path: Path, name: str) -> None:
    pytest.importorskip({"mds": "streaming", "litdata": "litdata"}[name], exc_type=ImportError)
    from ioprobe.data.spec import Spec
    from ioprobe.data.synth import synthesize

    written = synthesize(Spec(format=name, kind="tokens", samples=5, shard_samples=2), str(tmp_path / "d"), workers=0)
    shards = [Shard(str(p)) for p in sorted((tmp_path / "d").iterdir()) if p.suffix in {".mds", ".bin"}]
    assert written.num_shards == len(shards) == 3
    assert [s["key"] for shard in shards for s in read(name, shard)] == [f"{i:09d}" for i in range(5)]


def test_a_folder_store_is_what_the_writers_use(tmp_path: Path) -> None:
    assert FolderStore(str(tmp_path)).put("a", lambda file: None) == 0
    assert FolderStore(str(tmp_path)).entries() == {"a": 0}
