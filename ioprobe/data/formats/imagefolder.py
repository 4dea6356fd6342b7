"""A folder of images, one folder a class, as torchvision's ImageFolder reads it.

Each image file is a shard of one sample. The label is the rank of its folder's
name among all folders; the loader knows them all and fills it in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from ioprobe.data.formats import WriteOptions
from ioprobe.data.shards import Sample, Shard, readable, reading
from ioprobe.errors import DataError

COMPRESSIONS: tuple[str, ...] = ()


def suffix(options: WriteOptions) -> str:
    """Return the empty suffix: what is written as one unit is a folder."""
    return ""


def class_of(shard: Shard) -> str:
    """Return the name of the folder that holds the image.

    >>> class_of(Shard("data/cat/1.jpg"))
    'cat'
    """
    return shard.url.rpartition("/")[0].rpartition("/")[2]


class Reader:
    """The one image of a shard."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.groups = [1]

    def __len__(self) -> int:
        return 1

    def close(self) -> None:
        """Nothing stays open."""

    def read_sample(self, index: int) -> Sample:
        """Return ``{"__key__": path, "image": bytes}``.

        Raises:
            DataError: the file is empty.
        """
        with reading(self.shard):
            data = _read_whole(self.shard)
        if not data:
            raise DataError(f"image '{self.shard.name}' is empty", hint="write it again, or leave it out")
        return {"__key__": self.shard.name, "image": data}


def _read_whole(shard: Shard) -> bytes:
    if shard.path is not None:
        with readable(shard.name), open(shard.path, "rb") as file:  # small files: no large buffer
            return file.read()
    with shard.open() as file:
        return file.read()


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield the one image."""
    yield Reader(shard).read_sample(0)


def count_samples(shard: Shard) -> int | None:
    """Return 1."""
    return 1


def decode_fields(sample: Sample) -> Sample:
    """Return the sample: its file is its field."""
    return sample


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write one image; the synthesizer calls this once a file."""
    for sample in samples:
        file.write(sample["image"])
