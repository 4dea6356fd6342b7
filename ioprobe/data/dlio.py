"""Read the workload files of DLIO and MLPerf Storage (YAML)."""

from __future__ import annotations

import math
import reprlib
from pathlib import Path
from typing import Any

import msgspec

from ioprobe.errors import ConfigError
from ioprobe.run import LoaderSettings

_SHUFFLES = {"off": False, "false": False, "no": False, "seed": True, "random": True, "true": True}


class DlioWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as DLIO understands it; defaults are DLIO's own."""

    path: str
    model: str = "default"
    framework: str = "pytorch"
    format: str = "tfrecord"
    data_loader: str = "pytorch"
    data_folder: str = "./data/"
    storage_type: str = "local_fs"
    storage_root: str = "./"
    num_files_train: int = 8
    num_subfolders_train: int = 0
    num_samples_per_file: int = 1
    record_length_bytes: float = 65536
    record_length_stdev_bytes: float = 0.0
    record_length_resize_bytes: int = 0
    """Size of the constant tensor that DLIO hands to the training loop instead of what it read; 0 as read [bytes]."""
    batch_size: int = 1
    read_threads: int = 1
    """DataLoader workers."""
    prefetch_size: int = 2
    """Batches ahead over all workers; DLIO divides it among them."""
    sample_shuffle: bool = False
    file_shuffle: bool = False
    preprocess_time_s: float = 0.0
    computation_time_s: float = 0.0
    """Sleep that stands for one step [s]."""
    computation_stdev_s: float = 0.0
    epochs: int = 1
    total_training_steps: int | None = None
    seed: int = 123
    au: float = 0.9
    """Utilisation below which the run has failed [fraction]."""

    @property
    def settings(self) -> LoaderSettings:
        """The DataLoader settings that DLIO derives."""
        workers = self.read_threads
        ahead = math.ceil(self.prefetch_size / workers) if workers and self.prefetch_size > 0 else 2
        return LoaderSettings(
            num_workers=workers,
            prefetch_factor=ahead if workers else None,
            batch_size=self.batch_size,
            persistent_workers=workers > 0,
            pin_memory=True,
            multiprocessing_context="fork" if workers else None,
            drop_last=True,
            shuffle=self.sample_shuffle,
        )

    @property
    def total_bytes(self) -> float:
        """Nominal size of the training data [bytes]."""
        return self.num_files_train * self.num_samples_per_file * self.record_length_bytes


# field -> places in the file, the first that is there counts.
_PLACES: dict[str, tuple[str, ...]] = {
    "model": ("model.name", "model"),
    "framework": ("framework",),
    "format": ("dataset.format",),
    "data_loader": ("reader.data_loader",),
    "data_folder": ("dataset.data_folder",),
    "storage_type": ("storage.storage_type",),
    "storage_root": ("storage.storage_root",),
    "num_files_train": ("dataset.num_files_train",),
    "num_subfolders_train": ("dataset.num_subfolders_train",),
    "num_samples_per_file": ("dataset.num_samples_per_file",),
    "record_length_bytes": ("dataset.record_length_bytes", "dataset.record_length"),
    "record_length_stdev_bytes": (
        "dataset.record_length_bytes_stdev",
        "dataset.record_length_stdev",
        "dataset.record_length_std",
    ),
    "record_length_resize_bytes": ("dataset.record_length_bytes_resize", "dataset.record_length_resize"),
    "batch_size": ("reader.batch_size",),
    "read_threads": ("reader.read_threads",),
    "prefetch_size": ("reader.prefetch_size",),
    "sample_shuffle": ("reader.sample_shuffle",),
    "file_shuffle": ("reader.file_shuffle",),
    "preprocess_time_s": ("reader.preprocess_time.mean", "reader.preprocess_time"),
    "computation_time_s": ("train.computation_time.mean", "train.computation_time"),
    "computation_stdev_s": ("train.computation_time.stdev", "train.computation_time_stdev"),
    "epochs": ("train.epochs",),
    "total_training_steps": ("train.total_training_steps",),
    "seed": ("train.seed",),
    "au": ("metric.au",),
}
_POSITIVE = {"num_files_train", "num_samples_per_file", "record_length_bytes", "batch_size", "epochs", "au"}


def load_workload(path: str | Path) -> DlioWorkload:
    """Return the workload in a DLIO file (with or without a ``workload:`` around it).

    Raises:
        ConfigError: it cannot be read, is no mapping, or a key holds what cannot be meant.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read DLIO workload '{path}': {reason}", hint="pass a workload .yaml file") from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "no YAML"
        raise ConfigError(f"cannot read DLIO workload '{path}{where}': {problem}", hint="mend the YAML") from None
    except RecursionError:
        raise ConfigError(f"cannot read DLIO workload '{path}': nested too deeply") from None
    if isinstance(tree, dict) and isinstance(tree.get("workload"), dict):
        tree = tree["workload"]
    if not isinstance(tree, dict) or not {"dataset", "reader", "train"} & tree.keys():
        raise ConfigError(
            f"'{path}' is no DLIO workload: it has none of the sections dataset, reader, train",
            hint="pass a file such as dlio_benchmark/configs/workload/unet3d_h100.yaml",
        )
    found: dict[str, Any] = {"path": str(path)}
    for field in msgspec.structs.fields(DlioWorkload):
        for place in _PLACES.get(field.name, ()):
            value = _at(tree, place)
            if value is not None and not (isinstance(value, dict) and len(_PLACES[field.name]) > 1):
                found[field.name] = _convert(value, field, place, str(path))
                break
    return DlioWorkload(**found)


def _at(tree: Any, place: str) -> Any:
    for key in place.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _convert(value: Any, field: Any, place: str, path: str) -> Any:
    if field.type is bool:
        word = str(value).lower()
        if word not in _SHUFFLES:
            raise _wrong(path, place, value, "off, seed or random")
        return _SHUFFLES[word]
    try:
        # YAML reads 1e-3 as text, and DLIO's own files write whole numbers as 114660.07 and 7.0.
        converted = msgspec.convert(float(value) if field.type is float else value, field.type, strict=False)
    except (msgspec.ValidationError, TypeError, ValueError):
        raise _wrong(path, place, value, _KINDS.get(field.type, "a whole number")) from None
    if field.name in _POSITIVE and not (converted > 0 and math.isfinite(converted)):
        raise _wrong(path, place, value, "a number above 0")
    if isinstance(converted, (int, float)) and not (converted >= 0 and math.isfinite(converted)):
        raise _wrong(path, place, value, "a number of at least 0")
    return converted


_KINDS: dict[Any, str] = {str: "a word", float: "a number", int: "a whole number"}


def _wrong(path: str, place: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(
        f"DLIO workload '{path}': {place} is {reprlib.repr(value)}; expected {expected}", hint=f"mend {place}"
    )
