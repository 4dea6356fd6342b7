"""The loops of a job from what its iterators recorded: steps, waits, epochs, loops within loops."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ioprobe.live.journals import Iterated
from ioprobe.live.loops import loop_of, rows_of


def iterated(calls: list[tuple[float, float]], **more: Any) -> Iterated:
    n = len(calls)
    columns = ("cpu_s", "sampler_s", "transport_s", "ready", "phase", "meeting_s", "own_s")
    rows = {name: [0.0] * n for name in columns}
    rows |= {"call_s": [c for c, _ in calls], "return_s": [r for _, r in calls], "samples": [4.0] * n}
    rows["number"] = [float(k) for k in range(n)]
    return Iterated(loader=0, begin_s=more.pop("begin_s", calls[0][0]), rows={**rows, **more.pop("rows", {})}, **more)


def test_the_step_runs_from_one_batch_to_the_next_request() -> None:
    rows = rows_of([iterated([(10.0, 11.0), (13.0, 14.0)], ends=[20.0], end_calls=[18.0], init_s=0.5)])
    main = loop_of(rows, [], {}, meetings=False).main
    assert main.wait_s == [1.5, 1.0]  # starting the workers counts as waiting for the first batch
    assert main.step_s == [2.0, 4.0]
    assert main.call_s == [0.0, 3.5]


def test_time_between_epochs_is_cut_out_and_the_end_of_an_epoch_is_waiting() -> None:
    first = iterated([(0.0, 1.0), (2.0, 3.0)], ends=[4.5], end_calls=[4.0])
    second = iterated([(100.0, 101.0), (102.0, 103.0)], ends=[104.0], end_calls=[104.0], init_s=0.25)
    loop = loop_of(rows_of([first, second]), [], {}, meetings=False)
    assert loop.main.wait_s == [1.0, 1.0, 1.75, 1.0]
    assert loop.main.epoch == [0, 0, 1, 1]
    assert loop.edges_s == [1.75]
    assert loop.main.call_s[2] == 4.0
    assert loop.on_clock([101.0]) == [5.75]


def test_a_batch_on_which_the_loop_was_left_has_no_step_and_is_dropped() -> None:
    rows = rows_of([iterated([(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)])])
    assert math.isnan(rows.next_s[-1])
    assert loop_of(rows, [], {}, meetings=False).main.step_s == [1.0, 1.0]


def test_persistent_workers_give_several_epochs_in_one_iterator() -> None:
    one = iterated(
        [(0.0, 1.0), (2.0, 3.0), (10.0, 11.0), (12.0, 13.0)],
        ends=[4.0, 14.0],
        end_calls=[4.0, 14.0],
        resets=[(9.5, 10.0)],
    )
    main = loop_of(rows_of([one]), [], {}, meetings=False).main
    assert main.epoch == [0, 0, 1, 1]
    assert main.wait_s == [1.0, 1.0, 1.5, 1.0]


def test_a_validation_loop_inside_a_step_is_cut_out_of_it() -> None:
    train = rows_of([iterated([(0.0, 1.0), (12.0, 13.0)], ends=[14.0], end_calls=[14.0])])
    inner = iterated([(2.0, 3.0), (4.0, 5.0)], begin_s=2.0, ends=[6.0], end_calls=[6.0])
    loop = loop_of(train, [inner], {}, meetings=False)
    assert loop.main.step_s == [7.0, 1.0]
    assert loop.nested_s == 4.0


def test_waiting_for_a_loader_read_in_step_counts_as_waiting() -> None:
    train = rows_of([iterated([(0.0, 1.0), (5.0, 6.0)], ends=[9.0], end_calls=[9.0])])
    other = iterated([(1.0, 2.0), (6.0, 7.5)], begin_s=-1.0, ends=[12.0], end_calls=[12.0])
    loop = loop_of(train, [other], {}, meetings=False)
    assert loop.main.wait_s == [2.0, 2.5]
    assert loop.main.step_s == [3.0, 1.5]
    assert loop.lockstep_s == 2.5


def test_time_in_which_ranks_meet_belongs_to_the_step_before() -> None:
    rows = {"meeting_s": [0.0, 0.7, 1.0]}
    train = rows_of([iterated([(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)], ends=[6.0], end_calls=[6.0], rows=rows)])
    assert loop_of(train, [], {}, meetings=True).main.meeting_s == pytest.approx([0.7, 0.3, 0.0])


def test_time_that_the_probe_itself_takes_is_taken_off_the_step() -> None:
    rows = {"own_s": [0.0, 0.25, 0.25]}
    train = rows_of([iterated([(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)], ends=[6.0], end_calls=[6.0], rows=rows)])
    assert loop_of(train, [], {}, meetings=False).main.step_s == [0.75, 1.0, 1.0]
