"""The replay of a loader: exact answers where a person can work them out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ioprobe.model.simulate import System, Trace, simulate

MS = 1e-3


def constant(cpu_ms: float = 0.0, blocked_ms: float = 0.0, serial_ms: float = 0.0) -> tuple[tuple[float, ...], ...]:
    return ((cpu_ms * MS, blocked_ms * MS, serial_ms * MS),)


def system(workers: int, *rows: tuple[tuple[float, ...], ...], **more: object) -> System:
    return System(num_workers=workers, rows=rows, **more)  # type: ignore[arg-type]


def events(given: System, batches: int, **more: bool) -> Trace:
    """Replay through the event engine, whatever the shortcuts would do."""
    return simulate(given, batches, record=True, **more)


def per_second(trace: Trace, skip: int) -> float:
    return float((trace.return_s.size - 1 - skip) / (trace.return_s[-1] - trace.return_s[skip]))


def test_one_worker_delivers_one_batch_per_service_time() -> None:
    given = system(1, constant(blocked_ms=10))
    for trace in (simulate(given, 5), events(given, 5)):
        assert trace.return_s == pytest.approx(np.array([10, 20, 30, 40, 50]) * MS)
        assert trace.call_s == pytest.approx(np.array([0, 10, 20, 30, 40]) * MS)


def test_two_workers_deliver_two_batches_per_service_time() -> None:
    given = system(2, constant(blocked_ms=10))
    for trace in (simulate(given, 6), events(given, 6)):
        assert trace.return_s == pytest.approx(np.array([10, 10, 20, 20, 30, 30]) * MS)


def test_without_workers_fetching_and_stepping_take_turns() -> None:
    trace = simulate(system(0, constant(cpu_ms=4, blocked_ms=6), step_s=(5 * MS,)), 3)
    assert trace.return_s == pytest.approx(np.array([10, 25, 40]) * MS)
    assert trace.wait_s == pytest.approx(np.array([10, 10, 10]) * MS)


def test_in_order_delivery_waits_for_the_slow_worker() -> None:
    rows = (constant(blocked_ms=30), constant(blocked_ms=10))
    trace = events(system(2, *rows), 401)
    # Two batches in every 30 ms: the fast worker idles.
    assert per_second(trace, 200) == pytest.approx(2 / (30 * MS))


def test_out_of_order_delivery_lets_each_worker_run_at_its_own_pace() -> None:
    rows = (constant(blocked_ms=30), constant(blocked_ms=10))
    trace = events(system(2, *rows, in_order=False), 801)
    assert per_second(trace, 400) == pytest.approx(1 / (30 * MS) + 1 / (10 * MS))


def test_four_workers_share_two_cores() -> None:
    trace = events(system(4, constant(cpu_ms=10), cores=2.0), 401)
    assert per_second(trace, 200) == pytest.approx(2 / (10 * MS))
    assert trace.cpu_s >= 4.0


def test_two_workers_in_step_share_one_core_and_waste_it_while_both_wait() -> None:
    # Both wait 10 ms, then both compute at half speed for 20 ms.
    trace = events(system(2, constant(cpu_ms=10, blocked_ms=10), cores=1.0), 201)
    assert per_second(trace, 100) == pytest.approx(2 / (30 * MS))


def test_the_main_process_takes_a_core_from_the_workers() -> None:
    # 10 ms in the worker and 2 ms in the main process on one core: 12 ms a batch.
    trace = events(system(2, constant(cpu_ms=10), cores=1.0, receive_cpu_s=2 * MS), 201)
    assert per_second(trace, 100) == pytest.approx(1 / (12 * MS))


def test_a_serial_server_is_a_ceiling_for_any_number_of_workers() -> None:
    given = system(8, constant(blocked_ms=10, serial_ms=5))
    assert per_second(events(given, 400), 200) == pytest.approx(1 / (5 * MS))
    assert per_second(events(replace(given, serial_channels=2), 400), 200) == pytest.approx(2 / (5 * MS), rel=0.01)


def test_few_workers_do_not_reach_the_serial_server_s_ceiling() -> None:
    trace = events(system(2, constant(blocked_ms=15, serial_ms=5)), 201)
    assert per_second(trace, 100) == pytest.approx(2 / (20 * MS))


def test_a_lock_whose_holder_computes_uses_one_core_only() -> None:
    given = system(4, constant(serial_ms=10), serial_uses_cpu=True, cores=4.0)
    trace = events(given, 201)
    assert per_second(trace, 100) == pytest.approx(1 / (10 * MS))


def test_a_step_slower_than_the_loader_hides_it() -> None:
    trace = events(system(2, constant(blocked_ms=10), step_s=(8 * MS,)), 100)
    assert trace.wait_s[20:] == pytest.approx(np.zeros(80))
    assert per_second(trace, 20) == pytest.approx(1 / (8 * MS))


def test_a_full_buffer_hides_a_slow_loader_for_as_many_steps_as_it_lasts() -> None:
    # Four batches ready; one comes every 20 ms, one goes every 10 ms. Batch 4+j is made at 20(j+1) ms and
    # due at 10(4+j) ms: the first that is late is j=3, after seven steps.
    given = system(1, constant(blocked_ms=20), prefetch_factor=4, step_s=(10 * MS,))
    trace = events(given, 20, start_full=True)
    late = np.flatnonzero(trace.wait_s[1:] > 1e-9)
    assert int(late[0]) + 1 == 7


def test_finished_batches_never_exceed_workers_times_prefetch_factor() -> None:
    trace = events(system(3, constant(blocked_ms=1), prefetch_factor=4, step_s=(50 * MS,)), 60)
    assert trace.most_batches == 12


def test_receiving_costs_delay_delivery_but_not_the_worker() -> None:
    trace = events(system(1, constant(blocked_ms=10), receive_cpu_s=1 * MS, dispatch_cpu_s=1 * MS), 4)
    assert trace.return_s == pytest.approx(np.array([12, 22, 32, 42]) * MS)


def test_handing_over_from_a_busy_worker_blocks_the_main_process() -> None:
    given = system(1, constant(cpu_ms=10), receive_busy_s=5 * MS, receive_idle_s=0.0, prefetch_factor=2)
    trace = events(given, 3)
    # The worker is at its next batch when the first two arrive.
    assert trace.return_s[:2] == pytest.approx(np.array([15, 25]) * MS)


def test_threads_that_keep_the_gil_hold_up_a_hand_over_only_until_their_batch_is_made() -> None:
    given = system(2, constant(cpu_ms=50), receive_busy_s=40 * MS, receive_idle_s=1 * MS, prefetch_factor=4)
    # Two batches every 50 ms: 40 ms for the first, and for the second what is left until its worker's next is made.
    assert events(given, 6).return_s == pytest.approx(np.array([90, 101, 141, 151, 191, 201]) * MS)


def test_handing_over_with_all_other_cores_taken_is_slower_than_with_one_free() -> None:
    # Worker 0 has made all it was asked for; worker 1 computes for 100 ms when batch 0 is received.
    rows = (constant(cpu_ms=10), constant(cpu_ms=100))
    costs = {"receive_busy_s": 7 * MS, "receive_crowded_s": 5 * MS, "receive_idle_s": 2 * MS, "prefetch_factor": 1}
    for cores, handed_over in ((2.0, 15), (3.0, 12)):
        trace = events(system(2, *rows, cores=cores, **costs), 1)
        assert trace.return_s == pytest.approx(np.array([handed_over]) * MS)


def test_the_worker_s_end_of_a_hand_over_takes_its_core_but_not_the_main_process_s_time() -> None:
    # On one core 3 ms of it come off the next batch's 10 ms: a batch every 13 ms, the first one still after 10.
    trace = events(system(1, constant(cpu_ms=10), cores=1.0, share_cpu_s=3 * MS), 41)
    assert trace.return_s[0] == pytest.approx(10 * MS)
    assert per_second(trace, 20) == pytest.approx(1 / (13 * MS))
    # With a core for each nothing is delayed.
    assert per_second(events(system(1, constant(cpu_ms=10), cores=2.0, share_cpu_s=3 * MS), 41), 20) == pytest.approx(
        1 / (10 * MS)
    )


@pytest.mark.parametrize("workers", [2, 3, 6])
def test_the_main_process_takes_turns_with_one_other_thread_however_many_there_are(workers: int) -> None:
    # 4 ms of freeing in slices of 1.5 ms, a slice of another's after each: 4 + 2 x 1.5 ms.
    given = system(workers, constant(cpu_ms=1000), cores=2.0, release_s=4 * MS, prefetch_factor=2)
    trace = events(given, 1 + workers)
    assert trace.step_end_s[0] - trace.return_s[0] == pytest.approx(7 * MS)


def test_starting_workers_comes_before_the_first_batch() -> None:
    trace = events(system(2, constant(blocked_ms=10), start_s=20 * MS, init_s=5 * MS, first_extra_s=3 * MS), 2)
    # The second worker starts after the first: 2 x 20 ms, then its imports; the first is ready at 25 ms,
    # but tasks go out at 40 ms. In order, batch 0 comes from worker 0.
    assert trace.return_s == pytest.approx(np.array([53, 58]) * MS)


def test_epoch_edges_start_workers_again_unless_they_persist() -> None:
    given = system(1, constant(blocked_ms=10), batches_per_epoch=3, start_s=50 * MS)
    cold = events(given, 6)
    warm = events(replace(given, persistent_workers=True), 6)
    assert cold.wait_s[3] == pytest.approx(60 * MS)
    assert warm.wait_s[3] == pytest.approx(10 * MS)
    assert cold.epoch.tolist() == [0, 0, 0, 1, 1, 1]
    assert cold.index.tolist() == [0, 1, 2, 0, 1, 2]


def test_only_workers_with_data_deliver() -> None:
    given = system(4, constant(blocked_ms=10), worker_batches=(1 << 40, 0, 0, 0))
    trace = events(given, 200)
    assert per_second(trace, 100) == pytest.approx(1 / (10 * MS))


def test_uneven_shards_end_with_the_longest() -> None:
    given = system(2, constant(blocked_ms=10), worker_batches=(6, 2))
    trace = events(given, 8)
    # Two at a time while both have data, then one at a time.
    assert trace.return_s == pytest.approx(np.array([10, 10, 20, 20, 30, 40, 50, 60]) * MS)


def test_a_step_that_computes_slows_workers_on_shared_cores() -> None:
    alone = events(system(2, constant(cpu_ms=10), cores=2.0, step_s=(10 * MS,)), 201)
    shared = events(
        system(2, constant(cpu_ms=10), cores=2.0, step_s=(10 * MS,), step_cpu_share=1.0, main_first=False), 201
    )
    assert per_second(alone, 100) == pytest.approx(1 / (10 * MS))
    # Work conserved: 10 ms in the worker and 10 ms in the step per batch on two cores at best.
    assert per_second(shared, 100) <= 1 / (10 * MS) + 1e-9
    assert per_second(shared, 100) > 0.8 / (10 * MS)


def test_contention_slows_work_when_all_cores_are_busy() -> None:
    given = system(2, constant(cpu_ms=10), cores=2.0, contention=0.25, reference_cores=2.0)
    assert per_second(events(given, 201), 100) == pytest.approx(2 / (12.5 * MS))
    one = replace(given, num_workers=1)
    assert per_second(events(one, 101), 50) == pytest.approx(1 / (10 * MS))


def test_the_shortcut_and_the_events_agree_where_nothing_contends() -> None:
    rng = np.random.default_rng(5)
    rows = (tuple((float(c), float(b), 0.0) for c, b in rng.gamma(2.0, 0.004, (97, 2))),)
    for in_order in (True, False):
        given = System(
            num_workers=5,
            rows=rows,
            prefetch_factor=3,
            in_order=in_order,
            feed_cpu_s=0.00031,
            receive_cpu_s=0.00017,
            receive_busy_s=0.00007,
            receive_crowded_s=0.00007,
            receive_idle_s=0.00007,
            dispatch_cpu_s=0.00005,
            release_s=0.00003,
            step_s=(0.0011, 0.0007, 0.0019),
            start_s=0.004,
            init_s=0.0301,
            first_extra_s=0.0123,
        )
        fast, slow = simulate(given, 700), events(given, 700)
        assert fast.return_s == pytest.approx(slow.return_s, abs=1e-9)
        assert fast.call_s == pytest.approx(slow.call_s, abs=1e-9)
        assert fast.index.tolist() == slow.index.tolist()
        assert fast.most_batches == slow.most_batches


def test_a_replay_needs_batches_and_rows() -> None:
    with pytest.raises(ValueError, match="at least one batch"):
        simulate(system(1, constant(1)), 0)
    with pytest.raises(ValueError, match="one row"):
        simulate(System(num_workers=1, rows=((),)), 1)


def test_the_same_system_gives_the_same_trace() -> None:
    given = system(3, constant(cpu_ms=3, blocked_ms=2), cores=2.0, feed_cpu_s=0.2 * MS)
    first, second = events(given, 300), events(given, 300)
    assert first.return_s.tolist() == second.return_s.tolist()
    assert not math.isnan(first.return_s.sum())
