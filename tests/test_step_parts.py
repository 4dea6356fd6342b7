"""Shares of a step's time, from planted traces."""

from __future__ import annotations

import random

import pytest

from ioprobe.probe.step_parts import Event, divide


def mark(start: float, end: float) -> Event:
    return Event("ioprobe.step", start, end, annotation=True)


def kernel(name: str, start: float, end: float) -> Event:
    return Event(name, start, end, on_device=True)


def test_a_trace_without_the_mark_divides_nothing() -> None:
    assert divide([], 1) is None
    assert divide([Event("aten::add", 0, 1)], 1) is None


def test_on_the_device_only_what_kernels_do_not_hide_is_exposed() -> None:
    shares = divide(
        [
            mark(0, 10),
            kernel("Memcpy HtoD (Pinned -> Device)", 0, 2),
            kernel("volta_sgemm", 1, 5),
            kernel("ncclDevKernel_AllReduce_Sum_f32", 4, 7),
            kernel("Memset (Device)", 7, 7.5),
            Event("checkpoint", 7.5, 9, annotation=True),
            Event("gpu mark", 0, 10, on_device=True, annotation=True),
        ],
        2,
    )
    assert shares is not None
    assert shares.seconds == {"compute": 4.5, "communication": 2, "transfer": 1, "checkpoint": 1.5, "idle": 1}
    assert shares.seconds_per_step(0.5)["compute"] == pytest.approx(0.225)


def test_on_the_cpu_operators_of_another_thread_hide_communication() -> None:
    shares = divide(
        [
            mark(0, 10),
            Event("aten::conv2d", 0, 4, thread=1),
            Event("gloo:all_reduce", 2, 6, thread=2, annotation=True),
            Event("train_step", 0, 10, thread=1, annotation=True),
        ],
        1,
    )
    assert shares is not None
    # Four seconds of operators, two of exposed waiting, and four that no operator claims.
    assert shares.seconds == {"checkpoint": 0, "transfer": 0, "compute": 8, "communication": 2}


def test_communication_marked_around_operators_is_communication() -> None:
    shares = divide(
        [
            mark(0, 10),
            Event("c10d::allreduce_", 2, 6),
            Event("aten::copy_", 3, 4),
            Event("autograd::engine::evaluate_function: Hook", 1, 7),
        ],
        1,
    )
    assert shares is not None
    assert shares.seconds["communication"] == 4


@pytest.mark.parametrize("name", ["checkpoint", "save_checkpoint", "checkpoint_save", "ckpt", "checkpoint: epoch 3"])
def test_a_checkpoint_counts_though_it_is_made_of_operators(name: str) -> None:
    shares = divide([mark(0, 4), Event(name, 1, 3, annotation=True), Event("aten::copy_", 1, 2)], 1)
    assert shares is not None
    assert shares.seconds == {"checkpoint": 2, "transfer": 0, "compute": 2, "communication": 0}


@pytest.mark.parametrize("name", ["CheckpointFunction", "checkpointed_block", "CheckpointFunctionBackward"])
def test_activation_checkpointing_is_no_checkpoint(name: str) -> None:
    shares = divide([mark(0, 4), Event(name, 1, 3, annotation=True)], 1)
    assert shares is not None
    assert shares.seconds["checkpoint"] == 0


def test_shares_sum_to_the_window_whatever_the_trace() -> None:
    draw = random.Random(7)
    names = ["aten::mm", "gloo:all_reduce", "checkpoint", "Memcpy HtoD (Pageable -> Device)", "nccl:broadcast", "x"]
    for round_ in range(200):
        events = [mark(10, 20)]
        for _ in range(draw.randrange(40)):
            start = draw.uniform(5, 22)
            on_device = bool(round_ % 2) and draw.random() < 0.5
            end = start + draw.expovariate(1)
            events.append(Event(draw.choice(names), start, end, draw.randrange(3), on_device, draw.random() < 0.5))
        shares = divide(events, 3)
        assert shares is not None
        assert sum(shares.seconds.values()) == pytest.approx(10)
        assert min(shares.seconds.values()) >= -1e-9
        draw.shuffle(events)
        again = divide(events, 3)
        assert again is not None
        assert again.seconds == pytest.approx(shares.seconds)
