"""What a measured run tells the rules: each story by construction."""

from __future__ import annotations

import pytest
from run_makers import in_order_run, loader_run, run_of, worker_rows

from ioprobe.config import Config, HostConfig, PipelineConfig
from ioprobe.diagnosis.rules import gather, judge_pipeline
from ioprobe.diagnosis.rules.from_run import head_of_line_seconds, run_facts
from ioprobe.run import DatasetFacts, Failure, Host, LoaderFacts, LoaderSettings, Run, SampleRepeats


def codes(run: Run, **config: object) -> set[str]:
    facts = gather("train", config=PipelineConfig(**config), run=run)  # type: ignore[arg-type]
    return {o.name for o in judge_pipeline(facts, Config()).outcomes if o.status == "failed"}


def test_blocked_workers_may_outnumber_cores_and_busy_ones_may_not() -> None:
    def run(cpu: float) -> Run:
        rows = worker_rows([0.4] * 48, cpu=cpu, workers=12)
        return run_of(loader_run([0.001] * 48, [0.04] * 48, workers=rows, num_workers=12), cores=2.0)

    assert "IO101" not in codes(run(cpu=0.05))
    assert "IO101" in codes(run(cpu=0.95))


def test_one_slow_batch_in_order_costs_the_time_for_which_the_other_worker_stands_still() -> None:
    # Worker 0 takes 1 s for its first batch; worker 1 has made its two by 0.2 s and then waits, half of the workers.
    run = in_order_run([1.0] + [0.1] * 9, 0.1)
    assert head_of_line_seconds(run.main, run.workers, 0) == pytest.approx(0.8 / 2, abs=0.01)  # type: ignore[arg-type]


def test_a_loop_that_failed_lacks_its_last_transport_and_is_still_read() -> None:
    run = in_order_run([1.0] + [0.1] * 9, 0.1)
    run.main.transport_s = [0.01] * 7
    assert head_of_line_seconds(run.main, run.workers, 0) == pytest.approx(0.8 / 2, abs=0.01)  # type: ignore[arg-type]


def test_batches_that_lie_ready_cost_nothing_while_every_worker_is_busy() -> None:
    # Worker 1 is always 10 ms before worker 0: its batch lies ready, and no order of delivery would give more.
    run = in_order_run([0.043] + [0.033] * 99, 0.005)
    assert min(run.main.wait_s[2::2]) > 0.009
    assert run_facts(run_of(run))["head_of_line_share"] == 0
    assert "IO106" not in codes(run_of(run))


def test_pauses_longer_than_the_queue_ask_for_a_deeper_one() -> None:
    fetch = [0.005] * 60
    for i in range(7, 60, 8):
        fetch[i] = 0.2
    rows = worker_rows(fetch, cpu=0.1, workers=1)
    waits = [0.1 if i % 8 == 7 else 0.0 for i in range(60)]
    run = run_of(loader_run(waits, [0.038] * 60, workers=rows, num_workers=1))
    assert run_facts(run)["burst_batches"] == pytest.approx(0.2 / 0.038)
    assert "IO104" in codes(run)


def test_supply_that_is_too_slow_on_average_is_no_matter_of_the_queue() -> None:
    fetch = [0.1] * 60
    fetch[10] = fetch[30] = fetch[50] = 1.0
    run = run_of(loader_run([0.1] * 60, [0.01] * 60, workers=worker_rows(fetch)))
    assert "IO104" not in codes(run)


def test_repeated_batches_say_that_the_stream_is_not_split() -> None:
    measured = loader_run([0.01] * 32, num_workers=4)
    measured.repeats = SampleRepeats(batches=32, distinct=8, workers_delivering=4)
    assert "IO303" in codes(run_of(measured))
    measured.repeats = SampleRepeats(batches=32, distinct=32, workers_delivering=4)
    assert "IO303" not in codes(run_of(measured))


