"""Work that takes turns with the step, steps that change, and picks that a real run refuted."""

from __future__ import annotations

import pytest
from made_runs import main_batches, make_run, stacks, worker_batches

from ioprobe.analysis import report_from_run
from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.diagnosis.types import Verdict
from ioprobe.run import Caveat, Limit, LoaderRun, LoaderSettings, Run


def _sampler(step_s: float, wait_s: float) -> Run:
    """The sampler takes 36 of a loader's 40 ms in the main process, in which the step runs as well."""
    rows = worker_batches(200, workers=2, fetch_s=0.002, cpu_s=0.002, idle_s=0.08)
    return make_run(loop_wait_s=wait_s, step_s=step_s, loader_cycle_s=0.04, worker=rows, alone={"sampler_s": 0.036})


@pytest.mark.parametrize(
    ("step_s", "wait_s", "verdict", "limit"),
    [
        (0.065, 0.04, Verdict.DATA_BOUND, Limit.SAMPLER),  # 38% for a loader 1.6 times as fast
        (0.065, 0.013, Verdict.BALANCED, Limit.SAMPLER),  # 17%
        (0.090, 0.1, Verdict.UNDECIDED, None),  # 53% of the time is more than taking turns explains
    ],
)
def test_what_takes_turns_with_the_step_explains_waiting_for_a_faster_loader(
    step_s: float, wait_s: float, verdict: Verdict, limit: Limit | None
) -> None:
    found = diagnose(_sampler(step_s, wait_s)).diagnosis
    assert (found.verdict, found.limiting_stage) == (verdict, limit)


@pytest.mark.parametrize(("loader_s", "verdict"), [(0.004, Verdict.COMPUTE_BOUND), (0.022, Verdict.UNDECIDED)])
def test_a_step_that_changes_is_no_contradiction_where_the_loader_outruns_it_either_way(
    loader_s: float, verdict: Verdict
) -> None:
    rows = worker_batches(200, workers=2, fetch_s=0.002, cpu_s=0.002, idle_s=0.08)
    run = make_run(loop_wait_s=0.001, step_s=0.02, loader_cycle_s=loader_s, worker=rows)
    assert run.step is not None
    run.step.durations_s = [0.04] * 50
    found = diagnose(run).diagnosis
    assert found.verdict is verdict
    assert "the step alone took 40.0 ms, within the loop 20.0 ms" in found.evidence


def _waiting() -> Run:
    """Two workers wait 100 ms a batch: the model promises a multiple from more of them."""
    rows = worker_batches(200, workers=2, fetch_s=0.1, cpu_s=0.002, read_bytes=16 * 4096)
    return make_run(loop_wait_s=0.03, step_s=0.02, loader_cycle_s=0.05, worker=rows, stages=[stacks(read=100)])


def _verified(num_workers: int, prefetch_factor: int, wait_s: float) -> LoaderRun:
    return LoaderRun(
        coupled=True,
        purpose="verify",
        settings=LoaderSettings(
            num_workers=num_workers, prefetch_factor=prefetch_factor, batch_size=16, persistent_workers=True
        ),
        main=main_batches(200, wait_s=wait_s, step_s=0.02),
        warmup_batches=4,
    )


def test_a_refuted_pick_stays_the_pick_and_scales_what_is_predicted_around_it() -> None:
    run = _waiting()
    before = report_from_run(run)
    pick = before.advice[0]
    depth = pick.settings.get("prefetch_factor", 2)
    assert pick.settings["num_workers"] > 3
    run.loaders.append(_verified(pick.settings["num_workers"], depth, wait_s=0.03))
    after = report_from_run(run)
    tried = next(a for a in after.advice if a.settings == pick.settings)
    assert tried.gain == pick.gain  # what was promised, not what is known since
    assert tried.verified is not None
    assert tried.verified.value == pytest.approx(0.0, abs=1e-6)

    def said(report: object) -> float:
        wanted = {"num_workers": pick.settings["num_workers"], "prefetch_factor": 2, "step_ms": 20.0}
        points = [p for p in report.what_if if p.settings == wanted and not p.measured]  # type: ignore[attr-defined]
        return float(points[0].samples_per_s.value)

    assert said(before) > 600
    assert said(after) == pytest.approx(320, rel=0.2)


def test_a_pick_that_held_leaves_the_predictions_alone() -> None:
    run = _waiting()
    before = report_from_run(run)
    workers, depth = before.advice[0].settings["num_workers"], before.advice[0].settings.get("prefetch_factor", 2)
    gain = before.advice[0].gain
    assert gain is not None
    cycle_s = 0.05 / (1 + gain.value)
    run.loaders.append(_verified(workers, depth, wait_s=cycle_s - 0.02))
    assert [p for p in report_from_run(run).what_if if not p.measured] == [p for p in before.what_if if not p.measured]


def _second(workers: int, cycle_s: float) -> LoaderRun:
    return LoaderRun(
        coupled=False,
        purpose="calibrate",
        settings=LoaderSettings(num_workers=workers, prefetch_factor=2, batch_size=16),
        main=main_batches(100, wait_s=cycle_s, step_s=None),
        warmup_batches=4,
    )


@pytest.mark.parametrize(("cycle_s", "advised"), [(0.051, "one at a time"), (0.1, "more requests in flight")])
def test_more_workers_are_advised_only_where_they_were_not_seen_to_fail(cycle_s: float, advised: str) -> None:
    run = _waiting()
    run.loaders.append(_second(1, cycle_s))
    assert advised in next(a for a in diagnose(run).advice if a.code == "IO614").action


def test_a_pause_that_only_the_loader_alone_met_leaves_the_loop_undecided() -> None:
    rows = worker_batches(60, workers=2, fetch_s=0.004, cpu_s=0.004, slow_every=50, slow_x=500.0)
    run = make_run(loop_wait_s=0.001, step_s=0.02, loader_cycle_s=0.002, n=60, worker=rows)
    assert diagnose(run).diagnosis.verdict is not Verdict.UNDECIDED
    for place in (30, 58):
        run.loaders[1].main.wait_s[place] = 2.0
        run.loaders[1].main.call_s[place + 1 :] = [t + 2.0 for t in run.loaders[1].main.call_s[place + 1 :]]
    found = diagnose(run).diagnosis
    assert found.verdict is Verdict.UNDECIDED
    assert "met no such pause" in found.evidence


def test_loaders_that_are_read_in_step_get_no_promises() -> None:
    run = _waiting()
    assert any(a.code == "IO601" for a in diagnose(run).advice)
    run.caveats.append(Caveat("lockstep-loaders", "the loop reads other loaders in step with this one"))
    done = diagnose(run)
    assert not any(a.settings for a in done.advice)
    assert "several loaders in step" in done.diagnosis.reasons[0]
