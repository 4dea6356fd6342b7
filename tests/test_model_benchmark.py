"""The benchmarks of the loader model and of tune: windows that hold the loader's rate, picks judged fairly."""

from __future__ import annotations

from typing import Any

import pytest
from benchmark_module import load_benchmark

WARM = 36


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch")
    return load_benchmark("grid", monkeypatch)


def rounds(workers: int, first: int, batch_s: float, count: int) -> list[float]:
    """Times of batches that come a round at once, the window's first one somewhere within a round."""
    return [((first + n) // workers) * workers * batch_s for n in range(count)]


@pytest.mark.parametrize(("workers", "cycle"), [(6, 16), (8, 13), (4, 41), (3, 1), (2, 32), (1, 5)])
def test_a_window_gives_the_rate_wherever_in_a_round_it_begins(grid: Any, workers: int, cycle: int) -> None:
    for first in range(workers):
        times = rounds(workers, first, 0.01, WARM + 700)
        for n in range(WARM + 2, len(times)):
            if grid._enough(times[:n], WARM, cycle, workers, 0.2):
                break
        else:
            pytest.fail("no window is ever enough")
        batches = n - 1 - WARM
        assert batches % cycle == 0
        assert (times[n - 1] - times[WARM]) / batches == pytest.approx(0.01)


def test_a_window_without_workers_needs_whole_cycles_only(grid: Any) -> None:
    times = [0.01 * n for n in range(WARM + 100)]
    enough = [n - 1 - WARM for n in range(WARM + 2, len(times)) if grid._enough(times[:n], WARM, 16, 1, 0.2)]
    assert enough[0] == 32


def test_gains_are_told_by_what_was_predicted_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    intervals = load_benchmark("model_intervals", monkeypatch)
    pairs = [(0.03, 0.1), (0.04, -0.1), (0.15, 0.01), (3.0, 2.0), (0.01, 0.5), (-0.2, -0.1)]
    told = intervals.gains_told(pairs)
    assert told.endswith(": 2 to 5%: 1 of 2, 10 to 20%: 1 of 1, above 20%: 1 of 1")


def test_a_pick_outside_the_grid_is_judged_by_its_own_loops_and_adds_nothing_to_the_grids_time(
    grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune = load_benchmark("tune", monkeypatch)

    def cell(workers: int, prefetch: int, repetition: int, batch_s: float) -> Any:
        return tune.Cell("jpeg", workers, prefetch, 0.01, repetition, batch_s, 0.1, 30, 0.2, 0.0, 2.0, 0.001)

    times = {(0, 2): 0.04, (1, 2): 0.02, (2, 2): 0.0101, (4, 2): 0.01, (5, 3): 0.0125}
    cells = [cell(*setting, r, seconds * (1 + 0.02 * r)) for setting, seconds in times.items() for r in range(2)]
    answer = {"recommended": {"settings": {"num_workers": 5, "prefetch_factor": 3}}, "spent_s": 4.0}
    found = tune.judge(tune.WORKLOADS["jpeg"], cells, answer)
    assert (found.pick, found.best, found.fewest) == ((5, 3), (4, 2), 2)
    assert found.share == pytest.approx(0.8)
    assert found.noise == pytest.approx(0.02)
    assert (found.tune_s, found.grid_s) == (4.0, 16.0)
    none = {"recommended": {"settings": {"num_workers": 0, "prefetch_factor": None}}, "spent_s": 4.0}
    assert tune.judge(tune.WORKLOADS["jpeg"], cells, none).share == pytest.approx(0.25)
