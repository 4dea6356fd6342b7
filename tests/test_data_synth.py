"""Synthesized datasets: the same bytes whoever writes them, whole shards or none."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from ioprobe.data import store as store_module
from ioprobe.data.describe import describe
from ioprobe.data.samples import draw_size, make_sample
from ioprobe.data.spec import Spec, resolve
from ioprobe.data.store import FolderStore, GatherWriter
from ioprobe.data.synth import MANIFEST, Progress, synthesize
from ioprobe.errors import OutputError, UsageError

SMALL = Spec(kind="array", samples=20, shard_samples=6, sample_bytes=1000, seed=3)
MOST = [
    ("webdataset", "image", None),
    ("webdataset", "tokens", "gzip"),
    ("webdataset", "audio", "zstd"),
    ("parquet", "image", "zstd"),
    ("arrow", "array", "lz4"),
    ("tfrecord", "image", None),
    ("jsonl", "tokens", "zstd"),
    ("npy", "array", None),
    ("npz", "array", "deflate"),
    ("hdf5", "image", None),
    ("tokens", "tokens", None),
    ("imagefolder", "image", None),
]


def digest(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize(("format_", "kind", "compression"), MOST)
def test_bytes_depend_on_the_seed_and_not_on_the_number_of_workers(
    tmp_path: Path, format_: str, kind: str, compression: str | None
) -> None:
    size = (48, 40) if kind == "image" else None
    spec = Spec(format=format_, kind=kind, samples=7, shard_samples=3, image_size=size, compression=compression)
    for name, workers in (("a", 0), ("b", 3)):
        synthesize(spec, str(tmp_path / name), workers=workers)
    synthesize(Spec(**{**vars(spec), "seed": 1}), str(tmp_path / "c"), workers=0)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert set(digest(tmp_path / "a").values()).isdisjoint(digest(tmp_path / "c").values())


@pytest.mark.parametrize(("format_", "kind", "compression"), MOST)
def test_what_is_written_is_described_and_counted(
    tmp_path: Path, format_: str, kind: str, compression: str | None
) -> None:
    size = (48, 40) if kind == "image" else None
    spec = Spec(format=format_, kind=kind, samples=7, shard_samples=3, image_size=size, compression=compression)
    written = synthesize(spec, str(tmp_path / "d"), workers=0)
    facts = describe(written.url)
    whole_file = format_ in {"webdataset", "jsonl", "tfrecord"} and compression
    assert facts.format == format_
    assert facts.num_shards == (7 if format_ == "imagefolder" else 3)
    assert facts.num_samples == (None if whole_file or format_ == "jsonl" or format_ == "arrow" else 7)
    assert facts.total_bytes == written.total_bytes
    assert facts.compression == ("compressed" if format_ == "arrow" else compression)


@pytest.mark.parametrize("format_", ["webdataset", "parquet", "arrow", "tfrecord", "jsonl", "npy", "npz", "tokens"])
def test_describing_reads_headers_and_not_the_data(tmp_path: Path, format_: str) -> None:
    kind = "tokens" if format_ == "tokens" else "array"
    spec = Spec(format=format_, kind=kind, samples=128, shard_samples=128, sample_bytes=131_072)
    written = synthesize(spec, str(tmp_path / "d"), workers=0)
    describe(written.url)  # the first call imports
    before = bytes_read()
    facts = describe(written.url)
    read = bytes_read() - before
    assert facts.total_bytes is not None
    assert facts.total_bytes >= 128 * 131_072
    assert read < 4 << 20  # a few buffers of 1 MiB, of 16 MiB
    assert facts.num_samples == {"jsonl": None, "tokens": facts.num_samples}.get(format_, 128)


def bytes_read() -> int:
    """Return what this process has read by system calls so far [bytes]."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split("\n")[0])


def test_a_spec_by_bytes_and_the_default_divide_samples_into_shards() -> None:
    by_bytes = resolve(Spec(kind="array", samples=100, sample_bytes=1000, shard_bytes=10_000))
    assert (by_bytes.per_shard, by_bytes.num_shards) == (10, 10)
    assert resolve(Spec(kind="array", samples=100, sample_bytes=1000)).num_shards == 15
    assert resolve(Spec(kind="array", samples=10**6, sample_bytes=1 << 20)).per_shard == 64


