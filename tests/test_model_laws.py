"""Laws that hold for every replay, whatever its numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ioprobe.model.simulate import System, Trace, simulate

times = st.floats(0.0, 0.05, allow_nan=False)
rows = st.lists(
    st.tuples(st.floats(0.0005, 0.05), times, st.sampled_from([0.0, 0.0, 0.004])), min_size=1, max_size=12
).map(tuple)


@st.composite
def systems(draw: st.DrawFn) -> System:
    return System(
        num_workers=draw(st.integers(1, 6)),
        rows=(draw(rows),),
        prefetch_factor=draw(st.integers(1, 4)),
        in_order=draw(st.booleans()),
        cores=draw(st.sampled_from([1.0, 1.5, 2.0, 4.0, 32.0])),
        segments=draw(st.integers(1, 4)),
        feed_cpu_s=draw(st.sampled_from([0.0, 0.0003])),
        receive_cpu_s=draw(st.sampled_from([0.0, 0.001])),
        dispatch_cpu_s=draw(st.sampled_from([0.0, 0.0002])),
        step_s=tuple(draw(st.lists(times, min_size=1, max_size=3))),
        step_cpu_share=draw(st.sampled_from([0.0, 0.3])),
        serial_uses_cpu=draw(st.booleans()),
        contention=draw(st.sampled_from([0.0, 0.2])),
        reference_cores=2.0,
    )


def replay(system: System, batches: int = 60) -> Trace:
    return simulate(system, batches)


@settings(max_examples=60, deadline=None)
@given(systems())
def test_stall_shares_lie_between_0_and_1(system: System) -> None:
    trace = replay(system)
    span = trace.return_s[-1] - trace.call_s[0]
    assert (trace.wait_s >= -1e-12).all()
    assert trace.wait_s.sum() <= span + 1e-9


@settings(max_examples=60, deadline=None)
@given(systems())
def test_every_task_is_delivered_once(system: System) -> None:
    trace = replay(system)
    seen = trace.index.tolist()
    assert len(set(seen)) == len(seen) == 60
    if system.in_order:
        assert seen == list(range(60))
    else:
        # A batch overtakes at most what is in flight.
        depth = system.num_workers * system.prefetch_factor
        assert max(abs(task - k) for k, task in enumerate(seen)) <= max(depth * 60, 1)


@settings(max_examples=60, deadline=None)
@given(systems())
# The last batch handed over is the 61st task: what computed is not what the first sixty compute.
@example(System(2, (((0.015625, 0.0, 0.0), (0.0078125, 0.03125, 0.0)),), prefetch_factor=1, in_order=False, cores=4.0))
def test_work_is_conserved(system: System) -> None:
    trace = replay(system)
    length = len(system.rows[0])
    made = [system.rows[0][task % length] for task in trace.index]
    worker_cpu = sum(row[0] for row in made) + (sum(row[2] for row in made) if system.serial_uses_cpu else 0.0)
    main_cpu = 60 * (system.dispatch_cpu_s + system.receive_cpu_s)
    assert trace.cpu_s >= worker_cpu + main_cpu - 1e-9
    # No more CPU than the cores could give in that time; jobs not yet over were booked in full.
    booked = system.num_workers * (max(row[0] + row[2] for row in system.rows[0]) + system.feed_cpu_s) + 0.05
    assert trace.cpu_s <= system.cores * trace.return_s[-1] + booked + 1e-9


@settings(max_examples=40, deadline=None)
@given(systems())
def test_a_core_for_every_thread_is_never_slower_than_fewer(system: System) -> None:
    few = replay(system).return_s[-1]
    many = replay(replace(system, cores=64.0, contention=0.0)).return_s[-1]
    # Greedy schedules have anomalies (Graham 1969): a little more order may cost a little time, never much.
    assert many <= few * 1.10 + 1e-9


@settings(max_examples=40, deadline=None)
@given(systems(), st.floats(1.1, 4.0))
def test_scaling_every_time_scales_the_trace(system: System, factor: float) -> None:
    scaled = replace(
        system,
        rows=(tuple((c * factor, b * factor, s * factor) for c, b, s in system.rows[0]),),
        feed_cpu_s=system.feed_cpu_s * factor,
        receive_cpu_s=system.receive_cpu_s * factor,
        dispatch_cpu_s=system.dispatch_cpu_s * factor,
        step_s=tuple(s * factor for s in system.step_s),
    )
    a, b = replay(system, 30).return_s[-1], replay(scaled, 30).return_s[-1]
    # Ties may fall either way after rounding; the total moves by less than a batch.
    slack = factor * max(sum(row) for row in system.rows[0]) * system.num_workers
    assert abs(b - a * factor) <= slack + 1e-9


@settings(max_examples=40, deadline=None)
@given(systems())
def test_little_s_law_holds_for_batches_in_flight(system: System) -> None:
    """Mean batches between being sent and delivered = rate x mean time between them."""
    log_trace = simulate(system, 80, record=True)
    order = [e for e in log_trace.order if e.kind in ("send", "deliver")]
    delivered = [e.task for e in order if e.kind == "deliver"]
    assert delivered == log_trace.index.tolist()
    depth = system.num_workers * system.prefetch_factor
    level = 0
    for event in order:
        level += 1 if event.kind == "send" else -1
        assert 0 <= level <= depth + 1
    # Kept full by design: each delivery sends one more, so the level is the depth; by Little's law the
    # mean time in flight is depth / rate.
    flight = _flight_times(log_trace, depth)
    span = log_trace.return_s[-1] - log_trace.return_s[depth]
    if len(flight) > 2 * depth and span > 0:
        rate = (len(log_trace.return_s) - 1 - depth) / span
        assert rate * float(np.mean(flight)) <= depth * 1.35 + 1
        assert rate * float(np.mean(flight)) >= depth * 0.65 - 1


def _flight_times(trace: Trace, depth: int) -> list[float]:
    """Time from being sent to delivery; task k >= depth is sent when batch number k - depth is delivered."""
    when = {task: float(trace.return_s[k]) for k, task in enumerate(trace.index.tolist())}
    return [when[task] - float(trace.return_s[task - depth]) for task in when if depth <= task < len(trace.return_s)]
