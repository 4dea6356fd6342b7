"""Waiting at the beginning of epochs although workers live on."""

from __future__ import annotations

from made_runs import main_batches, make_run, worker_batches

from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.diagnosis.evidence import gather
from ioprobe.diagnosis.types import Verdict
from ioprobe.run import LoaderRun, LoaderSettings, Run


def _short_epochs(edge_s: float) -> Run:
    rows = worker_batches(200, workers=2, fetch_s=0.01, cpu_s=0.001, idle_s=0.03, slow_every=20, slow_x=30.0)
    epochs = {"epoch_batches": 20, "edge_s": edge_s}
    return make_run(loop_wait_s=0.002, step_s=0.02, loader_cycle_s=0.006, worker=rows, loop=epochs, alone=epochs)


def test_an_empty_queue_at_each_epoch_is_named_with_what_helps() -> None:
    done = diagnose(_short_epochs(0.4))
    assert done.diagnosis.verdict is Verdict.DATA_BOUND
    assert "the queue is empty when an epoch begins: its first batch takes" in done.diagnosis.evidence
    codes = [a.code for a in done.advice]
    assert "IO610" in codes
    assert not {"IO104", "IO106"} & set(codes)  # a slow batch in twenty is not what the loop waits for


def test_waiting_within_epochs_is_no_matter_of_their_edges() -> None:
    assert "IO610" not in [a.code for a in diagnose(_short_epochs(0.01)).advice]


def test_a_rate_with_edges_in_it_is_not_compared_with_one_without() -> None:
    run = _short_epochs(0.4)
    run.loaders.append(
        LoaderRun(
            coupled=False,
            purpose="calibrate",
            settings=LoaderSettings(num_workers=1, prefetch_factor=2, batch_size=16),
            main=main_batches(100, wait_s=0.012, step_s=None),
            warmup_batches=4,
        )
    )
    assert gather(run).scaling is None
    run.loaders[-1].main = main_batches(100, wait_s=0.012, step_s=None, epoch_batches=20, edge_s=0.4)
    assert gather(run).scaling is not None
