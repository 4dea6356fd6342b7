"""Epochs so short that their edges count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from ioprobe.model.calibrate import calibrate
from ioprobe.model.predict import loader_rate, predict
from ioprobe.model.profile import Setting
from ioprobe.model.rates import throughput
from ioprobe.model.simulate import System, simulate
from tests.model_truth import SAMPLES, emulated_step, loader_run, run_of

ROWS = tuple((0.001, 0.009, 0.0) for _ in range(31))


def short(**more: object) -> System:
    """Two workers with 10 ms a batch and epochs of 12 batches."""
    given: dict[str, object] = {"batches_per_epoch": 12, "receive_cpu_s": 0.0002, **more}
    return System(2, (ROWS,), **given)  # type: ignore[arg-type]


def epoch_stall(system: System, step_s: float) -> float:
    """Stall share of the second and the third epoch at a step."""
    length = system.batches_per_epoch or sum(system.worker_batches or ())
    trace = simulate(replace(system, step_s=(step_s,)), 3 * length + 1)
    begin, end = trace.step_end_s[length - 1], trace.step_end_s[3 * length - 1]
    return float(trace.wait_s[length : 3 * length].sum() / (end - begin))


@pytest.mark.parametrize(
    "truth",
    [
        short(start_s=0.010, init_s=0.400),
        short(start_s=0.010, init_s=0.400, edge_s=0.060, first_extra_s=0.030),
        short(persistent_workers=True, again_blocked_s=0.900),
        short(persistent_workers=True, again_extra_s=0.200, first_extra_s=0.050),
    ],
    ids=["start", "start-stop-first-batch", "listing", "shuffle"],
)
def test_what_an_epoch_begins_with_is_predicted_from_the_loader_alone(truth: System) -> None:
    profile = calibrate(run_of(loader_run(truth, 60), step=emulated_step(0.020), num_batches=12))
    found = predict(profile, profile.current)
    assert found.epoch_stall_share == pytest.approx(epoch_stall(truth, 0.020), abs=0.01)
    # Between the edges the loader keeps up, and its rate there is that of its batches.
    assert loader_rate(profile, profile.current.at(step_s=0.0)) == pytest.approx(SAMPLES * 2 / 0.010, rel=0.03)


def test_workers_that_persist_spare_their_stopping_and_not_the_drawing() -> None:
    truth = short(start_s=0.010, init_s=0.100, edge_s=0.250)
    drained = loader_run(truth, 60)
    drained.main.sampler_s = [0.150 if k % 12 == 0 else 0.0 for k in range(60)]
    profile = calibrate(run_of(drained, num_batches=12))
    startup = profile.startup
    assert (startup.draw_s, startup.stop_s) == (pytest.approx(0.150), pytest.approx(0.100, abs=0.002))
    # Without workers nothing starts or stops, and the indices are drawn all the same: 150 ms, and 12 times 10 ms.
    inline = predict(profile, Setting(0, step_s=0.0)).epoch_samples_per_s
    assert inline == pytest.approx(12 * SAMPLES / 0.270, rel=0.02)


def test_what_an_epoch_ends_with_where_workers_live_on_is_the_datasets_and_stays_without_workers() -> None:
    truth = short(persistent_workers=True, edge_s=0.250)
    profile = calibrate(run_of(loader_run(truth, 60), num_batches=12))
    assert profile.startup.stop_s == pytest.approx(0.250, abs=0.01)
    inline = predict(profile, Setting(0, step_s=0.0)).epoch_samples_per_s
    assert inline == pytest.approx(12 * SAMPLES / (0.250 + 12 * 0.010), rel=0.03)


def test_without_workers_an_epoch_begins_with_its_listing_too() -> None:
    truth = short(persistent_workers=True, again_blocked_s=0.900)
    profile = calibrate(run_of(loader_run(truth, 60), step=emulated_step(0.020), kind="iterable", num_batches=12))
    inline = predict(profile, Setting(0))
    # 0.9 s, and 12 times 10 ms of loading and 20 ms of the step.
    assert inline.epoch_samples_per_s == pytest.approx(12 * SAMPLES / (0.900 + 12 * 0.030), rel=0.02)
    assert inline.epoch_stall_share == pytest.approx(1.02 / 1.26, abs=0.01)


def test_a_loader_that_can_only_be_replayed_pays_for_its_edges_too() -> None:
    truth = short(start_s=0.010, init_s=0.400)
    drained = structs.replace(loader_run(truth, 60), workers=None, settings=None)
    profile = calibrate(run_of(drained, kind="opaque", step=emulated_step(0.020), num_batches=12))
    found = predict(profile, profile.current)
    assert found.stall_share.value == pytest.approx(0.0, abs=0.01)
    assert found.epoch_stall_share == pytest.approx(epoch_stall(truth, 0.020), abs=0.01)


def test_the_rate_within_epochs_leaves_their_edges_out() -> None:
    drained = loader_run(short(start_s=0.010, init_s=0.400), 60)
    within, whole = throughput(drained, edges=False), throughput(drained)
    assert within is not None
    assert whole is not None
    assert within.value == pytest.approx(SAMPLES * 2 / 0.010, rel=0.03)
    assert whole.value < 0.5 * within.value
