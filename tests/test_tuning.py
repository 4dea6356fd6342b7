"""What measured loops say of a setting."""

from ioprobe.diagnosis.tuning import measured_at
from ioprobe.run import LoaderRun, LoaderSettings, MainBatches


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
