"""Capacity and cost against hand calculation."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from ioprobe.diagnosis.plan_basis import published_basis, run_basis
from ioprobe.errors import UsageError
from ioprobe.model.plan import (
    Demand,
    Prices,
    Supply,
    Work,
    capacity,
    cost,
    largest_fed,
    metrics,
    missing_resource,
    requests_per_sample,
)
from ioprobe.planning import PlanRequest, parse_counts, plan_from
from ioprobe.run import (
    DatasetFacts,
    Host,
    LoaderRun,
    MainBatches,
    Run,
    StepRun,
    WorkerBatches,
    Workload,
    dumps,
)
from ioprobe_cli.main import cli

# 100 samples/s of 1 MB each, 100 in a file, 4 ms of CPU.
DEMAND = Demand(samples_per_s=100, bytes_per_sample=1e6, samples_per_file=100, batch_size=10, cpu_s_per_sample=0.004)


def test_without_limits_n_accelerators_do_n_times_the_work() -> None:
    point = capacity(DEMAND, Supply(), 12)
    assert (point.samples_per_s, point.binding, point.au, point.hosts) == (1200, "step", 1.0, 2)


@pytest.mark.parametrize(
    ("supply", "rate", "binding"),
    [
        ({"storage_bytes_per_s": 600e6}, 600, "storage-bandwidth"),
        ({"storage_iops": 1000, "request_bytes": 5e5}, 500, "storage-iops"),
        ({"network_bytes_per_s": 250e6}, 500, "network"),  # two hosts
        ({"cores_per_host": 1}, 500, "cpu"),
        ({"storage_bytes_per_s": 1200e6, "cores_per_host": 99}, 1200, "step"),
        ({"storage_bytes_per_s": 700e6, "cores_per_host": 1}, 500, "cpu"),
    ],
)
def test_the_scarcest_resource_binds(supply: dict[str, float], rate: float, binding: str) -> None:
    point = capacity(DEMAND, Supply(**supply), 12)
    assert (point.samples_per_s, point.binding) == (rate, binding)
    assert point.au == rate / 1200


def test_a_file_that_is_smaller_than_a_request_still_takes_one() -> None:
    small = Demand(samples_per_s=1, bytes_per_sample=1000, samples_per_file=1)
    packed = Demand(samples_per_s=1, bytes_per_sample=1000, samples_per_file=1000)
    assert requests_per_sample(small, Supply()) == 1
    assert requests_per_sample(packed, Supply()) == pytest.approx(1000 / 131072)
    assert requests_per_sample(Demand(samples_per_s=1), Supply()) is None


@pytest.mark.parametrize("au", [0.9, 0.5, 1.0])
def test_the_largest_fed_number_is_fed_and_the_next_is_not(au: float) -> None:
    draw = random.Random(3)
    for _ in range(300):
        supply = Supply(
            storage_bytes_per_s=draw.choice([None, draw.uniform(5e7, 2e10)]),
            storage_iops=draw.choice([None, draw.uniform(1e2, 1e5)]),
            cores_per_host=draw.choice([None, draw.uniform(0.1, 5)]),
            network_bytes_per_s=draw.choice([None, draw.uniform(1e7, 2e9)]),
            accelerators_per_host=draw.choice([1, 4, 8]),
        )
        n = largest_fed(DEMAND, supply, au)
        fed = [m for m in range(1, 2000) if capacity(DEMAND, supply, m).au >= au * (1 - 1e-9)]
        if n is None:
            assert fed == list(range(1, 2000))
        elif n < 1900:
            assert n == max(fed, default=0)


def test_little_gives_what_must_be_in_flight_and_how_many_workers() -> None:
    demand = msgspec.structs.replace(DEMAND, worker_s_per_sample=0.025, batch_bytes=6e6)
    supply = Supply(latency_s=0.02, request_bytes=1e6, accelerators_per_host=4)
    found = metrics(demand, supply, Work(samples=360_000, epochs=2, goodput=0.5), capacity(demand, supply, 8))
    assert found == {
        "au": 1.0,
        "opens_per_s": 8,
        "host_network_bytes_per_s": 400e6,
        "requests_in_flight": 800 * 0.02,
        "workers_per_accelerator": 3,  # 100/s x 25 ms = 2.5
        "host_shm_bytes": 4 * 3 * 2 * 6e6,
        "hours": 360_000 * 2 / (800 * 0.5) / 3600,
    }


def test_money_is_accelerators_that_compute_and_accelerators_that_wait() -> None:
    supply, prices = Supply(storage_bytes_per_s=600e6), Prices(accelerator_hour=2, gb_s_hour=1)
    point = capacity(DEMAND, supply, 8)
    found = cost(DEMAND, supply, prices, Work(samples=2_160_000), point)
    assert found == pytest.approx(
        {
            "usd_per_million_samples": 16 * 1e6 / (3600 * 600),
            "usd_per_hour": 16,
            "usd_stalled_per_hour": 4,
            "usd_total": 16,
            # 0.2 GB/s are missing; at 20 USD/h each they would cost what waiting costs.
            "usd_break_even_per_gb_s_hour": 20,
            "usd_saved_per_hour_if_closed": 4 - 0.2,
        }
    )


def test_cores_have_a_break_even_too_and_a_fed_job_has_none() -> None:
    supply = Supply(cores_per_host=1.6)
    point = capacity(DEMAND, supply, 8)
    assert point.binding == "cpu"
    assert missing_resource(DEMAND, supply, point) == ("core", pytest.approx(1.6))
    found = cost(DEMAND, supply, Prices(accelerator_hour=2, core_hour=0.05), Work(), point)
    assert found["usd_break_even_per_core_hour"] == pytest.approx(8 / 1.6)
    assert found["usd_saved_per_hour_if_closed"] == pytest.approx(8 - 0.08)
    fed = cost(DEMAND, Supply(), Prices(accelerator_hour=2), Work(), capacity(DEMAND, Supply(), 8))
    assert set(fed) == {"usd_per_million_samples", "usd_per_hour", "usd_stalled_per_hour"}
    assert fed["usd_stalled_per_hour"] == 0


def test_energy_is_measured_or_at_most_the_design_power() -> None:
    point = capacity(DEMAND, Supply(), 2)
    measured = msgspec.structs.replace(DEMAND, joules_per_sample=3.0, watts=700)
    assert cost(measured, Supply(), Prices(), Work(), point) == {"joules_per_sample": 3.0}
    designed = msgspec.structs.replace(DEMAND, watts=700)
    assert cost(designed, Supply(), Prices(), Work(), point) == {"joules_per_sample_at_design_power": 7.0}


def test_nothing_is_planned_for_no_accelerators() -> None:
    with pytest.raises(ValueError, match="at least one accelerator"):
        capacity(DEMAND, Supply(), 0)


# Batch, seconds per step, bytes per sample, floor of utilisation, and the demand they give, as published.
PUBLISHED = {
    ("unet3d", "a100"): (7, 0.636, 146600628, 0.9, 1613.5e6, 12310.2),
    ("unet3d", "h100"): (7, 0.323, 146600628, 0.9, 3177.1e6, 24239.4),
    ("resnet50", "a100"): (400, 0.435, 114660.07, 0.9, 105.4e6, 804.4),
    ("resnet50", "h100"): (400, 0.224, 114660.07, 0.9, 204.8e6, 1562.1),
    ("cosmoflow", "a100"): (1, 0.00551, 2828486, 0.7, 513.3e6, 3916.4),
    ("cosmoflow", "h100"): (1, 0.0035, 2828486, 0.7, 808.1e6, 6165.6),
}


@pytest.mark.parametrize(("workload", "accelerator"), PUBLISHED)
def test_published_constants_give_the_published_demand(workload: str, accelerator: str) -> None:
    batch, step_s, size, floor, bytes_per_s, iops = PUBLISHED[workload, accelerator]
    plan = plan_from(PlanRequest(workload=workload, accelerator=accelerator, counts="1,8,512"))
    for point in plan.points:
        assert point.samples_per_s == pytest.approx(point.n * batch / step_s)
        assert point.storage_bytes_per_s == pytest.approx(point.n * batch / step_s * size)
        assert point.storage_bytes_per_s == pytest.approx(point.n * bytes_per_s, rel=5e-4)
        assert point.iops == pytest.approx(point.n * iops, rel=1e-4)
        assert (point.binding, point.scaling_efficiency) == ("step", 1.0)
        assert point.hosts == math.ceil(point.n / 8)
    assert published_basis(workload, accelerator).au_threshold == floor


@pytest.mark.parametrize(("workload", "accelerator"), PUBLISHED)
def test_a_store_just_at_the_floor_passes_and_just_below_it_fails(workload: str, accelerator: str) -> None:
    floor, bytes_per_s = PUBLISHED[workload, accelerator][3:5]
    for share, passed in ((1.001, 1.0), (0.999, 0.0)):
        store = f"{8 * bytes_per_s * floor * share / 1e6}MB/s"
        plan = plan_from(PlanRequest(workload=workload, accelerator=accelerator, counts="8", storage=store))
        assert plan.points[0].metrics["fed"] == passed
        assert plan.points[0].metrics["au"] == pytest.approx(floor * share, rel=1e-3)
        assert plan.points[0].binding == "storage-bandwidth"


def test_the_summary_names_the_largest_number_that_is_fed() -> None:
    plan = plan_from(PlanRequest(workload="unet3d", accelerator="h100", counts="8,64,512", storage="100GB/s"))
    # 100 GB/s over 0.9 x 3.1771 GB/s each.
    assert (
        "up to 34 are fed at 90.0% utilisation, beyond it storage-bandwidth binds: too little for 64, 512"
        in plan.summary
    )
    efficiencies = [p.scaling_efficiency for p in plan.points]
    assert efficiencies == pytest.approx([1.0, 100e9 / (64 * 3177103393), 100e9 / (512 * 3177103393)])


def test_every_number_that_the_plan_rests_on_has_its_source() -> None:
    request = PlanRequest(
        workload="resnet50",
        accelerator="h100",
        storage="5GB/s",
        accelerator_price="2.0@price list of November",
        core_price="0.05",
        samples=1e6,
        cores_per_host=64,
    )
    inputs = {item.name: (item.value, item.source) for item in plan_from(request).inputs}
    assert inputs["step"] == (
        "1,786 samples/s",
        "MLPerf Storage v2.0, mlcommons/storage@caa90c9 configs/dlio/workload/resnet50_h100.yaml",
    )
    assert inputs["storage"] == ("5.00 GB/s", "given")
    assert inputs["accelerator"] == ("2 USD/h", "price list of November")
    assert inputs["core price"] == ("0.05 USD/h", "given")
    assert inputs["accelerators per host"] == ("8", "default")
    assert inputs["epochs"] == ("1", "default")
    assert inputs["cores per host"] == ("64", "given")
    assert "storage price" not in inputs
    assert all(source for _, source in inputs.values())


def a_run(**changes: Any) -> Run:
    workers = WorkerBatches(
        worker=[0] * 5, index=[*range(5)], start_s=[0.5 * k for k in range(5)], idle_s=[0.0] * 5,
        fetch_wall_s=[0.4] * 5, fetch_cpu_s=[0.3] * 5, fetch_runq_s=[0.0] * 5, collate_wall_s=[0.1] * 5,
        collate_cpu_s=[0.08] * 5, collate_runq_s=[0.0] * 5, other_cpu_s=[0.02] * 5,
        put_s=[0.5 * k + 0.5 for k in range(5)], nbytes=[8000] * 5, read_bytes=[1000] * 5, read_ops=[1] * 5,
    )  # fmt: skip
    main = MainBatches(call_s=[0.1 * k for k in range(5)], wait_s=[0.1] * 5, samples=[10] * 5, epoch=[0] * 5)
    loop = LoaderRun(coupled=True, settings=None, main=main, workers=workers, batch_bytes=8000)
    dataset = DatasetFacts(url="x", format="webdataset", num_shards=4, num_samples=400, total_bytes=40_000_000)
    fields: dict[str, Any] = {
        "kind": "analyze",
        "created_at": "2026-11-28T00:00:00+00:00",
        "version": "1",
        "host": Host(usable_cores=16.0, accelerators=["A"] * 4),
        "workload": Workload(),
        "dataset": dataset,
        "loaders": [loop],
        "step": StepRun(durations_s=[0.05] * 4, samples_per_step=10, source="train.py:make_step", joules_per_step=20.0),
    }
    return Run(**{**fields, **changes})


def test_a_saved_run_gives_its_step_its_bytes_and_its_workers_cost() -> None:
    basis = run_basis(a_run(), "run.json")
    assert basis.demand == Demand(
        samples_per_s=pytest.approx(200),
        bytes_per_sample=100_000,
        samples_per_file=100,
        batch_size=10,
        batch_bytes=8000,
        cpu_s_per_sample=pytest.approx(0.04),
        worker_s_per_sample=pytest.approx(0.05),
        joules_per_sample=2.0,
    )
    assert (basis.cores_per_host, basis.accelerators_per_host, basis.samples) == (16.0, 4, 400)
    assert basis.sources["samples_per_s"] == "run.json: train.py:make_step, 4 steps"
    assert basis.caveats == []


def test_what_a_run_did_not_measure_is_not_planned() -> None:
    basis = run_basis(a_run(dataset=None, loaders=[]), "run.json")
    assert (basis.demand.bytes_per_sample, basis.demand.cpu_s_per_sample) == (None, None)
    without_dataset = run_basis(a_run(dataset=None), "run.json")
    assert without_dataset.demand.bytes_per_sample == 100
    emulated = run_basis(a_run(step=StepRun(durations_s=[0.1], emulated=True)), "run.json")
    assert [c.code for c in emulated.caveats] == ["emulated-step"]
    with pytest.raises(UsageError, match=r"run 'run.json' holds no measured step"):
        run_basis(a_run(step=None), "run.json")


def test_plan_prints_its_points_for_scripts(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(dumps(a_run()))
    result = CliRunner().invoke(cli, ["plan", str(tmp_path), "-n", "8,4", "--format", "json"])
    assert result.exit_code == 0, result.stderr
    page = json.loads(result.stdout)
    keys = [
        "n",
        "samples_per_s",
        "storage_bytes_per_s",
        "iops",
        "cores",
        "hosts",
        "binding",
        "scaling_efficiency",
        "cost",
    ]
    assert all(set(keys) <= point.keys() for point in page["points"])
    first = page["points"][0]
    # 4 accelerators ask 800/s x 40 ms = 32 cores; the host has 16.
    assert (first["n"], first["samples_per_s"], first["cores"], first["binding"]) == (4, pytest.approx(400), 32, "cpu")
    assert {item["name"]: item["source"] for item in page["inputs"]}["cores per host"].endswith("its host")


@pytest.mark.parametrize("format_", ["text", "md", "html"])
def test_plan_writes_every_format(tmp_path: Path, format_: str) -> None:
    target = tmp_path / "plan.out"
    command = [
        "plan",
        "--workload",
        "unet3d",
        "--accelerator",
        "h100",
        "-n",
        "8,64",
        "--format",
        format_,
        "-o",
        str(target),
    ]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    text = target.read_text()
    assert "unet3d on H100" in text
    assert ("<svg" in text) == (format_ == "html")  # the chart


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "starts from a run, a published workload or a DLIO file; found neither"),
        (["x", "--workload", "unet3d"], "found run and workload"),
        (["--workload", "unet3d"], "--workload needs an accelerator"),
        (["--workload", "unet3", "--accelerator", "h100"], "unknown workload 'unet3'"),
        (["--workload", "unet3d", "--accelerator", "h100", "-n", "8,x"], "cannot read numbers of accelerators '8,x'"),
        (["--workload", "unet3d", "--accelerator", "h100", "-n", "0"], "cannot read numbers of accelerators '0'"),
        (["--workload", "unet3d", "--accelerator", "h100", "--storage", "fast"], "cannot read bandwidth 'fast'"),
        (["--workload", "unet3d", "--accelerator", "h100", "--core-price", "-1"], "cannot read price '-1'"),
        (["no-such-run.json"], "cannot read run file 'no-such-run.json'"),
        (["--dlio", "no-such.yaml"], "cannot read DLIO workload 'no-such.yaml'"),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_no_verdict(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ioprobe_cli.main import run

    assert run(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_counts_are_whole_numbers_above_zero() -> None:
    assert parse_counts("8,64, 512") == [8, 64, 512]
    with pytest.raises(UsageError):
        parse_counts(",")
