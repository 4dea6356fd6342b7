"""What measured loops say of a setting, and which setting is taken for it."""

import pytest

from ioprobe.analysis.choice import decide
from ioprobe.diagnosis.tuning import measured_at
from ioprobe.model.profile import Prediction, Setting
from ioprobe.model.search import SearchResult
from ioprobe.run import LoaderRun, LoaderSettings, MainBatches
from ioprobe.stats import Estimate


def loop(ready: list[int], cycle_s: float) -> LoaderRun:
    n = len(ready)
    return LoaderRun(
        coupled=True,
        settings=LoaderSettings(batch_size=4, num_workers=2, prefetch_factor=32),
        main=MainBatches(
            call_s=[k * cycle_s for k in range(n)],
            wait_s=[0.001] * n,
            samples=[4] * n,
            epoch=[0] * n,
            ready=ready,
        ),
        warmup_batches=8,
        stopped_because="seconds",
        wall_s=n * cycle_s,
    )


def test_a_loop_that_lived_on_its_queue_to_its_end_tells_of_no_rate():
    settled = loop([0, 1] * 60, 0.1)
    living = loop([64 - k // 2 for k in range(120)], 0.02)  # a first step of seconds filled the queue
    knobs = (2, 32, False, True)
    (rate,) = measured_at([living, settled], knobs, coupled=True)
    assert abs(rate.value - 40.0) < 1e-6
    assert measured_at([living], knobs, coupled=True) == []


def test_the_first_loop_counts_until_its_setting_ran_again():
    cold, warm = loop([0, 1] * 60, 0.1), loop([0, 1] * 60, 0.02)
    knobs = (2, 32, False, True)
    assert [round(rate.value) for rate in measured_at([cold], knobs, coupled=True)] == [40]
    assert [round(rate.value) for rate in measured_at([cold, warm, warm], knobs, coupled=True)] == [200, 200]


def known(rate: float) -> Estimate:
    return Estimate(rate, 0.99 * rate, 1.01 * rate, 50)


def predicted(workers: int, rate: float) -> Prediction:
    return Prediction(
        setting=Setting(num_workers=workers, prefetch_factor=2),
        samples_per_s=known(rate),
        stall_share=known(0.1),
        loader_samples_per_s=known(rate),
        epoch_samples_per_s=None,
        epoch_stall_share=None,
        wait_p50_s=0.0,
        wait_p95_s=0.0,
        wait_p99_s=0.0,
        time_to_first_batch_s=0.1,
        binding="step",
        drains_after_steps=None,
        memory_bytes=None,
        shm_bytes=None,
    )


@pytest.mark.parametrize(("first_loop", "workers", "action"), [(100.0, 4, "no-change"), (395.0, 1, "fewer-workers")])
def test_workers_that_only_a_cold_first_pass_needs_are_kept(first_loop: float, workers: int, action: str):
    here, fewer = predicted(4, 400.0), predicted(1, 400.0)
    found = SearchResult(fewer.setting, fewer, here, 0.0, "fewer-workers", "as fast", (fewer, here))
    pick, said, reason = decide(found, found, [(fewer, [known(400.0)])], [known(400.0)], 0.01, known(first_loop))
    assert (pick.setting.num_workers, said) == (workers, action)
    assert ("once caches are full" in reason) == (action == "no-change")
