"""One line in the user's own script, and the callbacks of two frameworks."""

from __future__ import annotations

import importlib
import logging
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ioprobe
from ioprobe.errors import UsageError
from ioprobe.watching import Reporter, StallMeter, Watched, Window, openmetrics


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


def test_metrics_are_openmetrics_text_with_labels_escaped(tmp_path: Path) -> None:
    place = tmp_path / "ioprobe.prom"
    Reporter(threshold=1.0, metrics_file=place)(Window(10, 0.5, 2.0, 30))
    text = place.read_text()
    assert text == openmetrics(Window(10, 0.5, 2.0, 30), "train", 0)
    assert 'ioprobe_stall_ratio{loader="train",rank="0"} 0.25\n' in text
    assert 'ioprobe_steps_total{loader="train",rank="0"} 30\n' in text
    assert text.endswith("# EOF\n")
    assert list(tmp_path.iterdir()) == [place]
    assert 'loader="a\\"b"' in openmetrics(Window(1, 0.0, 1.0, 1), 'a"b', 0)


def test_a_metrics_file_that_cannot_be_written_is_said_once_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = Reporter(threshold=1.0, metrics_file=tmp_path / "none" / "x.prom")
    report(Window(1, 0.0, 1.0, 1))
    report(Window(1, 0.0, 1.0, 2))
    assert len([m for m in caplog.messages if "cannot write" in m]) == 1


def test_options_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ValueError, match="every is 0"):
        ioprobe.watch([], every=0)
    with pytest.raises(ValueError, match="threshold is 2"):
        ioprobe.watch([], threshold=2)


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
    callback._meter = StallMeter(2, clock=clock)
    logged: list[dict[str, float]] = []
    module = types.SimpleNamespace(log_dict=logged.append)
    callback.on_train_epoch_start(None, module)
    for k in range(5):
        clock.now += 1.0
        callback.on_train_batch_start(None, module, None, k)
        clock.now += 1.0
        callback.on_train_batch_end(None, module, None, None, k)
    assert [round(entry["ioprobe/stall_share"], 3) for entry in logged] == [0.5, 0.5]
    monkeypatch.undo()
    importlib.reload(ours)


def test_the_trainer_callback_adds_to_the_logs_and_leaves_evaluation_out(monkeypatch: pytest.MonkeyPatch) -> None:
    base = type("TrainerCallback", (), {})
    ours = with_framework(monkeypatch, "ioprobe.integrations.transformers", transformers={"TrainerCallback": base})
    callback = ours.StallCallback(every=2, threshold=1.0)
    clock = Clock()
    callback._meter = StallMeter(2, clock=clock)
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
    monkeypatch.undo()
    importlib.reload(ours)


def test_a_callback_without_its_framework_says_what_to_install() -> None:
    from ioprobe.integrations import lightning, transformers

    for module in (lightning, transformers):
        if module._Base is object:
            with pytest.raises(UsageError, match="is not installed"):
                module.StallCallback()
