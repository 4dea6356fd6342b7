"""``ioprobe predict``: what-if from a saved run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import main_batches, make_run, stacks
from msgspec import structs

from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.diagnosis.forecast import forecast
from ioprobe.model.simulate import System
from ioprobe.report.forecast import render_text
from ioprobe.run import dumps
from ioprobe_cli.main import run as ioprobe
from tests.model_truth import emulated_step, loader_run, noisy, run_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = tuple((0.002, float(b), 0.0) for b in noisy(0.030, 0.2, 61))
    truth = System(2, (rows,), feed_cpu_s=0.0003, receive_cpu_s=0.0004, dispatch_cpu_s=0.0001)
    run = run_of(loader_run(truth, 160), step=emulated_step(0.008))
    path = tmp_path_factory.mktemp("run") / "run.json"
    path.write_bytes(dumps(run))
    return path


def predicted(saved: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert ioprobe(["predict", str(saved), *words, "--format", "json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("inline", "thread", "release_s"),
    [(0, 0, 0.0), (0, 0, 0.004), (30, 0, 0.0), (0, 98, 0.0), (20, 98, 0.002)],
    ids=["plain", "release", "inline", "threads", "all"],
)
def test_the_current_setting_waits_as_the_analysis_said_where_a_loader_can_only_be_replayed(
    inline: int, thread: int, release_s: float
) -> None:
    run = make_run(
        loop_wait_s=0.010,
        step_s=0.020,
        loader_cycle_s=0.028,
        workers=0,
        stages=[stacks("main", wait=57 - inline, decode=inline, step=43), stacks("thread", transform=thread, wait=2)],
        facts={"kind": "opaque", "adaptable": False, "settings": None},
        loop={"release_s": release_s},
        alone={"release_s": release_s},
    )
    run.loaders[0].main = main_batches(200, wait_s=0.005, step_s=0.023)
    for measured in run.loaders:
        measured.settings = None
    said = diagnose(run).diagnosis.stall_share.predicted
    found = forecast(run, ["step_ms=20"])
    assert found.current.stall_share == said
    assert found.points[0].stall_share == said
    assert found.current.settings["step_ms"] == 20.0
    assert said is not None
    busy_s = 0.020 + release_s + (0.003 if thread else 0.0)
    period_s = max(0.028 + release_s, busy_s + inline / 100 * (0.028 + release_s))
    assert said.value == pytest.approx(1 - busy_s / period_s, abs=0.005)


@pytest.mark.parametrize("adaptable", [True, False], ids=["adaptable", "replayed"])
@pytest.mark.parametrize("epoch_batches", [12, 1000], ids=["short-epochs", "long-epoch"])
def test_the_current_setting_waits_as_the_analysis_said_over_whole_epochs_where_the_loop_saw_them(
    adaptable: bool, epoch_batches: int
) -> None:
    rows = tuple((0.001, 0.009, 0.0) for _ in range(31))
    truth = System(2, (rows,), batches_per_epoch=epoch_batches, start_s=0.010, init_s=0.400, receive_cpu_s=0.0002)
    loaders = [loader_run(replace(truth, step_s=(0.020,)), 60), loader_run(truth, 60)]
    if not adaptable:
        loaders = [structs.replace(one, settings=None, workers=None) for one in loaders]
    kind = "map" if adaptable else "opaque"
    run = run_of(*loaders, kind=kind, step=emulated_step(0.020), num_batches=epoch_batches)
    said = diagnose(run).diagnosis
    found = forecast(run, ["step_ms=20"])
    assert said.stall_share.measured is not None
    assert said.loop_samples_per_s is not None
    for point in (found.current, found.points[0]):
        assert point.stall_share == said.stall_share.predicted
        assert point.stall_share.value == pytest.approx(said.stall_share.measured.value, abs=0.02)
        assert point.samples_per_s.value == pytest.approx(said.loop_samples_per_s.value, rel=0.03)
    # An epoch of 12 steps of 20 ms begins with 0.42 s of waiting; between the edges the loader keeps up.
    short = epoch_batches == 12
    assert (found.current.stall_share.value > 0.5) is short
    assert found.counted == ("whole epochs" if short else "steady state")
    assert ("of whole epochs" in render_text(found)) is short


def test_each_combination_is_a_point_in_the_order_asked(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = predicted(saved, capsys, "--set", "num_workers=4,8", "step_ms=10,20", "--set", "prefetch_factor=4")
    settings = [point["settings"] for point in found["points"]]  # type: ignore[index,union-attr,attr-defined]
    assert [(s["num_workers"], s["step_ms"], s["prefetch_factor"]) for s in settings] == [
        (4, 10.0, 4),
        (4, 20.0, 4),
        (8, 10.0, 4),
        (8, 20.0, 4),
    ]
    assert found["kind"] == "predict"
    assert found["schema"] == 1


def test_more_workers_are_predicted_faster_with_an_interval(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = predicted(saved, capsys, "--set", "num_workers=4 step_ms=0")
    rate = found["points"][0]["samples_per_s"]  # type: ignore[index]
    assert rate["value"] == pytest.approx(4 * 16 / 0.032, rel=0.05)
    assert rate["low"] < rate["value"] < rate["high"]
    assert found["points"][0]["binding"] == "workers"  # type: ignore[index]


def test_the_folder_of_a_run_is_as_good_as_its_file(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ioprobe(["predict", str(saved.parent)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PREDICTED  from 156 measured batches of truth\n")
    assert "Over num_workers" in out


def test_a_forecast_far_from_the_measurement_carries_a_caveat(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = predicted(saved, capsys, "--set", "num_workers=16 cores=64")
    codes = [c["code"] for c in found["caveats"]]  # type: ignore[attr-defined]
    assert codes == ["extrapolates", "extrapolates", "one-setting"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "workers=4"], "cannot predict 'workers': no such key"),
        (["--set", "num_workers"], "cannot read 'num_workers'; expected KEY=VALUE"),
        (["--set", "num_workers=-1"], "num_workers is '-1'; expected a whole number from 0 to 4096"),
        (["--set", "step_ms=soon"], "step_ms is 'soon'; expected a number"),
        (["--set", "decode_x=0"], "decode_x is '0'; expected a positive number"),
        (["--set", "in_order=perhaps"], "in_order is 'perhaps'; expected true or false"),
        (["--set", "cores=4", "--set", "cores=8"], "'cores' is given twice"),
        (["--set", "num_workers=" + ",".join(map(str, range(300)))], "more than 200 combinations are asked for"),
        (["--set", "storage_x=2 storage_mb_s=100"], "storage_mb_s and storage_x exclude each other"),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(
    saved: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert ioprobe(["predict", str(saved), *words]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.splitlines()[0] == f"Error: {message}"
    assert len(seen.err.splitlines()) == 2


def test_a_missing_run_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ioprobe(["predict", str(tmp_path / "none.json")]) == 2
    assert "cannot read run file" in capsys.readouterr().err


def test_a_halved_decode_time_speeds_up_a_decoding_loader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple((float(c), 0.0, 0.0) for c in noisy(0.020, 0.2, 61))
    path = tmp_path / "run.json"
    path.write_bytes(dumps(run_of(loader_run(System(2, (rows,), cores=2.0), 160))))
    found = predicted(path, capsys, "--set", "decode_x=0.5")
    now, half = found["current"], found["points"][0]  # type: ignore[index]
    assert half["samples_per_s"]["value"] == pytest.approx(2 * now["samples_per_s"]["value"], rel=0.05)  # type: ignore[index]
    assert half["settings"]["decode_x"] == 0.5


def test_another_batch_size_carries_the_quality_warning(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warned = predicted(saved, capsys, "--set", "batch_size=32")["caveats"]
    (text,) = [c["text"] for c in warned if c["code"] == "global-batch"]  # type: ignore[attr-defined]
    assert text.startswith("batches of 2 times the measured size: a changed global batch changes training")
    same = predicted(saved, capsys, "--set", "batch_size=16 num_workers=3")["caveats"]
    assert "global-batch" not in [c["code"] for c in same]  # type: ignore[attr-defined]
