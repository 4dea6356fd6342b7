"""The labelled pipelines are what they say: a valid truth, a loader that delivers, a line in the index."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from ioprobe.diagnosis.types import Verdict
from ioprobe.probe.target import load_function
from ioprobe.run import Limit

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "fixtures" / "pipelines"


def _verdicts() -> Any:
    spec = importlib.util.spec_from_file_location("verdicts_benchmark", ROOT / "benchmarks" / "verdicts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


verdicts = _verdicts()
PIPELINES: list[Path] = verdicts.find([FOLDER])
TRUTHS: dict[str, dict[str, Any]] = {path.stem: verdicts.truth_of(path) for path in PIPELINES}
EVERY = pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)


def test_there_are_at_least_sixty_and_every_limit_and_verdict_is_among_them() -> None:
    assert len(PIPELINES) >= 60
    assert {truth["limiting_stage"] for truth in TRUTHS.values()} == {None, *(limit.value for limit in Limit)}
    assert {truth["verdict"] for truth in TRUTHS.values()} == {v.value for v in Verdict if v is not Verdict.UNDECIDED}


@EVERY
def test_a_truth_uses_the_words_of_the_verdicts(path: Path) -> None:
    truth = TRUTHS[path.stem]
    assert set(truth) <= {"verdict", "limiting_stage", "also_ok", "cold_verdict", "cause", "fix"}
    assert truth["cause"]
    assert truth["fix"]
    stage, others = truth["limiting_stage"], truth.get("also_ok", [])
    assert {stage, *others} <= {None, *(limit.value for limit in Limit)}
    assert stage not in others
    fixed = {"compute-bound": {"step"}, "communication-bound": {"communication"}, "balanced": {None}}
    input_side = {limit.value for limit in Limit} - {"step", "communication"}
    allowed = fixed.get(truth["verdict"], input_side | ({None} if truth["verdict"] == "misconfigured" else set()))
    assert stage in allowed


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's StatefulDataLoader calls it
@pytest.mark.filterwarnings(
    "ignore:unclosed file"
)  # webdataset and HDF5, in the middle of a file when they are dropped
@EVERY
def test_a_pipeline_delivers_a_batch_and_has_a_step(path: Path) -> None:
    loader = load_function(f"{path}:make_loader")(num_workers=0, batch_size=2)
    iterator = iter(loader)
    try:
        assert next(iterator) is not None
    finally:
        del iterator
        getattr(loader, "close", lambda: None)()
    assert callable(load_function(f"{path}:make_step"))


def test_the_index_names_every_pipeline_with_its_truth() -> None:
    assert (FOLDER / "README.md").read_text().endswith(verdicts.index(PIPELINES))


def test_a_misconfigured_pipeline_may_be_called_data_bound_where_the_advice_names_a_cause() -> None:
    truth = {"verdict": "misconfigured", "limiting_stage": "ipc", "also_ok": ["collate"]}
    row = {"verdict": "data-bound", "limit": "collate", "codes": ["IO101"]}
    assert verdicts.judge(row, truth) == (True, True)
    assert verdicts.judge({**row, "codes": []}, truth) == (False, True)
    assert verdicts.judge({**row, "verdict": "misconfigured", "limit": "decode"}, truth) == (True, False)
    assert verdicts.judge({"error": "no output"}, {**truth, "limiting_stage": None}) == (False, False)


def test_the_summary_counts_what_the_rows_say() -> None:
    def row(name: str, verdict: str, measured: float, predicted: float, seconds: float, **more: Any) -> dict[str, Any]:
        truth = {"verdict": "data-bound", "limiting_stage": "decode"}
        return {
            "name": name, "truth": truth, "verdict": verdict, "limit": "decode", "codes": [], "evidence": "because",
            "measured": measured, "predicted": predicted, "wall_s": seconds, **more,
        }  # fmt: skip

    rows = [
        row("a", "data-bound", 0.50, 0.51, 20),
        row("b", "undecided", 0.50, 0.53, 30),
        row("c", "data-bound", 0.50, 0.50, 70, limit="ipc"),
        {"name": "d", "truth": {"verdict": "balanced", "limiting_stage": None}, "error": "broken", "wall_s": 2},
    ]
    text = verdicts.summary(rows)
    assert "verdict right 2 of 4 (1 undecided, 1 without an answer), limiting stage right 2 of 4" in text
    assert "| balanced | 0 | 1 | 0 |" in text
    assert "| data-bound | 2 | 0 | 1 |" in text
    assert "median 1.0, 95th percentile 2.8 points (3 pipelines)" in text
    assert "median 25 s, longest 70 s (c); over 60 s: 1" in text
    assert "* b: because" in text


def test_finished_pipelines_are_not_run_again(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    state.write_text('{"name": "a", "path": "/x/a.py", "wall_s": 1}\n{"name": "b", "pa')
    assert [row["name"] for row in verdicts.finished(state)] == ["a"]
    assert verdicts.finished(tmp_path / "none") == []
