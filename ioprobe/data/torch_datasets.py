"""torch datasets over shards. Import this module only where torch is wanted.

Reading happens in functions called ``read_*``, decoding in ``decode_*``, so
that a sampled stack tells which of them a worker is in. All classes pickle
(for ``spawn``); files are opened in the process that reads them.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from ioprobe.data.decode import decode_sample
from ioprobe.data.formats import GROUPED, Reader, load_format, open_reader
from ioprobe.data.shards import Sample, Shard

SHUFFLE_BUFFER = 1000
"""Stored (not decoded) samples among which a stream draws, as webdataset's users set it."""
SHUFFLE_INITIAL = 100
"""Samples that must be there before the first is drawn."""
MAX_OPEN = 128
"""Shards that a process keeps open."""
MAX_OPEN_GROUPED = 2
"""The same where each open shard holds whole groups in memory."""


class _Decoder:
    """Turns stored samples into what a model gets. A field's name stays as it is stored."""

    def __init__(self, format_name: str, decode: bool, image_size: int | None) -> None:
        self._format, self._decode, self._image_size = format_name, decode, image_size

    def decode(self, sample: Sample, where: str) -> Sample:
        """Return the sample with tensors for fields, or as stored where decoding was not asked for."""
        if not self._decode:
            return {name: _own(value) for name, value in sample.items()}
        fields = load_format(self._format).decode_fields(sample)
        return {
            name: _to_tensor(value)
            for name, value in decode_sample(fields, image_size=self._image_size, where=where).items()
        }


