"""From iterator traces to the columns of a run."""

from ioprobe.probe.rows import init_times


def test_a_worker_starts_when_its_process_is_made_one_after_the_other():
    assert init_times(10.0, 2.0, [11.5, 13.0]) == [0.5, 1.0]


def test_a_worker_that_was_never_ready_has_no_start_and_a_forked_one_none_below_zero():
    assert init_times(10.0, 3.0, [10.5, 0.0, 13.25]) == [0.0, 0.25]
    assert init_times(10.0, 0.0, []) == []
