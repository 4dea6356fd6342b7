"""Loaders with known manners, for measuring the model's error. Deterministic in the sample's number.

Storage is emulated by sleeping, so it takes no CPU; everything else is real work.
Data is made on first use under ``$IOPROBE_BENCH_DATA`` (default: a folder in the temporary directory).
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

ENDLESS = 10_000_000
DATA = Path(os.environ.get("IOPROBE_BENCH_DATA", Path(tempfile.gettempdir()) / "ioprobe-bench-data"))


@dataclass(frozen=True)
class Workload:
    """One loader: its dataset, and how it batches."""

    name: str
    dataset: Callable[[], Any]
    batch_size: int | None
    samples: int
    """Samples per batch."""
    collate_fn: Callable[[Any], Any] | None = None
    cycle: int = 1
    """Batches after which the data repeats; windows are whole cycles, so that none sees luckier samples."""

    def loader(self, num_workers: int, prefetch_factor: int = 2, **changes: Any) -> DataLoader[Any]:
        """Return a DataLoader over a fresh dataset."""
        more = {"prefetch_factor": prefetch_factor} if num_workers else {}
        return DataLoader(
            self.dataset(),
            batch_size=self.batch_size,
            collate_fn=self.collate_fn,
            num_workers=num_workers,
            **{**more, **changes},
        )


def burn(units: float) -> None:
    """Do a fixed amount of CPU work, about a millisecond per unit, letting go of the GIL as codecs do."""
    for _ in range(max(1, round(units * 16))):
        np.sort(_NOISE, axis=None)


_NOISE = np.random.default_rng(0).random(6000, dtype=np.float32)


def lognormal(number: int, mean: float, sigma: float) -> float:
    """Return the number-th draw of a lognormal with that mean."""
    return math.exp(random.Random(number * 7919 + 13).gauss(math.log(mean) - sigma * sigma / 2, sigma))


class Samples(Dataset[Any]):
    """A map-style dataset without end."""

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, i: int) -> Any:
        raise NotImplementedError


class Latency(Samples):
    """Each sample waits for storage: nothing but latency."""

    def __init__(self, wait_s: float = 0.002) -> None:
        self.wait_s = wait_s

    def __getitem__(self, i: int) -> Any:
        time.sleep(self.wait_s)
        return torch.full((256,), float(i % 7)), i % 10


class LongTailLatency(Samples):
    """Latency with a heavy tail: in-order delivery waits for the slowest."""

    def __getitem__(self, i: int) -> Any:
        time.sleep(min(lognormal(i % 328, 0.003, 1.4), 0.25))
        return torch.full((256,), 1.0), i % 10


class SlowWorker(Samples):
    """Worker 0 is three times as slow as the others, and order makes all wait for it."""

    def __getitem__(self, i: int) -> Any:
        info = get_worker_info()
        time.sleep(0.0015 * (3 if info is not None and info.id == 0 else 1))
        return torch.full((256,), 1.0), i % 10


class Bursts(Samples):
    """Every 496th sample (one batch in 31) waits 60 ms: an index to read, a token to renew."""

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.060 if i % 496 == 0 else 0.0006)
        burn(0.15)
        return torch.full((256,), 1.0), i % 10


class Jpeg(Samples):
    """Decode and resize, with or without waiting for storage first."""

    def __init__(self, wait_s: float = 0.0, count: int = 256) -> None:
        self.files = [p.read_bytes() for p in sorted((folder() / "jpeg").glob("*.jpg"))[:count]]
        self.wait_s = wait_s

    def __getitem__(self, i: int) -> Any:
        if self.wait_s:
            time.sleep(self.wait_s)
        return decode(self.files[(i * 7) % len(self.files)], 160), i % 10


class LongTailCpu(Samples):
    """CPU work with a heavy tail."""

    def __getitem__(self, i: int) -> Any:
        burn(min(lognormal(i % 328, 1.5, 1.3), 100.0))
        return torch.full((256,), 1.0), i % 10


class Tokens(Samples):
    """A tokenizer in pure Python: it holds the GIL."""

    def __init__(self, words: int = 1500) -> None:
        rng = random.Random(0)
        vocabulary = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 9))) for _ in range(500)]
        self.documents = [" ".join(rng.choice(vocabulary) for _ in range(words)) for _ in range(128)]
        self.numbers = {word: k for k, word in enumerate(vocabulary)}

    def __getitem__(self, i: int) -> Any:
        tokens = []
        for word in self.documents[i % 128].split():
            value = self.numbers.get(word, 0)
            for letter in word:
                value = (value * 31 + ord(letter)) & 0xFFFF
            tokens.append(value % 30000)
        return torch.tensor(tokens[:128]), i % 10


class BigTensors(Samples):
    """3 MB a sample from memory: copying and shared memory are the work."""

    def __init__(self) -> None:
        self.images = torch.rand(16, 3, 512, 512)

    def __getitem__(self, i: int) -> Any:
        return self.images[i % 16], i % 10


class Tiny(Samples):
    """Half a millisecond a batch: queues and wake-ups are the work."""

    def __init__(self) -> None:
        self.rows = torch.rand(4096, 32)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i % 4096], i % 10


class Ragged(Samples):
    """Sequences of different lengths for a heavy collate function."""

    def __init__(self) -> None:
        self.lengths = np.random.default_rng(0).integers(300, 2400, 1024)

    def __getitem__(self, i: int) -> Any:
        return np.arange(self.lengths[i % 1024] * 4, dtype=np.float32).reshape(-1, 4)


def pad_and_derive(samples: list[Any]) -> Any:
    """Pad, mask, and derive ten sorted features."""
    longest = max(len(s) for s in samples)
    x = np.zeros((len(samples), longest, 4), np.float32)
    mask = np.zeros((len(samples), longest), bool)
    for k, sample in enumerate(samples):
        x[k, : len(sample)] = sample
        mask[k, : len(sample)] = True
    batch = {"x": torch.from_numpy(x), "mask": torch.from_numpy(mask)}
    for k in range(10):
        wave = np.tanh(np.cos(x[..., k % 4].astype(np.float64) * (k + 1)))
        batch[f"feature{k}"] = torch.from_numpy(np.sort(wave, axis=1).astype(np.float32))
    return batch


class Records(Samples):
    """Nested Python objects: pickled through the pipe, one by one."""

    def __getitem__(self, i: int) -> Any:
        words = [f"token{(i * 31 + k) % 997}" for k in range(120)]
        return {"id": i, "words": words, "boxes": [[k, k + 1, k + 2, k + 3] for k in range(30)]}


def as_list(samples: list[Any]) -> Any:
    """Leave the samples as they are."""
    return samples


class ManyTensors(Samples):
    """24 small tensors a sample: each costs a file descriptor on its way to the main process."""

    def __init__(self) -> None:
        self.rows = torch.rand(512, 24, 16)

    def __getitem__(self, i: int) -> Any:
        burn(0.2)
        row = self.rows[i % 512]
        return {f"field{k}": row[k] for k in range(24)}


class SharedBandwidth(Samples):
    """One storage of 200 MB/s for all workers, and 4 ms of latency a read."""

    def __init__(self, bytes_per_s: float = 200e6, latency_s: float = 0.004) -> None:
        self.bytes_per_s, self.latency_s = bytes_per_s, latency_s
        self.free_at = multiprocessing.Value("d", 0.0)

    def __getitem__(self, i: int) -> Any:
        size = 1e6 * (0.5 + (i * 37 % 101) / 101.0)
        with self.free_at.get_lock():
            now = time.monotonic()
            self.free_at.value = done = max(now, self.free_at.value) + size / self.bytes_per_s
        time.sleep(max(0.0, done + self.latency_s - now))
        burn(0.3)
        return torch.full((1024,), 1.0), i % 10


class Locked(Samples):
    """A lock that all workers take around a read: more workers do not help."""

    def __init__(self) -> None:
        self.lock = multiprocessing.Lock()

    def __getitem__(self, i: int) -> Any:
        with self.lock:
            time.sleep(0.0008 + 0.0008 * (i * 37 % 101) / 101.0)
        burn(0.8)
        return torch.full((256,), 1.0), i % 10


class OneShard(IterableDataset[Any]):
    """One file for any number of workers: only one of them delivers."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is not None and info.id:
            return
        for i in range(ENDLESS):
            time.sleep(0.0006)
            burn(0.2)
            yield torch.full((256,), 1.0), i % 10


