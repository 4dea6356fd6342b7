"""An answer of ``ioprobe tune`` made from a few numbers."""

from __future__ import annotations

from typing import Any

from ioprobe.diagnosis.forecast import ForecastPoint
from ioprobe.diagnosis.tuning import Help, Recommended, Tuning
from ioprobe.stats import Estimate


def at(workers: int, rate: float, **more: Any) -> ForecastPoint:
    return ForecastPoint(
        settings={"num_workers": workers, "prefetch_factor": 2, "step_ms": 5.0},
        samples_per_s=Estimate(rate, 0.95 * rate, 1.05 * rate, 100),
        stall_share=Estimate(0.5, 0.45, 0.55, 100),
        loader_samples_per_s=Estimate(rate, 0.95 * rate, 1.05 * rate, 100),
        wait_p95_s=0.01,
        time_to_first_batch_s=0.2,
        binding="workers",
        **more,
    )


def tuning(**more: Any) -> Tuning:
    settings = {"num_workers": 4, "prefetch_factor": 2, "persistent_workers": True}
    return Tuning(
        target="train.py:make_loader",
        current=at(1, 100.0, measured=Estimate(98.0, 97.0, 99.0, 40)),
        recommended=Recommended(
            settings=settings,
            action="change",
            reason="workers bind at num_workers=1",
            predicted=at(4, 400.0),
            samples_per_s=Estimate(390.0, 380.0, 400.0, 40),
            verified=Estimate(2.98, 2.9, 3.06, 3),
        ),
        candidates=[at(4, 400.0), at(1, 100.0)],
        also=[Help(code="storage", text="storage twice as fast", gain=0.8)],
        spent_s=12.0,
        measured_settings=3,
        **more,
    )
