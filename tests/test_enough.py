"""When a measured loop may end, and how much of its time goes into asking."""

import pytest

from ioprobe.probe import loop
from ioprobe.probe.enough import is_narrow, is_too_little
from ioprobe.run import MainBatches


def rows(waits: list[float], cycle_s: float = 0.1) -> MainBatches:
    found = MainBatches()
    for number, wait in enumerate(waits):
        found.call_s.append(number * cycle_s)
        found.wait_s.append(wait)
        found.samples.append(4)
        found.epoch.append(0)
    return found


STEADY = [0.03] * 60


def test_a_steady_loop_is_known_well_enough():
    assert is_narrow(rows(STEADY), 0, [0] * 60, depth=4, precision=0.02)
    assert is_narrow(rows(STEADY), 4, [0] * 60, depth=4, precision=0.02)


@pytest.mark.parametrize(
    ("seen", "epochs_ended", "ready"),
    [
        (rows(STEADY[:31]), 0, [0] * 31),  # too few batches past the first two queues' full
        (rows([0.0, 0.1] * 30), 0, [0] * 60),  # the stall share swings by half: each block of three holds one or two
        (rows(STEADY), 0, [60 - k for k in range(60)]),  # steady only as long as the queue lasts
        (rows(STEADY), 1, [0] * 60),  # the first epoch has just ended: what the next begins with is part of the answer
        (rows(STEADY), 3, [0] * 60),  # short epochs, too few of them
        (rows([*STEADY, 2.0]), 0, [0] * 61),  # the wait that has just ended is as long as twenty batches
    ],
    ids=["few", "unsteady", "draining", "edge", "epochs", "pause"],
)
def test_what_would_change_the_figures_keeps_the_loop_going(seen: MainBatches, epochs_ended: int, ready: list[int]):
    assert not is_narrow(seen, epochs_ended, ready, depth=4, precision=0.02)


def test_a_loop_gets_more_time_while_it_has_too_few_batches_or_epochs_or_lives_on_its_queue():
    assert is_too_little(13, 0, [], depth=4)
    assert is_too_little(100, 1, [], depth=4)
    assert is_too_little(60, 0, [60 - k for k in range(60)], depth=4)
    assert is_too_little(60, 0, [*range(40, 0, -1), *[0] * 20], depth=4)  # drained 20 batches ago
    assert not is_too_little(100, 0, [*range(40, 0, -1), *[0] * 60], depth=4)
    assert not is_too_little(14, 0, [], depth=4)
    assert not is_too_little(100, 2, [0] * 100, depth=4)


@pytest.mark.parametrize(("cost_s", "looks"), [(0.0, 19), (0.001, 19), (0.02, 5), (1.0, 1)])
def test_looking_takes_a_hundredth_of_the_loops_time_at_most(monkeypatch, cost_s: float, looks: int):
    clock, seen = [0.0], []
    monkeypatch.setattr(loop, "now", lambda: clock[0])
    meter = loop.LoopMeter([], None, settings=None, seconds=9.8)

    def look(elapsed: float) -> bool:
        seen.append(elapsed)
        clock[0] += cost_s
        return False

    monkeypatch.setattr(meter, "_look", look)
    while clock[0] < 9.7:
        assert not meter._is_over()
        clock[0] += 1 / 128
    assert len(seen) == looks


def test_more_rows_than_anybody_can_use_are_not_kept(monkeypatch):
    monkeypatch.setattr(loop, "_MOST_BATCHES", 500)
    run = loop.LoopMeter([[1, 2]] * 64, None, settings=None, seconds=60.0, batch_samples=2).run()
    assert len(run.main.wait_s) == 500
    assert (run.stopped_because, run.failure) == ("interval", None)
