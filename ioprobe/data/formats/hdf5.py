"""HDF5: datasets of equal length in the root group; samples lie along their first axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from ioprobe.data.encode import array_bytes
from ioprobe.data.formats import WriteOptions
from ioprobe.data.shards import Sample, Shard, extra, first_line, reading
from ioprobe.errors import DataError

COMPRESSIONS = ("gzip", "lzf")


def suffix(options: WriteOptions) -> str:
    """Return ``.h5``; its compression lies inside."""
    return ".h5"


def open_file(shard: Shard) -> Any:
    """Return the shard as an ``h5py.File``; a local one by path, a remote one through its file object.

    Raises:
        DataError: it is no HDF5 file, or is damaged.
    """
    h5py = extra("h5py", "hdf5", "HDF5")
    with reading(shard):
        source: Any = shard.open()
        if shard.path is not None:
            source.close()
            source = shard.path
        try:
            return h5py.File(source, "r")
        except OSError as error:
            raise DataError(
                f"cannot read HDF5 shard '{shard.name}': {first_line(error)}", hint="write or download it again"
            ) from None


def _datasets(file: Any, shard: Shard) -> dict[str, Any]:
    h5py = extra("h5py", "hdf5", "HDF5")
    found = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset) and item.shape}
    if not found or any(d.shape[0] == 0 for d in found.values()):
        raise DataError(f"HDF5 shard '{shard.name}' holds no sample in its root group", hint="write it again")
    if len({d.shape[0] for d in found.values()}) > 1:
        told = ", ".join(f"{n} {d.shape[0]}" for n, d in found.items())
        raise DataError(f"the datasets of '{shard.name}' differ in length: {told}", hint="samples lie along axis 0")
    return found


class Reader:
    """Samples by index. The file is opened in the process that reads: an h5py handle must not be inherited."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        with open_file(shard) as file:
            self.groups = [next(iter(_datasets(file, shard).values())).shape[0]]
        self._file: Any = None
        self._datasets: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_datasets": {}}

    def __len__(self) -> int:
        return int(self.groups[0])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._datasets = None, {}

    def read_sample(self, index: int) -> Sample:
        """Return one entry of each dataset.

        Raises:
            DataError: a chunk is damaged; names shard, dataset and sample.
        """
        if self._file is None:
            self._file = open_file(self.shard)
            self._datasets = _datasets(self._file, self.shard)
        sample: Sample = {"__key__": str(index)}
        for name, dataset in self._datasets.items():
            try:
                value = dataset[index]
            except OSError as error:
                raise DataError(
                    f"cannot read sample {index} of '{name}' in '{self.shard.name}': {first_line(error)}",
                    hint="write or download it again",
                ) from None
            sample[name] = value
        return sample


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield the samples in order."""
    reader = Reader(shard)
    for index in range(len(reader)):
        yield reader.read_sample(index)


def count_samples(shard: Shard) -> int | None:
    """Return the common length of the datasets, by their headers."""
    return len(Reader(shard))


def compression(shard: Shard) -> str | None:
    """Return the codec of the first compressed dataset."""
    with open_file(shard) as file:
        return next((str(d.compression) for d in _datasets(file, shard).values() if d.compression), None)


def decode_fields(sample: Sample) -> Sample:
    """Return the sample; encoded images and audio are its uint8 rows of varying length."""
    return sample


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write samples: arrays of one shape densely, one chunk a sample; everything else as variable-length bytes."""
    h5py = extra("h5py", "hdf5", "HDF5")
    rows = list(samples)
    with h5py.File(file, "w") as out:
        for name, first in rows[0].items():
            if name == "__key__":
                continue
            values = [r[name] for r in rows]
            if isinstance(first, int):
                out.create_dataset(name, data=np.array(values, np.int64))
            elif isinstance(first, np.ndarray) and len({v.shape for v in values}) == 1:
                out.create_dataset(
                    name, data=np.stack(values), chunks=(1, *first.shape), compression=options.compression
                )
            else:
                kind = first.dtype if isinstance(first, np.ndarray) else np.dtype(np.uint8)
                target = out.create_dataset(name, (len(rows),), dtype=h5py.vlen_dtype(kind))
                for index, value in enumerate(values):
                    raw = array_bytes(value) if isinstance(value, np.ndarray) else value
                    target[index] = np.frombuffer(raw, kind)
