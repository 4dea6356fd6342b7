"""One line in the user's own script, and the callbacks of two frameworks."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import pickle
import sys
import types
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, dataloader

import ioprobe
from ioprobe.errors import UsageError
from ioprobe.instrument.hooks import Recorder, install
from ioprobe.run import Stage
from ioprobe.watching import Reporter, StageMeter, StallMeter, Watched, Window
from ioprobe.watching.metrics import Reading, openmetrics
from ioprobe.watching.stages import stage_shares, worker_seconds


class Clock:
    """Time that only passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """Batches that take a second each."""

    def __init__(self, clock: Clock, count: int) -> None:
        self.clock, self.count, self.batch_size = clock, count, 4

    def __iter__(self) -> Iterator[int]:
        for k in range(self.count):
            self.clock.now += 1.0
            yield k

    def __len__(self) -> int:
        return self.count


def watched(clock: Clock, count: int, every: int) -> tuple[Watched[int], list[Window]]:
    windows: list[Window] = []
    return Watched(Slow(clock, count), StallMeter(every, clock=clock), windows.append), windows


def test_waits_and_steps_are_told_apart_exactly() -> None:
    clock = Clock()
    loader, windows = watched(clock, 9, 4)
    for _ in loader:
        clock.now += 3.0
    assert [(w.steps, w.wait_s, w.wall_s, w.total_steps) for w in windows] == [(4, 4.0, 16.0, 4), (4, 4.0, 16.0, 8)]


def test_time_between_epochs_counts_as_nothing() -> None:
    clock = Clock()
    loader, windows = watched(clock, 2, 3)
    for _ in range(3):
        for _ in loader:
            clock.now += 3.0
        clock.now += 1000.0
    assert windows[0].wall_s < 20


def test_a_watched_loader_is_what_it_was() -> None:
    loader = ioprobe.watch([1, 2, 3])
    assert list(loader) == [1, 2, 3]
    assert list(loader) == [1, 2, 3]
    assert len(loader) == 3
    clock = Clock()
    assert watched(clock, 5, 2)[0].batch_size == 4
    with pytest.raises(AttributeError):
        _ = loader.no_such_thing
    assert ioprobe.watch is ioprobe.watch


def test_a_batch_is_let_go_as_soon_as_the_loop_lets_it_go() -> None:
    class Batch:
        pass

    seen: list[weakref.ref[Batch]] = []

    def batches() -> Iterator[Batch]:
        for k in range(3):
            if k:
                assert seen[-1]() is None
            made = Batch()
            seen.append(weakref.ref(made))
            yield made
            del made

    for batch in ioprobe.watch(batches()):
        del batch
    assert len(seen) == 3


def test_a_line_is_logged_above_the_threshold_and_from_rank_0_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "ioprobe")
    report = Reporter(threshold=0.5, name="train")
    report(Window(10, 0.4, 1.0, 10))
    assert not caplog.messages
    report(Window(10, 0.5, 1.0, 20))
    assert caplog.messages == ["ioprobe: the loop over 'train' waited for data 50.0% of the last 10 steps (10 steps/s)"]
    monkeypatch.setenv("RANK", "1")
    report(Window(10, 0.9, 1.0, 30))
    assert len(caplog.messages) == 1


def test_metrics_are_openmetrics_text_replaced_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "ioprobe.prom"
    Reporter(threshold=1.0, metrics_file=place)(Window(10, 0.5, 2.0, 30, {"decode": 0.75, "wait": 0.25}))
    assert place.read_text().splitlines() == [
        "# HELP ioprobe_stall_ratio Share of the loop's time spent waiting for a batch.",
        "# TYPE ioprobe_stall_ratio gauge",
        'ioprobe_stall_ratio{loader="train",rank="0"} 0.25',
        "# HELP ioprobe_steps_per_second Steps per second of the loop.",
        "# TYPE ioprobe_steps_per_second gauge",
        'ioprobe_steps_per_second{loader="train",rank="0"} 5',
        "# HELP ioprobe_steps Steps since the loop began.",
        "# TYPE ioprobe_steps counter",
        'ioprobe_steps_total{loader="train",rank="0"} 30',
        "# HELP ioprobe_worker_time_ratio Share of the workers' time by stage.",
        "# TYPE ioprobe_worker_time_ratio gauge",
        'ioprobe_worker_time_ratio{loader="train",rank="0",stage="decode"} 0.75',
        'ioprobe_worker_time_ratio{loader="train",rank="0",stage="wait"} 0.25',
        "# EOF",
    ]
    assert list(tmp_path.iterdir()) == [place]


