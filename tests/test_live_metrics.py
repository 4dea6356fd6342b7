"""The figures of a launched job while it runs, read from its journals and written for a node exporter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ioprobe.errors import OutputError
from ioprobe.live.hooks.journal import Journal, whole_length
from ioprobe.live.hooks.phases import CACHED, OBSERVE
from ioprobe.live.metrics import MetricsFile


def made(folder: Path, *, rank: int = 0) -> Journal:
    journal = Journal(str(folder / f"{10 + rank}-1.rec"))
    journal.write({"kind": "process", "pid": 10 + rank, "rank": rank})
    return journal


def batches(journal: Journal, calls: list[tuple[float, float]], *, trace: int = 1, **more: Any) -> None:
    columns = {
        "call_s": [call for call, _ in calls],
        "return_s": [done for _, done in calls],
        "training": [float(more.pop("training", 1.0))] * len(calls),
        "backwards": more.pop("backwards", [0.0] * len(calls)),
        "phase": [float(more.pop("phase", OBSERVE))] * len(calls),
    }
    journal.write({"kind": "batches", "trace": trace, **more}, columns)


def worker(journal: Journal, **row: float) -> None:
    names = ("start_s", "idle_s", "fetch_wall_s", "collate_wall_s", "put_s")
    head = {"kind": "worker", "trace": 1, "worker": 0, "times": [0.0, 0.0]}
    journal.write(head, {name: [row.get(name, 0.0)] for name in names})


def samples(path: Path) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in path.read_text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_reading_is_of_the_time_since_the_last_one_and_the_totals_go_on(tmp_path: Path) -> None:
    clock, place, journal = Clock(), tmp_path / "job.prom", made(tmp_path)
    metrics = MetricsFile(place, tmp_path, every_s=5.0, clock=clock)
    journal.write({"kind": "iterator", "trace": 1, "loader": 7, "begin_s": 0.0})
    batches(journal, [(0.0, 1.0), (2.0, 3.0)], init_s=0.5)  # the step on the second batch goes on
    metrics.look()
    assert samples(place) == {}  # not yet
    clock.now = 5.0
    metrics.look()
    labels = 'loader="train",rank="0"'
    assert samples(place) == {
        f"ioprobe_stall_ratio{{{labels}}}": pytest.approx(2.5 / 3.5),
        f"ioprobe_steps_per_second{{{labels}}}": pytest.approx(2 / 3.5),
        f"ioprobe_steps_total{{{labels}}}": 2,
        f"ioprobe_wait_seconds_total{{{labels}}}": 2.5,
        f"ioprobe_loop_seconds_total{{{labels}}}": 3.5,
    }
    # Its step of 7 s, one more batch at once, a step of 1 s, and half a second until the epoch's end is known.
    batches(journal, [(10.0, 10.0)], init_s=0.5, end_calls=[11.0], ends=[11.5])
    clock.now = 10.0
    metrics.look()
    found = samples(place)
    assert found[f"ioprobe_stall_ratio{{{labels}}}"] == pytest.approx(0.5 / 8.5)
    assert found[f"ioprobe_loop_seconds_total{{{labels}}}"] == 12.0
    metrics.look(final=True)
    assert sorted(samples(place)) == [
        f"ioprobe_{name}_total{{{labels}}}" for name in ("loop_seconds", "steps", "wait_seconds")
    ]


def test_time_between_epochs_is_no_part_of_the_loop_and_a_rewind_is_waiting(tmp_path: Path) -> None:
    clock, place, journal = Clock(), tmp_path / "job.prom", made(tmp_path)
    metrics = MetricsFile(place, tmp_path, clock=clock)
    journal.write({"kind": "iterator", "trace": 1, "loader": 7, "begin_s": 0.0})
    batches(
        journal,
        [(0.0, 1.0), (100.0, 101.0)],
        init_s=0.0,
        end_calls=[2.0, 102.0],
        ends=[2.0, 102.0],
        resets=[[99, 99.5]],
    )
    metrics.look(final=True)
    assert samples(place)['ioprobe_loop_seconds_total{loader="train",rank="0"}'] == 4.5
    assert samples(place)['ioprobe_wait_seconds_total{loader="train",rank="0"}'] == 2.5


def test_the_workers_time_is_divided_by_their_stacks(tmp_path: Path) -> None:
    clock, place, journal = Clock(), tmp_path / "job.prom", made(tmp_path)
    metrics = MetricsFile(place, tmp_path, clock=clock)
    journal.write({"kind": "iterator", "trace": 1, "loader": 7, "begin_s": 0.0})
    batches(journal, [(0.0, 1.0), (2.0, 3.0)], init_s=0.0)
    worker(journal, start_s=1.0, idle_s=1.0, fetch_wall_s=3.0, put_s=4.0)
    packages = "/usr/lib/python3/site-packages"
    frames = [
        ["Image.load", f"{packages}/PIL/Image.py", 5, None],
        ["Photos.__getitem__", "/home/me/train.py", 9, None],
        ["_MapDatasetFetcher.fetch", f"{packages}/torch/utils/data/_utils/fetch.py", 1, None],
        ["_worker_loop", f"{packages}/torch/utils/data/_utils/worker.py", 1, None],
    ]
    rows = json.dumps({"frames": frames, "stacks": [[1, 30, [0, 1, 2, 3]]]})
    journal.write({"kind": "worker-stacks", "trace": 1, "worker": 0, "rows": rows})
    clock.now = 9.0
    metrics.look()
    found = samples(place)
    labels = 'loader="train",rank="0"'
    assert found[f'ioprobe_worker_time_ratio{{{labels},stage="decode"}}'] == 0.75
    assert found[f'ioprobe_worker_time_ratio{{{labels},stage="wait"}}'] == 0.25


def test_ranks_and_loaders_are_told_apart_and_other_phases_left_out(tmp_path: Path) -> None:
    place = tmp_path / "job.prom"
    metrics = MetricsFile(place, tmp_path)
    for rank in (0, 1):
        journal = made(tmp_path, rank=rank)
        for trace, training in ((1, 1.0), (2, 0.0)):
            journal.write({"kind": "iterator", "trace": trace, "loader": trace, "begin_s": 0.0})
            batches(journal, [(0.0, 1.0)] * (2 + rank), trace=trace, training=training, init_s=0.0)
        batches(journal, [(50.0, 60.0)], phase=CACHED, init_s=0.0)
    metrics.look(final=True)
    steps = {k: v for k, v in samples(place).items() if k.startswith("ioprobe_steps")}
    assert steps == {
        'ioprobe_steps_total{loader="train",rank="0"}': 2,
        'ioprobe_steps_total{loader="validation",rank="0"}': 2,
        'ioprobe_steps_total{loader="train",rank="1"}': 3,
        'ioprobe_steps_total{loader="validation",rank="1"}': 3,
    }


def test_a_loader_under_gradient_without_backward_passes_is_no_training(tmp_path: Path) -> None:
    place, journal = tmp_path / "job.prom", made(tmp_path)
    metrics = MetricsFile(place, tmp_path)
    for trace, backwards in ((1, [5.0, 5.0]), (2, [5.0, 6.0])):
        journal.write({"kind": "iterator", "trace": trace, "loader": trace, "begin_s": 0.0})
        batches(journal, [(0.0, 1.0)] * 2, trace=trace, backwards=backwards, init_s=0.0)
    metrics.look(final=True)
    assert [k for k in samples(place) if k.startswith("ioprobe_steps")] == [
        'ioprobe_steps_total{loader="train",rank="0"}',
        'ioprobe_steps_total{loader="validation",rank="0"}',
    ]


def test_a_record_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    place, journal = tmp_path / "job.prom", made(tmp_path)
    metrics = MetricsFile(place, tmp_path)
    journal.write({"kind": "iterator", "trace": 1, "loader": 7, "begin_s": 0.0})
    batches(journal, [(0.0, 1.0)], init_s=0.0)
    path = Path(journal.path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert whole_length(whole[:-9]) < len(whole) == whole_length(whole)
    metrics.look(final=True)
    assert samples(place) == {}
    path.write_bytes(whole)
    metrics.look(final=True)
    assert samples(place)['ioprobe_steps_total{loader="train",rank="0"}'] == 1


def test_a_place_that_cannot_be_written_is_refused_at_once_and_noted_later(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        MetricsFile(tmp_path / "none" / "job.prom", tmp_path)
    (tmp_path / "out").mkdir()
    metrics = MetricsFile(tmp_path / "out/job.prom", tmp_path)
    (tmp_path / "out/job.prom").unlink()
    (tmp_path / "out").rmdir()
    metrics.look(final=True)
    assert metrics.error == "No such file or directory"