def test_sizes_vary_as_asked_around_the_mean() -> None:
    spec = resolve(Spec(kind="array", samples=1, sample_bytes=10_000, sample_bytes_cv=0.5))
    sizes = np.array([draw_size(spec, i) for i in range(4000)])
    assert sizes.mean() == pytest.approx(10_000, rel=0.03)
    assert sizes.std() / sizes.mean() == pytest.approx(0.5, rel=0.1)


def test_images_are_photograph_sized_jpegs_that_differ() -> None:
    from PIL import Image

    spec = resolve(Spec(samples=8))
    blobs = [make_sample(spec, i)["image"] for i in range(8)]
    images = [Image.open(io.BytesIO(b)) for b in blobs]
    assert {i.size for i in images} == {(500, 375)}
    assert {i.mode for i in images} == {"RGB"}
    assert len({hashlib.sha256(b).digest() for b in blobs}) == 8


def test_synthesized_jpegs_take_the_bytes_per_pixel_of_photographs() -> None:
    skimage = pytest.importorskip("skimage")
    from PIL import Image

    from ioprobe.data.samples import JPEG_QUALITY

    def bytes_per_pixel(image: Any) -> float:
        out = io.BytesIO()
        image.convert("RGB").save(out, "JPEG", quality=JPEG_QUALITY)
        return len(out.getvalue()) / (image.width * image.height)

    folder = Path(skimage.__file__).parent / "data"
    photographs = [Image.open(folder / n) for n in ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")]
    real = np.mean([bytes_per_pixel(p) for p in photographs])
    spec = resolve(Spec(samples=12))
    made = np.mean([len(make_sample(spec, i)["image"]) / (500 * 375) for i in range(12)])
    assert 0.8 < made / real < 1.25


def test_an_image_of_any_size_and_a_wanted_file_size_are_met() -> None:
    from PIL import Image

    large = resolve(Spec(samples=1, image_size=(1300, 700)))
    assert Image.open(io.BytesIO(make_sample(large, 0)["image"])).size == (1300, 700)
    asked = resolve(Spec(samples=20, sample_bytes=40_000))
    sizes = [len(make_sample(asked, i)["image"]) for i in range(20)]
    assert np.mean(sizes) == pytest.approx(40_000, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "zarr"}, "unknown format 'zarr'"),
        ({"kind": "video"}, "unknown kind 'video'"),
        ({"samples": 0}, "samples is 0"),
        ({"shard_samples": -1}, "shard_samples is -1"),
        ({"format": "npy", "kind": "image"}, "npy does not hold samples of kind image"),
        ({"format": "imagefolder", "kind": "tokens"}, "imagefolder does not hold"),
        ({"compression": "lzma"}, "webdataset has no compression 'lzma'"),
        ({"image_size": (4, 4), "sample_bytes": 5}, "exclude each other"),
        ({"image_size": (0, 4)}, "outside 1..65500"),
        ({"kind": "tokens", "image_size": (4, 4)}, "says nothing about tokens"),
        ({"format": "npy", "kind": "array", "sample_bytes_cv": 0.5}, "npy holds samples of one size"),
        ({"sample_bytes": -5}, "cannot be meant"),
        ({"sample_bytes": 5, "sample_bytes_cv": float("nan")}, "cannot be meant"),
    ],
)
def test_a_spec_that_cannot_be_meant_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve(Spec(**changes))


