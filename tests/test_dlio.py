"""DLIO's workload files and its definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ioprobe.data.dlio import load_workload
from ioprobe.data.dlio_dataset import make_loader
from ioprobe.errors import ConfigError, DataError, OutputError, UsageError
from ioprobe.model.au import dlio_metrics
from ioprobe.planning import PlanRequest, plan_from
from ioprobe.run import MainBatches

UNET3D = """\
model:
  name: unet3d
framework: pytorch
workflow: {generate_data: False, train: True}
dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length_bytes: 146600628
  record_length_bytes_stdev: 68341808
  record_length_bytes_resize: 2097152
reader: {data_loader: pytorch, batch_size: 7, read_threads: 4, file_shuffle: seed, sample_shuffle: seed}
train:
  epochs: 5
  computation_time: 0.323
metric:
  au: 0.90
"""


def written(folder: Path, text: str) -> Path:
    place = folder / "workload.yaml"
    place.write_text(text)
    return place


def test_a_workload_of_the_benchmark_is_read(tmp_path: Path) -> None:
    found = load_workload(written(tmp_path, UNET3D))
    assert (found.model, found.format, found.data_loader) == ("unet3d", "npz", "pytorch")
    assert (found.num_files_train, found.num_samples_per_file, found.epochs) == (168, 1, 5)
    assert (found.record_length_bytes, found.record_length_stdev_bytes) == (146600628.0, 68341808.0)
    assert (found.batch_size, found.read_threads, found.computation_time_s, found.au) == (7, 4, 0.323, 0.9)
    assert (found.sample_shuffle, found.file_shuffle) == (True, True)
    assert found.total_bytes == 168 * 146600628


@pytest.mark.parametrize(("threads", "ahead", "factor"), [(4, 2, 1), (4, 0, 2), (4, 9, 3), (0, 2, None)])
def test_prefetching_is_divided_among_the_readers(tmp_path: Path, threads: int, ahead: int, factor: int | None) -> None:
    text = f"dataset: {{}}\nreader: {{read_threads: {threads}, prefetch_size: {ahead}, batch_size: 3}}\n"
    settings = load_workload(written(tmp_path, text)).settings
    assert (settings.num_workers, settings.prefetch_factor, settings.batch_size) == (threads, factor, 3)
    assert settings.persistent_workers == (threads > 0)


def test_older_names_distributions_and_a_wrapper_are_understood(tmp_path: Path) -> None:
    found = load_workload(
        written(
            tmp_path,
            "workload:\n  model: resnet50\n  dataset: {record_length: 114660.07, record_length_std: 136075.82}\n"
            "  train: {computation_time: {mean: 1.5e-1, stdev: 1e-3, type: normal}}\n"
            "  reader: {sample_shuffle: 'off', preprocess_time: {mean: 2e-3}}\n",
        )
    )
    assert (found.model, found.record_length_bytes, found.record_length_stdev_bytes) == (
        "resnet50",
        114660.07,
        136075.82,
    )
    assert (found.computation_time_s, found.computation_stdev_s, found.preprocess_time_s) == (0.15, 0.001, 0.002)
    assert found.sample_shuffle is False
    assert (found.batch_size, found.read_threads, found.au) == (1, 1, 0.9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset: [", r"workload.yaml:1:11': expected the node content"),
        ("just words", "has none of the sections dataset, reader, train"),
        ("- a\n- b\n", "has none of the sections"),
        ("dataset: {num_files_train: many}", "dataset.num_files_train is 'many'; expected a whole number"),
        ("dataset: {num_files_train: 0}", "dataset.num_files_train is 0; expected a number above 0"),
        ("reader: {batch_size: -1}", "reader.batch_size is -1; expected a number above 0"),
        ("train: {computation_time: .nan}", "train.computation_time is nan; expected a number of at least 0"),
        ("train: {computation_time: [1]}", r"train.computation_time is \[1\]; expected a number"),
        ("reader: {sample_shuffle: maybe}", "reader.sample_shuffle is 'maybe'; expected off, seed or random"),
        ("train: !!python/object/apply:os.system ['true']", "cannot read DLIO workload"),
    ],
)
def test_what_cannot_be_meant_is_named_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_workload(written(tmp_path, text))


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_workload(tmp_path / "absent.yaml")


def test_a_workload_is_planned_like_a_published_one(tmp_path: Path) -> None:
    place = written(tmp_path, UNET3D)
    ours = plan_from(PlanRequest(dlio=place, counts="8,64"))
    published = plan_from(PlanRequest(workload="unet3d", accelerator="h100", counts="8,64"))
    for a, b in zip(ours.points, published.points, strict=True):
        assert (a.samples_per_s, a.storage_bytes_per_s, a.iops) == (b.samples_per_s, b.storage_bytes_per_s, b.iops)
    assert ours.title == "unet3d (workload.yaml)"
    # 168 samples, five times, at 8 x 21.67 samples/s.
    assert ours.points[0].metrics["hours"] == pytest.approx(168 * 5 / (8 * 7 / 0.323) / 3600)


def loop(waits: list[float], steps: list[float], epoch: int = 0, start: float = 0.0) -> MainBatches:
    calls = []
    for wait, step in zip(waits, steps, strict=True):
        calls.append(start)
        start += wait + step
    return MainBatches(call_s=calls, wait_s=waits, step_s=steps, samples=[4] * len(steps), epoch=[epoch] * len(steps))


def test_utilisation_leaves_out_the_first_step_as_dlio_does() -> None:
    found = dlio_metrics(loop([5.0, 1.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0]), batch_size=4, record_bytes=1 << 20)
    assert found is not None
    # After the first step: 6 s of compute in 8 s; later versions drop two of four steps from the throughput.
    assert found.au == pytest.approx(6 / 8)
    assert found.samples_per_s == pytest.approx(4 * 4 / 15)
    assert found.samples_per_s_since_2024 == pytest.approx(2 * 4 / 8)
    assert found.mib_per_s == pytest.approx(16 / 15)
    # All of it: 8 s of compute in 15 s, 16 samples.
    assert found.busy_share == pytest.approx(8 / 15)
    assert found.sustained_samples_per_s == pytest.approx(16 / 15)


def test_utilisation_counts_the_nominal_step_where_it_is_given() -> None:
    found = dlio_metrics(loop([0.0] * 3, [2.0] * 3), batch_size=4, record_bytes=1, computation_s=1.5)
    assert found is not None
    assert (found.au, found.busy_share) == (pytest.approx(0.75), pytest.approx(1.0))


def test_the_figures_are_those_of_dlio_for_its_own_record_of_a_run() -> None:
    """Lists of load and proc of dlio-benchmark 2.0.0 (npz, batch 4, 30 ms) and its formulas."""
    load = [0.0132, 0.0036, 0.0123, 0.0001, 0.0002, 0.0101]
    proc = [0.0434, 0.0339, 0.0426, 0.0302, 0.0304, 0.0403]
    steps = [p - w for p, w in zip(proc, load, strict=True)]
    found = dlio_metrics(loop(load, steps), batch_size=4, record_bytes=1, computation_s=0.03)
    assert found is not None
    total = sum(proc)
    assert found.au == pytest.approx(0.03 * 5 / (total - proc[0]))
    assert found.samples_per_s == pytest.approx(6 / total * 4)


def test_utilisation_is_the_mean_over_epochs() -> None:
    one, two = loop([0.0] * 3, [1.0] * 3), loop([1.0] * 3, [1.0] * 3, epoch=1, start=3.0)
    both = MainBatches(
        **{name: getattr(one, name) + getattr(two, name) for name in ("call_s", "wait_s", "step_s", "samples", "epoch")}
    )
    found = dlio_metrics(both, batch_size=4, record_bytes=1)
    assert found is not None
    assert found.au == pytest.approx((1.0 + 0.5) / 2)


def test_too_few_steps_have_no_utilisation() -> None:
    assert dlio_metrics(loop([0.0] * 2, [1.0] * 2), batch_size=4, record_bytes=1) is None
    assert dlio_metrics(MainBatches(call_s=[0.0], wait_s=[1.0]), batch_size=4, record_bytes=1) is None


TINY = """\
model: tiny
dataset: {data_folder: data, format: FORMAT, num_files_train: 4, num_samples_per_file: 1, record_length: 400}
reader: {batch_size: 2, read_threads: 0}
train: {computation_time: 0.001}
"""


@pytest.mark.parametrize("format_", ["npz", "npy", "png", "jpeg"])
def test_missing_files_are_made_and_read_as_dlio_does(tmp_path: Path, format_: str) -> None:
    place = written(tmp_path, TINY.replace("FORMAT", format_))
    loader = make_loader(str(place), str(tmp_path))
    assert [tuple(batch.shape) for batch in loader] == [(2, 20, 20)] * 2
    files = sorted((tmp_path / "data" / "train").iterdir())
    assert [file.name for file in files] == [f"img_{i}_of_4.{format_}" for i in range(4)]
    before = [file.read_bytes() for file in files]
    again = make_loader(str(place), str(tmp_path), as_read=True)
    assert [file.read_bytes() for file in files] == before
    assert all(int(batch.max()) > 0 for batch in again)


def test_files_that_dlio_made_are_read(tmp_path: Path) -> None:
    place = written(
        tmp_path, TINY.replace("FORMAT", "npz").replace("num_samples_per_file: 1", "num_samples_per_file: 2")
    )
    folder = tmp_path / "data" / "train" / "0"
    folder.mkdir(parents=True)
    for i in range(4):
        x = np.arange(8, dtype=np.uint8).reshape(2, 2, 2) + 8 * i
        np.savez(folder / f"img_{i}_of_4.npz", x=x, y=[0, 0])
    loader = make_loader(str(place), str(tmp_path), as_read=True)
    assert next(iter(loader)).tolist() == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


def test_half_made_data_is_not_added_to(tmp_path: Path) -> None:
    place = written(tmp_path, TINY.replace("FORMAT", "npz"))
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "train" / "img_0_of_4.npz").write_bytes(b"x")
    with pytest.raises(OutputError, match="holds 1 of 4 files"):
        make_loader(str(place), str(tmp_path))
    with pytest.raises(UsageError, match="tfrecord files are not read here"):
        make_loader(str(written(tmp_path, TINY.replace("FORMAT", "tfrecord"))), str(tmp_path))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    place = written(tmp_path, TINY.replace("FORMAT", "npz"))
    loader = make_loader(str(place), str(tmp_path))
    (tmp_path / "data" / "train" / "img_2_of_4.npz").write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"cannot read sample 0 of '.*img_2_of_4.npz'"):
        list(loader)


def test_a_pickled_object_in_a_file_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path, TINY.replace("FORMAT", "npz"))
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    for i in range(4):
        np.savez(folder / f"img_{i}_of_4.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="allow_pickle"):
        next(iter(make_loader(str(place), str(tmp_path))))
