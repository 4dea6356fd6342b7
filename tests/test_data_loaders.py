"""The built-in DataLoader of every format."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from ioprobe.data.decode import decode_sample
from ioprobe.data.loaders import make_loader, ranks
from ioprobe.data.spec import Spec
from ioprobe.data.synth import synthesize
from ioprobe.data.torch_datasets import GroupSampler, ShardStream, collate_samples
from ioprobe.errors import DataError, IoprobeError, StoreError, TargetError, UsageError

FORMATS = [
    ("webdataset", "image"),
    ("webdataset", "array"),
    ("webdataset", "audio"),
    ("webdataset", "tokens"),
    ("parquet", "image"),
    ("parquet", "tokens"),
    ("arrow", "image"),
    ("tfrecord", "image"),
    ("jsonl", "tokens"),
    ("npy", "array"),
    ("npz", "array"),
    ("hdf5", "image"),
    ("tokens", "tokens"),
    ("imagefolder", "image"),
]
SHAPES = {"image": (3, 32, 32), "array": (131_072,), "audio": (160_000,), "tokens": (1024,)}
TYPES = {"image": torch.uint8, "array": torch.uint8, "audio": torch.float32, "tokens": torch.int64}


def dataset(folder: Path, format_: str = "webdataset", kind: str = "image", samples: int = 10, **more: Any) -> str:
    size = (40, 36) if kind == "image" else None
    spec = Spec(format=format_, kind=kind, samples=samples, image_size=size, **{"shard_samples": 4, **more})
    return synthesize(spec, str(folder / f"{format_}-{kind}"), workers=0).url


def keys(loader: Any) -> list[str]:
    return [str(k) for batch in loader for k in keys_of(batch)]


def keys_of(batch: dict[str, Any]) -> list[str]:
    keys: list[str] = batch["key"] if "key" in batch else batch["__key__"]
    return keys


@pytest.mark.parametrize(("format_", "kind"), FORMATS)
def test_every_format_delivers_every_sample_once_as_tensors(tmp_path: Path, format_: str, kind: str) -> None:
    url = dataset(tmp_path, format_, kind)
    batches = list(make_loader(url, batch_size=3, image_size=32))
    found = [v for b in batches for n, v in b.items() if isinstance(v, torch.Tensor) and v.ndim > 1]
    shape = (1025,) if format_ == "tokens" else SHAPES[kind]
    assert {tuple(v.shape[1:]) for v in found} == {shape}
    assert {v.dtype for v in found} == {TYPES[kind]}
    assert sum(len(v) for v in found) == 10
    if kind == "image":
        labels = [int(x) for b in batches for n in ("label", "cls") if n in b for x in b[n]]
        assert len(labels) == 10


@pytest.mark.parametrize("format_", ["webdataset", "parquet", "tfrecord"])
def test_workers_share_the_samples_and_shuffling_loses_none(tmp_path: Path, format_: str) -> None:
    url = dataset(tmp_path, format_, samples=18, row_group_size=2)
    in_order = [int(x) for b in make_loader(url, batch_size=4) for x in b.get("label", b.get("cls"))]
    for options in ({"num_workers": 2}, {"num_workers": 2, "shuffle": True}, {"shuffle": True}):
        loader = make_loader(url, batch_size=4, **options)  # type: ignore[arg-type]
        got = [int(x) for b in loader for x in b.get("label", b.get("cls"))]
        assert Counter(got) == Counter(in_order), options


def test_the_seed_fixes_the_shuffle_and_epochs_differ(tmp_path: Path) -> None:
    for format_ in ("webdataset", "parquet"):
        url = dataset(tmp_path, format_, samples=24, row_group_size=2)
        loader = make_loader(url, batch_size=4, shuffle=True, seed=1)
        first, second = keys(loader), keys(loader)
        assert keys(make_loader(url, batch_size=4, shuffle=True, seed=1)) == first
        assert first != second
        assert sorted(first) == sorted(second)


def test_a_repeating_loader_goes_on_after_the_last_sample(tmp_path: Path) -> None:
    for format_ in ("webdataset", "parquet"):
        loader = make_loader(dataset(tmp_path, format_), batch_size=5, repeat=True, shuffle=True)
        stream = iter(loader)
        found = [k for _ in range(4) for k in keys_of(next(stream))]
        assert {Counter(found)[k] for k in found} == {2}


def test_fewer_shards_than_workers_leaves_workers_idle_and_repeats_nothing(tmp_path: Path) -> None:
    loader = make_loader(dataset(tmp_path, samples=8), batch_size=2, num_workers=3)
    assert loader.dataset.idle_workers(3) == 1  # type: ignore[attr-defined]
    assert sorted(keys(loader)) == [f"{i:09d}" for i in range(8)]


def test_ranks_share_shards_and_row_groups_without_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for format_ in ("webdataset", "parquet"):
        url = dataset(tmp_path, format_, samples=24, row_group_size=2)
        monkeypatch.setenv("WORLD_SIZE", "2")
        seen = []
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            assert ranks() == (int(rank), 2)
            loader = make_loader(url, batch_size=4, shuffle=True)
            seen.append(keys(loader))
            if format_ == "parquet":
                assert len(loader) == 3
        monkeypatch.delenv("WORLD_SIZE")
        assert sorted(seen[0] + seen[1]) == [f"{i:09d}" for i in range(24)]


def test_more_ranks_than_shards_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "9")
    monkeypatch.setenv("RANK", "8")
    with pytest.raises(TargetError, match="has 3 shards for 9 ranks"):
        make_loader(dataset(tmp_path))


def test_options_that_say_nothing_without_workers_are_left_out(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "prefetch_factor": 4,
        "persistent_workers": True,
        "multiprocessing_context": "spawn",
        "timeout": 5,
    }
    url = dataset(tmp_path)
    assert len(keys(make_loader(url, num_workers=0, **options))) == 10
    loader = make_loader(url, num_workers=1, **options)
    assert (loader.prefetch_factor, loader.persistent_workers, loader.timeout) == (4, True, 5)


@pytest.mark.parametrize(("format_", "kind"), FORMATS)
def test_datasets_pickle_even_after_they_were_read(tmp_path: Path, format_: str, kind: str) -> None:
    loader = make_loader(dataset(tmp_path, format_, kind, samples=4), batch_size=2, image_size=32)
    assert len(list(loader)) == 2
    twin = pickle.loads(pickle.dumps(loader.dataset))
    assert len(list(torch.utils.data.DataLoader(twin, batch_size=2, collate_fn=collate_samples))) == 2


def test_spawned_workers_read_too(tmp_path: Path) -> None:
    loader = make_loader(dataset(tmp_path, "parquet"), batch_size=5, num_workers=1, multiprocessing_context="spawn")
    assert len(keys(loader)) == 10


def test_without_decoding_samples_are_as_stored(tmp_path: Path) -> None:
    batch = next(iter(make_loader(dataset(tmp_path), batch_size=3, decode=False)))
    assert len(batch) == 3
    assert batch[0]["jpg"][:3] == b"\xff\xd8\xff"


def test_samples_of_different_shapes_stay_a_list(tmp_path: Path) -> None:
    url = dataset(tmp_path, "webdataset", "array", sample_bytes=1000, sample_bytes_cv=0.5)
    batch = next(iter(make_loader(url, batch_size=4)))
    assert isinstance(batch["npy"], list)
    assert batch["cls"].shape == (4,)


def test_an_object_store_is_read_by_the_same_loader() -> None:
    try:
        for format_ in ("webdataset", "parquet", "tokens"):
            kind = "tokens" if format_ == "tokens" else "image"
            size = None if kind == "tokens" else (24, 24)
            spec = Spec(format=format_, kind=kind, samples=6, shard_samples=2, image_size=size)
            url = synthesize(spec, f"memory://loader-bucket/{format_}").url
            assert len(keys(make_loader(url, batch_size=2, image_size=16))) == 6
    finally:
        fsspec.filesystem("memory").rm("/loader-bucket", recursive=True)


def test_a_row_group_stays_with_one_worker() -> None:
    sampler = GroupSampler([8] * 6, shuffle=True, lanes=2, batch_size=4)
    order = list(sampler)
    assert sorted(order) == list(range(48))
    batches = [order[i : i + 4] for i in range(0, 48, 4)]
    groups = [{i // 8 for i in batch} for batch in batches]
    assert all(len(g) == 1 for g in groups)
    workers = [set().union(*groups[k::2]) for k in range(2)]
    assert workers[0].isdisjoint(workers[1])


def test_a_sampler_without_groups_draws_from_all() -> None:
    assert list(GroupSampler([5], shuffle=False)) == [0, 1, 2, 3, 4]
    drawn = list(GroupSampler([1] * 50, shuffle=True, seed=2))
    assert sorted(drawn) == list(range(50))
    assert drawn != list(range(50))


def test_a_stream_shuffles_within_its_window(tmp_path: Path) -> None:
    loader = make_loader(dataset(tmp_path, samples=12), batch_size=1, shuffle=True)
    assert isinstance(loader.dataset, ShardStream)
    assert keys(loader) != sorted(keys(loader))


def test_a_corrupt_jpeg_names_field_sample_and_shard(tmp_path: Path) -> None:
    url = dataset(tmp_path, "webdataset", samples=3)
    shard = Path(url)
    data = bytearray(shard.read_bytes())
    data[512 + 200 : 512 + 700] = bytes(500)
    data[512 + 150] = 0xFF
    start = data.find(b"\xff\xd8\xff", 1000)
    data[start : start + 20] = b"\xff\xd8\xff" + bytes(17)
    shard.write_bytes(data)
    with pytest.raises(DataError, match=r"cannot decode 'jpg' of sample '00000000\d' of '.*shard-000000\.tar'"):
        list(make_loader(url, batch_size=1))


def test_an_error_in_a_worker_arrives_as_the_same_kind_of_error(tmp_path: Path) -> None:
    url = dataset(tmp_path, "tfrecord", samples=3)
    Path(url).write_bytes(Path(url).read_bytes()[:-3])
    with pytest.raises(IoprobeError):
        list(make_loader(url, batch_size=1, num_workers=1))


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"num_workers": -1}])
def test_sizes_that_cannot_be_meant_are_usage_errors(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="cannot be meant"):
        make_loader(str(tmp_path), **options)  # type: ignore[arg-type]


def test_images_are_cropped_at_the_centre_and_wav_and_text_are_decoded() -> None:
    from PIL import Image

    from ioprobe.data.encode import wav_header

    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[:, 48:80] = 255
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    wav = wav_header(6, 16_000) + np.array([0, 16_384, -32_768], "<i2").tobytes()
    sample = decode_sample(
        {"__key__": "k", "png": out.getvalue(), "wav": wav, "txt": b"hi", "cls": b"12\n", "raw": b"\x00\x01"},
        image_size=8,
    )
    assert sample["png"].shape == (3, 8, 8)
    assert sample["png"][0, 4].tolist()[3:5] == [255, 255]
    assert sample["png"][0, 4, 0] == 0
    assert sample["wav"].tolist() == [0.0, 0.5, -1.0]
    assert (sample["txt"], sample["cls"], sample["raw"]) == ("hi", 12, b"\x00\x01")


def test_a_cut_image_is_an_error_and_not_a_grey_picture() -> None:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(out, "JPEG")
    with pytest.raises(DataError, match=r"cannot decode 'jpg' of sample 'k' of 'x\.tar'"):
        decode_sample({"__key__": "k", "jpg": out.getvalue()[:1500]}, where="x.tar")
    with pytest.raises(DataError, match="it is no image"):
        decode_sample({"__key__": "k", "jpg": b"<html>"})


def test_open_shards_are_bounded_and_the_oldest_is_closed(tmp_path: Path) -> None:
    table: Any = make_loader(dataset(tmp_path, "parquet", samples=12, shard_samples=2)).dataset
    for index in range(12):
        table[index]
    assert [reader._file is not None for reader in table._readers] == [False] * 4 + [True] * 2
    assert int(table[0]["label"]) == int(table[0]["label"])


def test_a_failing_store_is_one_line_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    class ClientError(Exception):
        pass

    def refuse(self: object, path: str, **kwargs: object) -> None:
        raise ClientError("Forbidden: https://key:secret@h/x?X-Amz-Signature=abc\nmore")

    monkeypatch.setattr(MemoryFileSystem, "info", refuse)
    with pytest.raises(StoreError) as caught:
        make_loader("memory://bucket/x.tar")
    assert caught.value.message == "cannot read 'memory://bucket/x.tar': Forbidden: https://h/x"
