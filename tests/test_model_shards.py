"""Streams whose workers run out of data at different times."""

from __future__ import annotations

import numpy as np
import pytest

from ioprobe.model.calibrate import calibrate
from ioprobe.model.predict import loader_rate, predict
from ioprobe.model.profile import Setting
from ioprobe.model.shards import GOES_ON, delivered_by
from ioprobe.model.simulate import System
from tests.model_truth import SAMPLES, emulated_step, loader_run, run_of
from tests.test_model_epochs import ROWS, epoch_stall


def uneven(**more: object) -> System:
    """Four workers, one of which goes on where three are through after five batches."""
    given: dict[str, object] = {"worker_batches": (GOES_ON, 5, 5, 5), "receive_cpu_s": 0.0002, **more}
    return System(4, (ROWS,), **given)  # type: ignore[arg-type]


def test_workers_that_fell_silent_are_through_with_their_data() -> None:
    drained = loader_run(uneven(), 200)
    assert delivered_by(drained) == (GOES_ON, 0, 0, 0)
    profile = calibrate(run_of(drained, kind="iterable"))
    for workers in (2, 4, 8):
        assert loader_rate(profile, Setting(workers, step_s=0.0)) == pytest.approx(SAMPLES / 0.010, rel=0.03)
    assert predict(profile, Setting(4, step_s=0.004)).stall_share.value == pytest.approx(0.6, abs=0.03)


def test_workers_that_all_go_on_are_alike() -> None:
    assert delivered_by(loader_run(uneven(worker_batches=(GOES_ON,) * 4), 200)) is None
    assert delivered_by(loader_run(uneven(worker_batches=(50, 49, 50, 49)), 400)) is None


def test_uneven_shards_of_short_epochs_are_counted() -> None:
    truth = uneven(worker_batches=(40, 6, 6, 6), persistent_workers=True)
    drained = loader_run(truth, 3 * 58)
    assert delivered_by(drained) == (40, 6, 6, 6)
    profile = calibrate(run_of(drained, kind="iterable", step=emulated_step(0.004)))
    found = predict(profile, profile.current)
    assert found.epoch_stall_share == pytest.approx(epoch_stall(truth, 0.004), abs=0.02)
    assert np.isfinite(found.samples_per_s.value)