def test_workers_that_deliver_nothing_lack_shards() -> None:
    measured = loader_run([0.01] * 32, num_workers=4)
    measured.repeats = SampleRepeats(batches=32, distinct=32, workers_delivering=1)
    assert "IO301" in codes(run_of(measured))


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        ("shared-memory", "RuntimeError: unable to mmap", "IO202"),
        ("exception", "DataLoader worker is killed by signal: Bus error.", "IO202"),
        ("descriptors", "RuntimeError: received 0 items of ancdata", "IO207"),
    ],
)
def test_a_failed_run_is_evidence(kind: str, message: str, code: str) -> None:
    run = run_of(loader_run([0.01] * 4))
    run.loaders[0].failure = Failure(phase="loop", kind=kind, message=message)
    assert codes(run) == {code}


def test_busy_helper_threads_that_wait_for_cores_fight_for_them() -> None:
    rows = worker_rows([0.1] * 32, cpu=0.1, runq=0.4, workers=4)
    rows.other_cpu_s = [0.05] * 32
    run = run_of(loader_run([0.001] * 32, [0.05] * 32, workers=rows, num_workers=4), cores=2.0)
    assert "IO107" in codes(run, blocks_on_io=True)
    rows.other_cpu_s = [0.0005] * 32  # the thread that feeds the queue
    assert "IO107" not in codes(run, blocks_on_io=True)


def test_batches_that_are_late_for_want_of_a_core_are_no_long_tail() -> None:
    for slow_s, said in ((0.24, False), (2.0, True)):
        fetch = [0.1 if k % 8 else slow_s for k in range(80)]
        run = run_of(in_order_run(fetch, 0.02, workers=4, prefetch=1, runq=0.6), cores=2.0)
        assert run_facts(run)["head_of_line_share"] > 0.1
        assert ("IO106" in codes(run)) is said


def test_a_slow_sampler_is_seen_against_the_step() -> None:
    measured = loader_run([0.03] * 32, [0.05] * 32)
    measured.main.sampler_s = [0.02] * 32
    assert "IO108" in codes(run_of(measured))


def test_the_config_goes_before_the_loader_and_each_fact_knows_its_source() -> None:
    loader = LoaderFacts(kind="map", settings=LoaderSettings(num_workers=8, prefetch_factor=2), num_batches=10)
    facts = gather("t", config=PipelineConfig(num_workers=2), loader=loader, host=Host(usable_cores=4))
    assert (facts.num_workers, facts.prefetch_factor, facts.epoch_batches, facts.cores) == (2, 2, 10, 4)
    assert facts.sources["num_workers"] == "config"
    assert facts.sources["prefetch_factor"] == "loader"
    assert facts.sources["cores"] == "host"


def test_torchs_defaults_hold_only_where_no_factory_decides() -> None:
    assert gather("t", config=PipelineConfig(num_workers=2)).pin_memory is False
    assert gather("t", config=PipelineConfig(num_workers=2, target="train.py:make")).pin_memory is None
    data = PipelineConfig(target="s3://b/x.tar")
    assert gather("t", config=data).num_workers == 0
    assert gather("t", config=data).is_default("num_workers")
    assert gather("t", config=data, written=False).num_workers is None
    assert gather("t", config=PipelineConfig()).num_workers is None
    assert gather("t", config=PipelineConfig(num_workers=2)).prefetch_factor == 2
    assert gather("t", config=PipelineConfig(batch_size=2)).prefetch_factor is None


def test_cores_are_shared_by_the_ranks_of_one_host() -> None:
    host = HostConfig(cores=64, accelerators=8)
    facts = gather("t", config=PipelineConfig(ranks=16, num_workers=4), host=host)
    assert (facts.local_ranks, facts.cores_per_rank, facts.consumers) == (8, 8, 64)


def test_headers_give_sizes_and_files_are_no_shards() -> None:
    tar = DatasetFacts(url="x", format="webdataset", num_shards=8, num_samples=100, total_bytes=1000, shard_bytes=[125])
    facts = gather("t", dataset=tar)
    assert (facts.format, facts.kind, facts.num_shards, facts.sample_bytes) == ("tar", "iterable", 8, 10)
    folder = DatasetFacts(url="x", format="imagefolder", num_shards=100, num_samples=100, total_bytes=1000)
    facts = gather("t", dataset=folder)
    assert (facts.format, facts.num_shards, facts.num_samples) == ("files", None, 100)
