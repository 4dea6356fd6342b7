"""CPU of a worker's other threads: its queue's, a pool's that it waits for, and those that compute beside it."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from ioprobe.model.bounds import bounds
from ioprobe.model.calibrate import calibrate
from ioprobe.model.handling import other_threads, waits_for_own_threads
from ioprobe.model.predict import loader_rate, predict
from ioprobe.model.profile import Setting
from ioprobe.model.rows import Rows, rows_of
from ioprobe.model.simulate import System
from ioprobe.run import LoaderRun, StackShares, Stage
from tests.model_truth import SAMPLES, emulated_step, loader_run, run_of


def measured(cpu_s: float, blocked_s: float, other_s: float, sending: int = 0, computing: int = 0) -> LoaderRun:
    """One worker, 200 looks at it; its threads were found sending and computing so many times."""
    rows = tuple((cpu_s, blocked_s, 0.0) for _ in range(31))
    run = loader_run(System(1, (rows,), cores=2.0, receive_cpu_s=0.0002), 80)
    assert run.workers is not None
    run.workers.other_cpu_s = [other_s] * len(run.workers.worker)
    threads = {Stage.TRANSPORT: sending, Stage.TRANSFORM: computing, Stage.WAIT: 200}
    stacks = [
        StackShares(role="worker", samples=200, stages={Stage.TRANSFORM: 200}),
        StackShares(role="worker-thread", samples=sum(threads.values()), stages=threads),
    ]
    return structs.replace(run, stacks=stacks)


def rows(run: LoaderRun) -> Rows:
    found = rows_of(run)
    assert found is not None
    return found


def test_large_objects_keep_the_queue_s_own_thread_busy() -> None:
    # A batch takes 20 ms of the worker's life, in half of which its queue's thread was found sending.
    run = measured(0.020, 0.0, 0.011, sending=100)
    assert other_threads(rows(run), run) == (pytest.approx(0.011), 0.0)
    pool = measured(0.020, 0.0, 0.011, computing=100)
    assert other_threads(rows(pool), pool) == (0.0, pytest.approx(0.011))


def test_waiting_for_a_pool_of_one_s_own_is_the_pool_s_computing_and_no_further_time() -> None:
    run = measured(0.002, 0.048, 0.047, computing=190)
    found, beside = waits_for_own_threads(rows(run), 0.047)
    assert beside == pytest.approx(0.0, abs=1e-4)
    assert found.cpu_s + found.blocked_s == pytest.approx(np.full(found.size, 0.050), abs=1e-4)
    assert found.fetch_cpu_s == pytest.approx(np.full(found.size, 0.049), abs=1e-4)
    profile = calibrate(run_of(run, step=emulated_step(0.014)))
    assert loader_rate(profile, Setting(1, step_s=0.0)) == pytest.approx(SAMPLES / 0.050, rel=0.02)
    assert predict(profile, profile.current).stall_share.value == pytest.approx(1 - 14 / 50, abs=0.02)


def test_threads_beside_a_worker_take_cores_but_not_its_time() -> None:
    # 10 ms on the worker's main thread, 8 ms on another beside it: one worker delivers every 10 ms, two share 2 cores.
    profile = calibrate(run_of(measured(0.010, 0.0, 0.008, computing=100)))
    assert loader_rate(profile, Setting(1, step_s=0.0)) == pytest.approx(SAMPLES / 0.010, rel=0.03)
    ceiling = SAMPLES * 2 / (0.018 + 0.0002)
    assert bounds(profile, Setting(2, step_s=0.0)).limits["cores"] == pytest.approx(ceiling, rel=0.03)
    assert loader_rate(profile, Setting(2, step_s=0.0)) <= 1.001 * ceiling


def test_a_pool_s_computing_is_compared_alike_in_company_and_alone() -> None:
    # Two workers that each wait for a pool of their own take as long beside each other as alone: nobody is slowed.
    def waiting(workers: int, purpose: str) -> LoaderRun:
        rows = tuple((0.020, 0.030, 0.0) for _ in range(31))
        run = loader_run(System(workers, (rows,), cores=2.0, receive_cpu_s=0.0002), 80, purpose=purpose)
        assert run.workers is not None
        run.workers.other_cpu_s = [0.029] * len(run.workers.worker)
        return run

    profile = calibrate(run_of(waiting(2, "baseline"), waiting(1, "calibrate")))
    assert profile.contention == pytest.approx(0.0, abs=0.05)
    assert loader_rate(profile, Setting(2, step_s=0.0)) == pytest.approx(SAMPLES * 2 / 0.050, rel=0.05)