class RowGroups(IterableDataset[Any]):
    """Parquet row groups, read whole: a burst of work every 16 batches."""

    def __iter__(self) -> Iterator[Any]:
        import pyarrow.parquet as pq

        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        files = sorted((folder() / "parquet").glob("*.parquet"))
        for k in range(first, ENDLESS, step):
            table = pq.ParquetFile(files[(k // 4) % len(files)]).read_row_group(k % 4, use_threads=False)
            values = np.stack([table.column(f"f{j}").to_numpy() for j in range(16)], 1)
            texts = table.column("text").to_pylist()
            for row in range(len(values)):
                yield values[row], len(texts[row].split())


def tar_pipeline() -> Any:
    """JPEG files in tar shards through webdataset, batched in the pipeline."""
    import webdataset

    shards = [str(p) for p in sorted((folder() / "tar").glob("*.tar"))]
    pipeline = webdataset.WebDataset(
        shards, shardshuffle=False, nodesplitter=webdataset.split_by_node, empty_check=False
    )
    return pipeline.repeat(100_000).map(_decode_member).batched(16)


def _decode_member(sample: dict[str, bytes]) -> Any:
    return decode(sample["jpg"], 128), int(sample["cls"])


def decode(data: bytes, side: int) -> torch.Tensor:
    """Return a JPEG as a (3, side, side) tensor."""
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB").resize((side, side))
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def folder() -> Path:
    """Return the data folder, made on first use."""
    ready = DATA / "ready"
    if not ready.exists():
        for make in (_make_jpeg, _make_tar, _make_parquet):
            make()
        ready.touch()
    return DATA


def _make_jpeg() -> None:
    from PIL import Image

    place = DATA / "jpeg"
    place.mkdir(parents=True, exist_ok=True)
    for i in range(256):
        size = [(400, 320), (500, 375), (320, 240), (640, 480)][i % 4]
        noise = np.random.default_rng(i).integers(0, 255, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(place / f"{i:04}.jpg", quality=90)


def _make_tar() -> None:
    place = DATA / "tar"
    place.mkdir(parents=True, exist_ok=True)
    images = [p.read_bytes() for p in sorted((DATA / "jpeg").glob("*.jpg"))]
    for shard in range(16):
        with tarfile.open(place / f"{shard:04}.tar", "w") as tar:
            for j in range(128):
                for suffix, data in (("jpg", images[(shard * 128 + j) % 256]), ("cls", b"%d" % (j % 10))):
                    member = tarfile.TarInfo(f"{shard:04}{j:05}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def _make_parquet() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = DATA / "parquet"
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for shard in range(16):
        columns: dict[str, Any] = {f"f{j}": rng.normal(size=16384).astype(np.float32) for j in range(16)}
        columns["text"] = [f"row {i} {rng.integers(0, 10**9)} " * 4 for i in range(16384)]
        pq.write_table(pa.table(columns), place / f"{shard:04}.parquet", row_group_size=4096, compression="zstd")


def _all() -> dict[str, Workload]:
    found = [
        Workload("latency", Latency, 16, 16),
        Workload("long-tail-latency", LongTailLatency, 8, 8, cycle=41),
        Workload("slow-worker", SlowWorker, 16, 16),
        Workload("bursts", Bursts, 16, 16, cycle=31),
        Workload("jpeg", Jpeg, 16, 16, cycle=16),
        Workload("jpeg-and-latency", lambda: Jpeg(0.004), 8, 8, cycle=32),
        Workload("long-tail-cpu", LongTailCpu, 8, 8, cycle=41),
        Workload("tokens-gil", Tokens, 32, 32, cycle=4),
        Workload("big-tensors", BigTensors, 8, 8),
        Workload("heavy-collate", Ragged, 32, 32, pad_and_derive, cycle=32),
        Workload("python-objects", Records, 64, 64, as_list),
        Workload("many-tensors", ManyTensors, 32, 32),
        Workload("shared-bandwidth", SharedBandwidth, 8, 8, cycle=13),
        Workload("lock", Locked, 8, 8, cycle=13),
        Workload("one-shard", OneShard, 16, 16),
        Workload("row-groups", RowGroups, 256, 256, cycle=16),
        Workload("webdataset", tar_pipeline, None, 16, cycle=16),
        Workload("tiny", Tiny, 64, 64),
    ]
    return {w.name: w for w in found}


WORKLOADS = _all()


def __getattr__(name: str) -> Any:
    """Return ``make_NAME`` as a factory of that workload's loader (``make_long_tail_cpu``), for ``ioprobe tune``."""
    workload = WORKLOADS.get(name.removeprefix("make_").replace("_", "-"))
    if not name.startswith("make_") or workload is None:
        raise AttributeError(name)

    def factory(num_workers: int = 2, prefetch_factor: int = 2, **more: Any) -> DataLoader[Any]:
        return workload.loader(num_workers, prefetch_factor, **more)

    return factory