def test_an_unfinished_dataset_is_continued_and_its_shards_are_kept(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    synthesize(SMALL, str(whole), workers=0)
    synthesize(SMALL, str(part), workers=0)
    before = (part / "shard-000000.tar").stat().st_mtime_ns
    (part / "shard-000002.tar").unlink()
    (part / ".tmp-999-shard-000002.tar").write_bytes(b"half")
    seen: list[Progress] = []
    written = synthesize(SMALL, str(part), workers=2, on_progress=seen.append)
    assert written.kept_shards == 3
    assert digest(part) == digest(whole)
    assert (part / "shard-000000.tar").stat().st_mtime_ns == before
    assert [(p.shards_done, p.shards, p.shards_kept) for p in seen] == [(3, 4, 3), (4, 4, 3)]


def test_a_shard_that_was_cut_after_it_was_finished_is_written_again(tmp_path: Path) -> None:
    synthesize(SMALL, str(tmp_path), workers=0)
    good = digest(tmp_path)
    os.truncate(tmp_path / "shard-000001.tar", 100)
    assert synthesize(SMALL, str(tmp_path), workers=0).kept_shards == 3
    assert digest(tmp_path) == good


KILLED = """
import sys
from ioprobe.data.spec import Spec
from ioprobe.data.synth import synthesize
spec = Spec(kind="array", samples=400, shard_samples=10, sample_bytes=200_000, seed=5)
synthesize(spec, sys.argv[1], workers=2, on_progress=lambda p: print(p.shards_done, flush=True))
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for orphans in /proc")
def test_after_kill_9_nothing_half_has_a_final_name_and_the_next_run_completes(tmp_path: Path) -> None:
    place = tmp_path / "d"
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(place)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        while int(child.stdout.readline()) < 3:
            pass
        child.kill()
        child.wait()
        child.stdout.read()  # ends when the last writer process has ended, too: they hold the pipe
    finished = sorted(place.glob("shard-*.tar"))
    assert 3 <= len(finished) < 40
    for path in finished:
        with tarfile.open(path) as tar:
            assert len(tar.getmembers()) == 20
    spec = Spec(kind="array", samples=400, shard_samples=10, sample_bytes=200_000, seed=5)
    written = synthesize(spec, str(place), workers=2)
    assert written.kept_shards == len(finished)
    assert sorted(p.name for p in place.iterdir()) == [MANIFEST] + [f"shard-{n:06d}.tar" for n in range(40)]


def test_another_spec_is_refused_and_named_and_force_replaces_it(tmp_path: Path) -> None:
    synthesize(SMALL, str(tmp_path), workers=0)
    other = Spec(**{**vars(SMALL), "samples": 6, "seed": 9})
    with pytest.raises(OutputError, match=r"another dataset: samples 20 \(asked: 6\), seed 3 \(asked: 9\)"):
        synthesize(other, str(tmp_path), workers=0)
    synthesize(other, str(tmp_path), workers=0, force=True)
    assert sorted(digest(tmp_path)) == [MANIFEST, "shard-000000.tar"]


def test_foreign_files_are_refused_and_never_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match=r"holds files that no synth wrote: thesis\.tex"):
        synthesize(SMALL, str(tmp_path), workers=0)
    assert sorted(digest(tmp_path)) == ["thesis.tex"]
    synthesize(SMALL, str(tmp_path), workers=0, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert len(digest(tmp_path)) == 6


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(OutputError, match=r"x"):
        synthesize(SMALL, str(tmp_path / "x"), workers=0)


@pytest.mark.parametrize("format_", ["webdataset", "parquet", "imagefolder"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_gives_one_line_and_leaves_no_half_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, workers: int
) -> None:
    real = os.fsync
    calls = {"n": 0}

    def full(descriptor: int) -> None:
        calls["n"] += 1
        if calls["n"] > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(store_module.os, "fsync", full)
    spec = Spec(format=format_, samples=8, shard_samples=2, image_size=(32, 32))
    with pytest.raises(OutputError) as caught:
        synthesize(spec, str(tmp_path / "d"), workers=workers)
    assert "no space left on device" in caught.value.message
    assert "\n" not in caught.value.message
    there = sorted(p.name for p in (tmp_path / "d").iterdir())
    assert ("not written again" in caught.value.hint) == (len(there) > 1)
    assert MANIFEST in there or not there
    assert not [p for p in (tmp_path / "d").iterdir() if p.name.startswith(".tmp-")]
    monkeypatch.undo()
    synthesize(spec, str(tmp_path / "d"), workers=0)
    synthesize(spec, str(tmp_path / "good"), workers=0)
    assert digest(tmp_path / "d") == digest(tmp_path / "good")


def test_a_disk_that_is_full_at_the_first_shard_leaves_nothing_and_promises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: FolderStore, name: str, fill: Any, *, stable: bool = False) -> int:
        if name != MANIFEST:
            raise folder._fail(name, OSError(errno.ENOSPC, "No space left on device"))
        return put(folder, name, fill, stable=stable)

    put = FolderStore.put
    monkeypatch.setattr(FolderStore, "put", full)
    with pytest.raises(OutputError) as caught:
        synthesize(Spec(samples=4, shard_samples=2, image_size=(16, 16)), str(tmp_path / "d"), workers=0)
    assert caught.value.hint == "free some space or choose another place"
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_really_full_file_system_gives_one_line_and_leaves_no_half_shard(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mount is not allowed here")
    try:
        spec = Spec(kind="array", samples=100, shard_samples=10, sample_bytes=100_000)
        with pytest.raises(OutputError, match="no space left on device"):
            synthesize(spec, str(place / "d"), workers=2)
        left = sorted(p.name for p in (place / "d").iterdir())
        assert left[0] == MANIFEST
        for name in left[1:]:
            with tarfile.open(place / "d" / name) as tar:
                assert len(tar.getmembers()) == 20
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_writer_process_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ioprobe.data.writers.write_one", lambda *args: os._exit(9))
    with pytest.raises(OutputError, match="a writer process died while it wrote shard"):
        synthesize(SMALL, str(tmp_path), workers=2)


def test_an_object_store_gets_whole_objects_and_is_continued() -> None:
    memory = fsspec.filesystem("memory")
    try:
        first = synthesize(SMALL, "memory://synth-bucket/d")
        assert describe(first.url).num_shards == 4
        memory.rm("/synth-bucket/d/shard-000003.tar")
        assert synthesize(SMALL, "memory://synth-bucket/d").kept_shards == 3
        with pytest.raises(OutputError, match="holds another dataset"):
            synthesize(Spec(samples=3), "memory://synth-bucket/d")
        folder = Spec(format="imagefolder", samples=4, shard_samples=2, image_size=(16, 16))
        synthesize(folder, "memory://synth-bucket/i")
        assert synthesize(folder, "memory://synth-bucket/i").kept_shards == 2
    finally:
        memory.rm("/synth-bucket", recursive=True)


def test_the_manifest_states_the_spec(tmp_path: Path) -> None:
    synthesize(SMALL, str(tmp_path), workers=0)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest["spec"]["seed"] == 3
    assert manifest["shard_bytes"] == [p.stat().st_size for p in sorted(tmp_path.glob("*.tar"))]


def test_a_gather_writer_writes_what_a_file_would(tmp_path: Path) -> None:
    parts = [os.urandom(n) for n in (0, 1, 511, 5 << 20, 3)] + [b"x"] * 600
    with GatherWriter(str(tmp_path / "a")) as file:
        for part in parts:
            file.write(part)
        assert file.tell() == sum(map(len, parts))
        file.seek(0)
        assert file.read(1) == parts[1]
    assert (tmp_path / "a").read_bytes() == b"".join(parts)


def test_leftovers_of_temporary_names_are_no_entries(tmp_path: Path) -> None:
    (tmp_path / ".tmp-1-x").write_text("")
    (tmp_path / ".tmp-2-folder").mkdir()
    (tmp_path / ".tmp-2-folder" / "x").write_text("")
    place = FolderStore(str(tmp_path))
    assert place.entries() == {}
    place.clean()
    assert list(tmp_path.iterdir()) == []


def test_synthesizing_pulls_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from ioprobe.data.spec import Spec; from ioprobe.data.synth import synthesize;"
        f"synthesize(Spec(samples=2, image_size=(16, 16)), {str(tmp_path / 'd')!r}, workers=0);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="forked writers")
def test_ctrl_c_ends_with_130_and_leaves_only_whole_shards(tmp_path: Path) -> None:
    place = tmp_path / "d"
    command = [sys.executable, "-m", "ioprobe_cli", "synth", str(place), "--kind", "array", "--sample-bytes", "200kB"]
    child = subprocess.Popen([*command, "--samples", "20000", "--shard-size", "10"], stderr=subprocess.PIPE)
    while not list(place.glob("shard-*.tar")):
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err.strip()) == (130, b"Interrupted.")
    names = sorted(p.name for p in place.iterdir())
    assert names[0] == MANIFEST
    assert all(n.startswith("shard-") for n in names[1:])
