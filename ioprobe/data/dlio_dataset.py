"""A DataLoader over the files of a DLIO workload, read as DLIO reads them; missing files are made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ioprobe.data.dlio import DlioWorkload, load_workload
from ioprobe.errors import DataError, OutputError, UsageError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

FORMATS = ("npz", "npy", "jpeg", "png")
"""Formats whose files are read here; shards of others have readers of their own: :mod:`ioprobe.data.loaders`."""


def make_loader(
    workload: str,
    folder: str = ".",
    *,
    batch_size: int | None = None,
    num_workers: int | None = None,
    prefetch_factor: int | None = None,
    most_files: int | None = None,
    as_read: bool = False,
) -> DataLoader[Any]:
    """Return the workload's DataLoader, with DLIO's settings where none are given.

    Args:
        workload: The workload's YAML file.
        folder: Against it the workload's data folder counts; missing files are made there.
        batch_size: Instead of the workload's.
        num_workers: Instead of ``reader.read_threads``.
        prefetch_factor: Instead of what DLIO derives from ``reader.prefetch_size``.
        most_files: Use no more files than this, for a small run.
        as_read: Deliver what was read; by default a constant tensor, as DLIO does, so that workers hand over
            ``record_length_bytes_resize`` bytes and not the sample.

    Raises:
        ConfigError: the workload cannot be read.
        UsageError: its format is not read here.
        OutputError: files are missing and cannot be made.
    """
    import torch
    from torch.utils.data import DataLoader

    asked = load_workload(workload)
    files = ensure_files(asked, Path(folder), most_files)
    dataset: Any = DlioFiles(files, asked, as_read=as_read)
    settings = asked.settings
    workers = settings.num_workers if num_workers is None else num_workers
    further: dict[str, Any] = {}
    if workers:
        ahead = prefetch_factor or settings.prefetch_factor or 2
        further = {"prefetch_factor": ahead, "persistent_workers": True, "multiprocessing_context": "fork"}
    return DataLoader(
        dataset,
        batch_size=batch_size or asked.batch_size,
        shuffle=asked.sample_shuffle,
        generator=torch.Generator().manual_seed(asked.seed),
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        drop_last=True,
        **further,
    )


class DlioFiles:
    """Samples of DLIO's files: a whole file is opened and read for each, as DLIO's ``ON_DEMAND`` does."""

    def __init__(self, files: list[Path], workload: DlioWorkload, *, as_read: bool) -> None:
        self.files, self.per_file, self.format = files, workload.num_samples_per_file, workload.format
        side = math.isqrt(int(workload.record_length_resize_bytes or workload.record_length_bytes))
        self._side = None if as_read else side

    def __len__(self) -> int:
        return len(self.files) * self.per_file

    def __getitem__(self, index: int) -> Any:
        import numpy as np
        import torch

        path, within = self.files[index // self.per_file], index % self.per_file
        try:
            sample = _read(path, self.format, within)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise DataError(f"cannot read sample {within} of '{path}': {type(error).__name__}: {error}") from None
        if self._side is not None:
            return torch.zeros((self._side, self._side), dtype=torch.uint8)
        return torch.from_numpy(np.array(sample, order="C"))


def _read(path: Path, format_: str, within: int) -> Any:
    import numpy as np

    if format_ == "npz":
        # Never pickled objects: DLIO allows them, and a file could then run code.
        with np.load(path, allow_pickle=False) as archive:
            return archive["x"][..., within]
    if format_ == "npy":
        return np.load(path, allow_pickle=False)[..., within]
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image)


def ensure_files(workload: DlioWorkload, folder: Path, most_files: int | None = None) -> list[Path]:
    """Return the workload's training files, made from its seed where they are missing.

    Raises:
        UsageError: its format is not read here.
        OutputError: they cannot be written.
    """
    if workload.format not in FORMATS:
        raise UsageError(
            f"DLIO's {workload.format} files are not read here; {', '.join(FORMATS)} are",
            hint="make a like dataset with 'ioprobe synth', and analyze it with --step-ms",
        )
    place = folder / workload.storage_root / workload.data_folder / "train"
    count = min(workload.num_files_train, most_files or workload.num_files_train)
    # DLIO names them img_007_of_168.npz, and puts them under numbered folders where it was asked to.
    found = sorted(place.rglob(f"*.{workload.format}"))
    if len(found) >= count:
        return found[:count]
    if found:
        raise OutputError(
            f"'{place}' holds {len(found)} of {count} files; it is not added to",
            hint="finish it with DLIO (generate_data), or name an empty folder",
        )
    digits = len(str(count))
    files = [place / f"img_{i:0{digits}d}_of_{count}.{workload.format}" for i in range(count)]
    try:
        place.mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(files):
            _write(path, workload, number)
    except OSError as error:
        raise OutputError(f"cannot write '{place}': {error.strerror}", hint="name another folder") from None
    return files


def _write(path: Path, workload: DlioWorkload, number: int) -> None:
    """Write one file as DLIO does: a square of bytes per sample, the samples along the last axis."""
    import numpy as np

    draw = np.random.default_rng((workload.seed, number))
    size = draw.normal(workload.record_length_bytes, workload.record_length_stdev_bytes)
    side = max(1, round(math.sqrt(max(1.0, size))))
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            if workload.format in {"npz", "npy"}:
                x = draw.integers(0, 256, (side, side, workload.num_samples_per_file), dtype=np.uint8)
                if workload.format == "npz":
                    np.savez(file, x=x, y=np.zeros(workload.num_samples_per_file, dtype=np.int64))
                else:
                    np.save(file, x)
            else:
                from PIL import Image

                pixels = draw.integers(0, 256, (side, side), dtype=np.uint8)
                Image.fromarray(pixels).save(file, format=workload.format)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