def test_labels_are_escaped_and_what_was_not_measured_is_left_out() -> None:
    text = openmetrics([Reading('a"b\\', 3, 7)])
    assert text.splitlines()[2:] == ['ioprobe_steps_total{loader="a\\"b\\\\",rank="3"} 7', "# EOF"]


def test_a_metrics_file_that_cannot_be_written_is_said_once_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = Reporter(threshold=1.0, metrics_file=tmp_path / "none" / "x.prom")
    report(Window(1, 0.0, 1.0, 1))
    report(Window(1, 0.0, 1.0, 2))
    assert len([m for m in caplog.messages if "cannot write" in m]) == 1


ROW = {"start_s": 10.0, "idle_s": 1.0, "fetch_wall_s": 2.0, "collate_wall_s": 0.5, "put_s": 13.0}


def test_a_workers_time_is_waiting_fetching_collating_and_handing_over() -> None:
    assert worker_seconds([ROW, ROW]) == {"wait": 2.0, "fetch": 4.0, "collate": 1.0, "transport": 1.0}


def test_stacks_divide_fetching_and_too_few_of_them_do_not() -> None:
    seconds = worker_seconds([ROW])
    stacks = {Stage.READ: 6, Stage.DECODE: 18, Stage.WAIT: 100, Stage.COLLATE: 100}
    divided = stage_shares(seconds, stacks)
    assert divided == {"read": 0.125, "decode": 0.375, "wait": 0.25, "collate": 0.125, "transport": 0.125}
    assert sum(divided.values()) == 1.0
    assert stage_shares(seconds, {Stage.READ: 11})["fetch"] == 0.5
    assert stage_shares({}, stacks) == {}


class Zipped(Dataset[int]):
    """Samples that take a millisecond or two to decompress."""

    def __init__(self) -> None:
        self.data = zlib.compress(os.urandom(400_000))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return len(zlib.decompress(self.data))


def memory_files() -> int:
    """Return how many tables for workers' rows this process holds."""
    count = 0
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(FileNotFoundError):  # another thread closed it meanwhile
            count += "memfd:ioprobe" in os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    return count


def test_the_workers_stages_come_with_each_window_and_nothing_stays_behind() -> None:
    before = memory_files()  # other tests of this process may hold some
    loader = DataLoader(Zipped(), batch_size=4, num_workers=1)
    windows: list[Window] = []
    watched = Watched[Any](loader, StallMeter(16, stages=StageMeter(stacks_hz=100.0)), windows.append)
    original = dataloader._BaseDataLoaderIter.__next__
    for _ in range(400):
        for _ in watched:
            assert dataloader._BaseDataLoaderIter.__next__ is original
        if windows and _most(windows[-1]) == "decode":
            break
    # Where others want the cores, the start of the workers outlasts their work in some windows.
    assert _most(windows[-1]) == "decode"
    for window in windows:
        assert sum(window.stages.values()) == pytest.approx(1.0)
    gc.collect()
    assert memory_files() <= before


def _most(window: Window) -> str:
    """Return the stage that takes most of what is not waiting."""
    return max(((share, stage) for stage, share in window.stages.items() if stage != "wait"), default=(0.0, ""))[1]


def test_an_iterator_with_persistent_workers_is_followed_over_its_epochs() -> None:
    before = memory_files()
    loader = DataLoader(list(range(32)), batch_size=4, num_workers=1, persistent_workers=True)
    windows: list[Window] = []
    watched = ioprobe.watch(loader, every=4, threshold=1.0, emit=windows.append)
    for _ in range(3):
        assert [int(batch[0]) for batch in watched] == list(range(0, 32, 4))
    assert len(windows) >= 4
    assert all(window.stages for window in windows)
    del watched, loader
    gc.collect()
    assert memory_files() <= before


def test_without_workers_the_fetching_of_the_main_process_is_seen() -> None:
    windows: list[Window] = []
    loader = DataLoader(Zipped(), batch_size=4)
    assert len(list(ioprobe.watch(loader, every=4, threshold=1.0, emit=windows.append))) == 16
    assert all(window.stages["fetch"] > 0.5 for window in windows)


