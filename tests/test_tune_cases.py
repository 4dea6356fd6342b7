"""The benchmark of ``tune`` on labelled pipelines counts what a plain loop delivers, and judges by nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from benchmark_module import load_benchmark


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("tune_cases", monkeypatch)


class Loader:
    """Delivers by a simulated clock: a batch each ``batch_s``, after ``edge_s`` at the begin of an epoch."""

    def __init__(self, clock: list[float], length: int, batch_s: float, edge_s: float) -> None:
        self.clock, self.length, self.batch_s, self.edge_s = clock, length, batch_s, edge_s

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        self.clock[0] += self.edge_s
        for number in range(self.length):
            self.clock[0] += self.batch_s
            yield number


@pytest.mark.parametrize(("length", "per_batch_s"), [(1_000_000, 0.03), (20, 0.03 + 1.0 / 20), (3, 0.03 + 1.0 / 3)])
def test_short_epochs_are_counted_whole(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, length: int, per_batch_s: float
) -> None:
    clock = [0.0]
    monkeypatch.setattr(benchmark, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def step(batch: int) -> None:
        clock[0] += 0.01

    assert benchmark.rate(Loader(clock, length, 0.02, 1.0), step, 2, 4) == pytest.approx(1 / per_batch_s)


def test_a_loader_too_slow_for_the_window_ends_all_the_same(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(benchmark, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert benchmark.rate(Loader(clock, 1000, 2.0, 0.0), lambda batch: None, 1, 2) == pytest.approx(0.5)
    assert clock[0] < 20.0


def row(**changes: Any) -> dict[str, Any]:
    measured = [[0, 2, 5.0, 1.0], [1, 2, 9.9, 1.0], [2, 2, 10.0, 1.0], [4, 2, None, 0.5]] * 2
    found = {"name": "x", "start": (4, 2), "pick": (1, 2), "persistent_workers": None, "tune_s": 4.0}
    return {**found, "measured": measured, **changes}


def test_the_pick_is_judged_by_the_grid(benchmark: Any) -> None:
    found = benchmark.judge(row())
    assert found["best"] == (2, 2)
    assert found["share"] == pytest.approx(0.99)
    assert found["fewest"] == 1
    assert found["grid_s"] == pytest.approx(7.0)
    assert "1 pipelines" in benchmark.summary([row()])
    assert "| 1 x 2 | 2 x 2 |" in benchmark.line_of(row())


def test_a_pick_that_keeps_workers_is_not_mixed_up_with_the_start(benchmark: Any) -> None:
    measured = [[1, 2, 9.0, 1.0], [2, 2, 10.0, 1.0], [2, 2, 4.0, 1.0]] * 2
    found = benchmark.judge(row(start=(2, 2), pick=(2, 2), persistent_workers=True, measured=measured))
    assert found["share"] == pytest.approx(1.0)
    assert found["from"] == pytest.approx(0.4)


def test_a_pick_that_fails_is_a_miss_in_the_summary(benchmark: Any) -> None:
    told = benchmark.summary([row(pick=(4, 2), start=(1, 2))])
    assert "1 pipelines" in told
    assert "least 0.000" in told


def test_a_pipeline_where_nothing_runs_is_told(benchmark: Any) -> None:
    measured = [[1, 2, None, 1.0], [2, 2, None, 1.0]] * 2
    assert "no setting runs" in benchmark.line_of(row(measured=measured))
    assert benchmark.summary([row(measured=measured)]) == "nothing was measured"
