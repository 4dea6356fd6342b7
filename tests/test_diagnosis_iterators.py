"""A loader that is no DataLoader: what its loop's own thread does is hidden by no step."""

from __future__ import annotations

import pytest
from made_runs import make_run

from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.diagnosis.types import Verdict
from ioprobe.instrument.stages import Frame, classify
from ioprobe.run import Run, Stage


def made_in_turn(cpu: float) -> Run:
    """Batches of 8 ms, of which the loop's own thread computes a share; a step of 4.5 ms."""
    waits_s = 0.008 if cpu > 0.5 else 0.0035
    run = make_run(
        loop_wait_s=waits_s,
        step_s=0.0045,
        loader_cycle_s=0.008,
        workers=0,
        facts={"kind": "opaque", "adaptable": False, "settings": None},
    )
    for measured in run.loaders:
        measured.settings = None
        measured.main.wait_cpu_s = [cpu * wait for wait in measured.main.wait_s]
    return run


def test_an_iterator_that_computes_in_the_loop_takes_turns_with_the_step() -> None:
    run = made_in_turn(cpu=0.99)
    finished = diagnose(run)
    found = finished.diagnosis
    assert found.verdict is Verdict.DATA_BOUND
    assert "the loop's own thread makes the batches, 8.00 ms each" in found.evidence
    assert found.stall_share.predicted is not None
    assert found.stall_share.predicted.value == pytest.approx(8 / 12.5, abs=0.01)
    assert finished.advice[0].code == "IO102"
    assert "beside the step" in finished.advice[0].action


def test_an_iterator_whose_batches_are_made_elsewhere_overlaps_with_the_step() -> None:
    finished = diagnose(made_in_turn(cpu=0.05))
    assert finished.diagnosis.stall_share.predicted is not None
    assert finished.diagnosis.stall_share.predicted.value == pytest.approx(1 - 4.5 / 8, abs=0.03)
    assert all("takes turns" not in reason for reason in finished.diagnosis.reasons)


def test_a_job_s_own_next_is_loading_and_not_its_step() -> None:
    frames = [Frame("Batches.__next__", "/home/me/train.py", 12), Frame("<module>", "/home/me/train.py", 40)]
    assert classify(frames, "main").stage is Stage.TRANSFORM
    assert classify(frames[1:], "main").stage is Stage.STEP
