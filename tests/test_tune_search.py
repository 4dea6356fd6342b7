"""How tune goes from one pick to the next, with replayed loaders in place of real ones."""

from __future__ import annotations

import pytest
from model_truth import emulated_step, loader_run

from ioprobe.analysis import tune as room
from ioprobe.analysis.request import Request
from ioprobe.errors import MeasureError
from ioprobe.model.simulate import System
from ioprobe.probe import protocol
from ioprobe.run import Failure, LoaderFacts, LoaderRun, LoaderSettings, MainBatches, SampleRepeats, StepRun

FILES = 2
STEP_S = 0.002


class Replayed:
    """A stream of two files, 20 ms of waiting a batch: each further worker finds nothing to do."""

    def __init__(self, **_: object) -> None:
        self.ran: list[int] = []

    def load(self, command: protocol.Load) -> LoaderFacts:
        return LoaderFacts(kind="iterable", settings=LoaderSettings(batch_size=16, num_workers=1, prefetch_factor=2))

    def measure(self, command: protocol.Measure) -> LoaderRun:
        workers = command.changes.get("num_workers", 1)
        self.ran.append(workers)
        system = System(
            num_workers=workers,
            prefetch_factor=command.changes.get("prefetch_factor", 2) if workers else 2,
            rows=(((0.0002, 0.02, 0.0),),),
            worker_batches=tuple(10_000 if w < FILES else 0 for w in range(workers)) if workers else None,
            step_s=(STEP_S,) if command.coupled else (0.0,),
            receive_cpu_s=0.0001,
        )
        return loader_run(system, 200, purpose=command.purpose)

    def step(self, command: protocol.Step) -> StepRun:
        return emulated_step(STEP_S)

    def retire(self) -> None:
        pass


def test_a_run_with_more_workers_than_the_stream_has_files_tells_how_many_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "Supervisor", Replayed)
    _, found = room.tune(Request(target="lines.py:make_loader", step_s=STEP_S), room.TuneOptions(max_workers=6))
    assert found.measured_settings >= 4  # one, none, the first pick of six, the second
    assert (found.recommended.action, found.recommended.settings["num_workers"]) == ("change", FILES)
    assert found.recommended.verified is not None
    assert found.recommended.verified.value == pytest.approx(1.0, abs=0.05)


class Copies(Replayed):
    """A stream that nobody splits: twice the workers, twice the batches, each of them twice."""

    def measure(self, command: protocol.Measure) -> LoaderRun:
        run = super().measure(command)
        workers = command.changes.get("num_workers", 1)
        if command.repeats and workers > 1:
            run.repeats = SampleRepeats(
                batches=24, distinct=24 // workers, workers_delivering=workers, rounds=12, equal_rounds=12
            )
        return run


def test_workers_that_deliver_copies_are_not_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "Supervisor", Copies)
    _, found = room.tune(Request(target="lines.py:make_loader", step_s=STEP_S), room.TuneOptions(max_workers=6))
    assert found.recommended.settings["num_workers"] < 2
    assert found.recommended.action != "change"
    (doubt,) = [c for c in found.caveats if c.code == "same-samples"]
    assert "each of 2 workers delivers the same samples" in doubt.text


class Fails(Replayed):
    """A loader whose every other setting but none of its own fails."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.raises = raises

    def measure(self, command: protocol.Measure) -> LoaderRun:
        if command.purpose != "verify":
            return super().measure(command)
        if self.raises:
            raise MeasureError("called a second time, the factory raised")
        gone = Failure(phase="loop", kind="hang", message="no progress for 60 s")
        return LoaderRun(coupled=True, purpose="verify", settings=None, main=MainBatches(), failure=gone)


@pytest.mark.parametrize(
    ("raises", "words"), [(True, "called a second time, the factory raised"), (False, "no progress for 60 s")]
)
def test_a_pick_that_fails_when_it_is_run_is_no_pick_and_says_why(
    monkeypatch: pytest.MonkeyPatch, raises: bool, words: str
) -> None:
    monkeypatch.setattr(room, "Supervisor", lambda **_: Fails(raises))
    _, found = room.tune(Request(target="lines.py:make_loader", step_s=STEP_S), room.TuneOptions(max_workers=6))
    assert found.recommended.action == "no-change"
    assert found.recommended.reason == f"the setting that the model prefers failed when it was run: {words}"
    assert found.recommended.settings["num_workers"] == 1


class TooShort(Replayed):
    """Workers take so long to start that a measurement with the present setting sees one batch."""

    def measure(self, command: protocol.Measure) -> LoaderRun:
        run = super().measure(command)
        if "num_workers" not in command.changes or command.purpose == "verify":
            run.main = MainBatches(call_s=[0.0], wait_s=[1.0], samples=[16], epoch=[0])
            run.workers = None
        return run


def test_a_pick_is_not_recommended_on_measurements_that_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "Supervisor", TooShort)
    _, found = room.tune(Request(target="lines.py:make_loader", step_s=STEP_S), room.TuneOptions(max_workers=6))
    assert found.current.settings["num_workers"] == 1  # the present one, not one of those measured well
    assert found.recommended.action == "no-change"
    assert "too few batches to be compared; raise --budget" in found.recommended.reason