def test_only_stalls_are_measured_where_others_look_at_the_workers_already() -> None:
    windows: list[Window] = []
    others = Recorder(stacks_hz=0)
    take_off = install(others)
    try:
        list(ioprobe.watch(DataLoader(list(range(16)), batch_size=2), every=2, threshold=1.0, emit=windows.append))
    finally:
        take_off()
    assert [len(trace.call_s) for trace in others.traces] == [8]
    others.forget()
    assert windows
    assert all(not window.stages for window in windows)


def test_a_loop_that_is_left_gives_the_hooks_back() -> None:
    original = dataloader._BaseDataLoaderIter.__init__
    for _ in ioprobe.watch(DataLoader([1, 2, 3])):
        break

    def broken() -> Iterator[int]:
        raise RuntimeError("no data")
        yield 1

    with pytest.raises(RuntimeError, match="no data"):
        list(ioprobe.watch(broken()))
    assert dataloader._BaseDataLoaderIter.__init__ is original
    assert dataloader._BaseDataLoaderIter.__next__.__module__ == dataloader.__name__


def test_a_meter_travels_to_spawned_ranks_as_it_was_made() -> None:
    assert pickle.loads(pickle.dumps(StageMeter(stacks_hz=5.0))).stacks_hz == 5.0


def test_options_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ValueError, match="every is 0"):
        ioprobe.watch([], every=0)
    with pytest.raises(ValueError, match="threshold is 2"):
        ioprobe.watch([], threshold=2)


class Stages(StageMeter):
    """Workers that do nothing but decode."""

    def take(self) -> dict[str, float]:
        return {"decode": 1.0}


def with_framework(monkeypatch: pytest.MonkeyPatch, ours: str, **modules: Any) -> Any:
    """Return our module as it is where a framework with these base classes is installed."""
    for name, content in modules.items():
        module = types.ModuleType(name.replace("__", "."))
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return importlib.reload(importlib.import_module(ours))


def test_the_lightning_callback_logs_stall_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    base = type("Callback", (), {})
    modules = {"lightning": {}, "lightning__pytorch": {}, "lightning__pytorch__callbacks": {"Callback": base}}
    ours = with_framework(monkeypatch, "ioprobe.integrations.lightning", **modules)
    callback = ours.StallCallback(every=2, threshold=1.0)
    clock = Clock()
    callback._loop.meter = StallMeter(2, clock=clock, stages=Stages())
    logged: list[dict[str, float]] = []
    module = types.SimpleNamespace(log_dict=logged.append)
    callback.on_train_epoch_start(None, module)
    for k in range(5):
        clock.now += 1.0
        callback.on_train_batch_start(None, module, None, k)
        clock.now += 1.0
        callback.on_train_batch_end(None, module, None, None, k)
    assert [round(entry["ioprobe/stall_share"], 3) for entry in logged] == [0.5, 0.5]
    assert [entry["ioprobe/workers/decode"] for entry in logged] == [1.0, 1.0]
    monkeypatch.undo()
    importlib.reload(ours)


def test_the_trainer_callback_adds_to_the_logs_and_leaves_evaluation_out(monkeypatch: pytest.MonkeyPatch) -> None:
    base = type("TrainerCallback", (), {})
    ours = with_framework(monkeypatch, "ioprobe.integrations.transformers", transformers={"TrainerCallback": base})
    callback = ours.StallCallback(every=2, threshold=1.0)
    clock = Clock()
    callback._loop.meter = StallMeter(2, clock=clock, stages=Stages())
    logs: dict[str, Any] = {}
    callback.on_epoch_begin(None, None, None)
    for k in range(3):
        clock.now += 1.0
        callback.on_step_begin(None, None, None)
        clock.now += 3.0
        callback.on_step_end(None, None, None)
        if k == 0:
            clock.now += 500.0
            callback.on_evaluate(None, None, None)
    callback.on_log(None, None, None, logs=logs)
    assert logs["stall_share"] == pytest.approx(2 / 8)
    assert logs["workers_decode"] == 1.0
    monkeypatch.undo()
    importlib.reload(ours)


def test_a_callback_without_its_framework_says_what_to_install() -> None:
    from ioprobe.integrations import lightning, transformers

    for module in (lightning, transformers):
        if module._Base is object:
            with pytest.raises(UsageError, match="is not installed"):
                module.StallCallback()
