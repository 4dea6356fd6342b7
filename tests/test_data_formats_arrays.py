"""Formats of arrays and tokens, MDS and LitData against their own libraries, and each kind of damage."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_files import ARRAYS, SAMPLES, cut, read, write

from ioprobe.data.formats import load_format, open_reader
from ioprobe.data.shards import Sample, Shard, extra
from ioprobe.errors import DataError, TargetError, UsageError

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