def _own(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def _to_tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.ndim:
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    return _own(value)


class ShardStream(IterableDataset[Sample]):
    """Samples of a stream format; shards are divided among ranks, then among workers.

    Every sample comes once an epoch. Where a worker gets no shard, it delivers
    nothing: ``idle_workers`` tells how many that are.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        format_name: str,
        *,
        decode: bool = True,
        image_size: int | None = 224,
        shuffle: bool = False,
        seed: int = 0,
        repeat: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.shards = list(shards)[rank::world_size]
        self.format = format_name
        self.shuffle, self.seed, self.repeat = shuffle, seed, repeat
        self._decoder = _Decoder(format_name, decode, image_size)
        self._epoch = 0

    def idle_workers(self, num_workers: int) -> int:
        """Return how many of ``num_workers`` get no shard."""
        return max(0, num_workers - len(self.shards))

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        # The same on every worker of an epoch; new each epoch, whether workers persist or not.
        common = worker.seed - worker.id if worker is not None else 0
        while True:
            rng = random.Random(f"{self.seed} {common} {self._epoch}")
            self._epoch += 1
            order = list(self.shards)
            if self.shuffle:
                rng.shuffle(order)
            mine = order[first::step]
            if not mine:
                return
            samples = self.read_shards(mine)
            for sample, name in _shuffled(samples, rng) if self.shuffle else samples:
                yield self._decoder.decode(sample, name)
            if not self.repeat:
                return

    def read_shards(self, shards: Sequence[Shard]) -> Iterator[tuple[Sample, str]]:
        """Yield the stored samples of shards one after the other, each with its shard's name."""
        read_samples = load_format(self.format).read_samples
        for shard in shards:
            for sample in read_samples(shard):
                yield sample, shard.name


def _shuffled(samples: Iterator[tuple[Sample, str]], rng: random.Random) -> Iterator[tuple[Sample, str]]:
    """Yield samples in a random order within a moving window of :data:`SHUFFLE_BUFFER`."""
    held: list[tuple[Sample, str]] = []
    for item in samples:
        held.append(item)
        if len(held) < SHUFFLE_BUFFER:
            # Fill two for one until the window is full, so that the first sample does not wait for all.
            more = next(samples, None)
            if more is not None:
                held.append(more)
        if len(held) >= SHUFFLE_INITIAL:
            yield _take(held, rng)
    while held:
        yield _take(held, rng)


def _take(held: list[tuple[Sample, str]], rng: random.Random) -> tuple[Sample, str]:
    place = rng.randrange(len(held))
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


class ShardTable(Dataset[Sample]):
    """Samples by index over all shards of a map-style format."""

    def __init__(
        self,
        shards: Sequence[Shard],
        format_name: str,
        *,
        decode: bool = True,
        image_size: int | None = 224,
        labels: Sequence[int] | None = None,
        reader_options: dict[str, Any] | None = None,
    ) -> None:
        """Read the headers of all shards.

        Args:
            shards: What to read.
            format_name: Their format.
            decode: Whether to decode; else samples are as stored.
            image_size: Side of the square crop [pixels].
            labels: One label a shard, where the layout and not the data tells it.
            reader_options: Of the format's reader.
        """
        self.shards = list(shards)
        self.format = format_name
        self.labels = labels
        options = reader_options or {}
        self._readers: list[Reader] = [open_reader(format_name, shard, **options) for shard in shards]
        self._decoder = _Decoder(format_name, decode, image_size)
        self._open: OrderedDict[int, None] = OrderedDict()
        self._starts = [0]
        for reader in self._readers:
            self._starts.append(self._starts[-1] + len(reader))

    @property
    def groups(self) -> list[int]:
        """Samples of each unit that is read at once, in order of index; one unit, where samples are reached alone."""
        if self.format not in GROUPED:
            return [len(self)]
        return [rows for reader in self._readers for rows in reader.groups]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = bisect_right(self._starts, index) - 1
        sample = self._reader(number).read_sample(index - self._starts[number])
        where = self.shards[number].name
        if "__key__" not in sample:
            where += f", row {index - self._starts[number]}"
        decoded = self._decoder.decode(sample, where)
        if self.labels is not None:
            decoded["label"] = self.labels[number]
        return decoded

    def _reader(self, number: int) -> Reader:
        """Return a shard's reader, and close the one used longest ago where too many are open."""
        self._open[number] = None
        self._open.move_to_end(number)
        if len(self._open) > (MAX_OPEN_GROUPED if self.format in GROUPED else MAX_OPEN):
            oldest, _ = self._open.popitem(last=False)
            self._readers[oldest].close()
        return self._readers[number]


class GroupSampler(Sampler[int]):
    """Indices of one rank, in an order that spares row groups.

    Shuffling draws the order of the groups and the order within each, not any
    sample of all: a row group is then read once, not once a sample. With several
    workers, successive batches come from different groups, for torch hands them
    to the workers in turn; each worker so stays with its own group.
    """

    def __init__(
        self,
        groups: Sequence[int],
        *,
        shuffle: bool,
        seed: int = 0,
        lanes: int = 1,
        batch_size: int = 1,
        rank: int = 0,
        world_size: int = 1,
        repeat: bool = False,
    ) -> None:
        self.shuffle, self.seed, self.repeat = shuffle, seed, repeat
        self.lanes, self.batch_size = max(1, lanes), max(1, batch_size)
        self.rank, self.world_size = rank, world_size
        starts = np.concatenate([[0], np.cumsum(groups)])
        self.total = int(starts[-1])
        self._spans = [(a, b) for a, b in pairwise(starts.tolist()) if b > a]
        self._epoch = 0

    @property
    def by_group(self) -> bool:
        """Whether groups are kept together: not where each is one sample, or one is all."""
        return 1 < len(self._spans) < self.total

    def __len__(self) -> int:
        return (
            len(range(self.rank, self.total, self.world_size))
            if not self._split_groups
            else sum(b - a for a, b in self._spans[self.rank :: self.world_size])
        )

    @property
    def _split_groups(self) -> bool:
        return self.by_group and len(self._spans) >= self.world_size

    def __iter__(self) -> Iterator[int]:
        while True:
            rng = np.random.default_rng([self.seed & 0xFFFFFFFF, self._epoch])
            self._epoch += 1
            yield from self._grouped(rng) if self._split_groups else self._plain(rng)
            if not self.repeat:
                return

    def _plain(self, rng: np.random.Generator) -> Iterator[int]:
        if not self.shuffle:
            yield from range(self.rank, self.total, self.world_size)
            return
        yield from rng.permutation(self.total)[self.rank :: self.world_size].tolist()

    def _grouped(self, rng: np.random.Generator) -> Iterator[int]:
        spans = self._spans[self.rank :: self.world_size]
        if self.shuffle:
            spans = [spans[i] for i in rng.permutation(len(spans))]
        # One generator drawn from for all lanes: the order is fixed by the seed and the number of lanes.
        lanes = [self._lane(spans[k :: self.lanes], rng) for k in range(min(self.lanes, len(spans)))]
        while lanes:
            for lane in list(lanes):
                batch = [i for _, i in zip(range(self.batch_size), lane, strict=False)]
                if len(batch) < self.batch_size:
                    lanes.remove(lane)
                yield from batch

    def _lane(self, spans: Sequence[tuple[int, int]], rng: np.random.Generator) -> Iterator[int]:
        for first, end in spans:
            order = rng.permutation(end - first) if self.shuffle else np.arange(end - first)
            yield from (first + order).tolist()


def collate_samples(batch: Sequence[Sample]) -> dict[str, Any]:
    """Return samples as a batch: equal shapes are stacked, others (and text and bytes) stay lists."""
    collated: dict[str, Any] = {}
    for name, first in batch[0].items():
        values = [s[name] for s in batch if name in s]
        same = isinstance(first, (int, float)) or (
            isinstance(first, torch.Tensor)
            and all(isinstance(v, torch.Tensor) and v.shape == first.shape for v in values)
        )
        collated[name] = default_collate(values) if same and len(values) == len(batch) else values
    return collated


def collate_stored(batch: Sequence[Sample]) -> list[Sample]:
    """Return stored samples as a list."""
    return list(batch)
