"""What is advised where workers have unequal parts of a stream."""

from __future__ import annotations

from made_runs import make_run, stacks, worker_batches

from ioprobe.diagnosis.diagnose import diagnose
from ioprobe.run import WorkerBatches

FACTS = {"kind": "iterable", "num_shards": 4}


def uneven(rows: WorkerBatches) -> WorkerBatches:
    """Give worker 0 all batches of the others but the first few."""
    rows.worker = [w if k < 12 else 0 for k, w in enumerate(rows.worker)]
    return rows


def advice_codes(rows: WorkerBatches) -> list[str]:
    run = make_run(
        loop_wait_s=0.03,
        step_s=0.03,
        loader_cycle_s=0.06,
        workers=4,
        worker=rows,
        stages=[stacks(read=50)],
        facts=FACTS,
    )
    return [a.code for a in diagnose(run).advice]


def test_unequal_shards_are_no_reason_for_fewer_workers_or_more_requests_in_flight() -> None:
    rows = uneven(worker_batches(200, workers=4, fetch_s=0.06, cpu_s=0.001))
    assert advice_codes(rows) == ["IO301"]


def test_fewer_workers_are_advised_where_some_have_no_data_at_all() -> None:
    rows = worker_batches(200, workers=4, delivering=1, fetch_s=0.06, cpu_s=0.001)
    assert advice_codes(rows) == ["IO301", "IO602"]
