"""The benchmark of the loader model measures windows that hold the loader's rate."""

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
