"""Traces divided into shares: what is planted is recovered, whatever the trace looks like."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from planted_traces import only, shares

from ioprobe.live.profile import profile
from ioprobe.live.traces.intervals import cover, covered, join
from ioprobe.live.traces.kineto import read_kineto
from ioprobe.live.traces.partition import partitions


def test_unions_measure_like_a_fine_grid_does() -> None:
    rng = random.Random(5)
    for _ in range(50):
        pairs = [(a := rng.randrange(0, 90), a + rng.randrange(0, 12)) for _ in range(rng.randrange(0, 12))]
        other = [(a := rng.randrange(0, 90), a + rng.randrange(0, 12)) for _ in range(rng.randrange(0, 12))]
        grid, both = np.zeros(110, bool), np.zeros(110, bool)
        for a, b in pairs:
            grid[a:b] = True
        both |= grid
        for a, b in other:
            both[a:b] = True
        left = cover([a for a, _ in pairs], [b for _, b in pairs])
        right = cover([a for a, _ in other], [b for _, b in other])
        edges = [0, 13, 14, 50, 110]
        assert left.total == grid.sum()
        assert join(left, right).total == both.sum()
        expected = [grid[a:b].sum() for a, b in pairwise(edges)]
        np.testing.assert_allclose(covered(left, edges), expected)


@pytest.mark.parametrize("seed", range(5))
def test_planted_shares_are_recovered_and_sum_to_one(generate: ModuleType, tmp_path: Path, seed: int) -> None:
    planted = generate.plan(seed, steps=5 + seed)
    path = tmp_path / "trace.json"
    path.write_text(generate.kineto_text(planted))
    found = only(path)
    assert shares(found) == pytest.approx(planted.shares, abs=1e-4)
    assert sum(shares(found).values()) == pytest.approx(1.0, abs=1e-9)
    assert found.window_s == pytest.approx(planted.window_s, abs=1e-5)
    assert found.steps == planted.steps
    assert found.hidden_s["communication"] == pytest.approx(planted.hidden_communication_s, rel=1e-3)
    assert sum(found.steps_s) == pytest.approx(found.window_s)
    assert sum(found.stalls_s) == pytest.approx(found.data_stall_s)


def test_the_window_is_the_devices_not_the_hosts(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(3, shape=generate.Shape(run_ahead_s=0.006, data_stall_s=0.001))
    path = tmp_path / "trace.json"
    path.write_text(generate.kineto_text(planted))
    timeline = read_kineto(path)
    (found,) = partitions(timeline)
    last_on_host = float(timeline.steps.ends.max())
    assert float(timeline.devices[0].spans.ends.max()) > last_on_host + 0.005
    assert shares(found) == pytest.approx(planted.shares, abs=1e-4)


def test_loading_under_a_busy_device_is_no_stall(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(4, shape=generate.Shape(data_stall_s=0.0))
    path = tmp_path / "trace.json"
    path.write_text(generate.kineto_text(planted))
    found = only(path)
    assert found.data_stall_s == pytest.approx(0.0, abs=1e-6)
    assert found.hidden_s["loader"] > 0.005


def test_order_of_events_and_names_of_streams_do_not_matter(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(6)
    pieces = list(planted.pieces)
    random.Random(0).shuffle(pieces)
    renamed = [
        replace(p, args={**p.args, "stream": 100 - int(str(p.args["stream"]))}) if "stream" in p.args else p
        for p in pieces
    ]
    (tmp_path / "a.json").write_text(generate.kineto_text(planted))
    (tmp_path / "b.json").write_text(generate.kineto_text(replace(planted, pieces=renamed)))
    assert shares(only(tmp_path / "b.json")) == pytest.approx(shares(only(tmp_path / "a.json")), abs=1e-9)


def test_nanoseconds_since_1970_are_told_from_microseconds(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(7, origin_s=1.7e9)
    (tmp_path / "us.json").write_text(generate.kineto_text(planted))
    (tmp_path / "ns.json").write_text(generate.kineto_text(planted, unit=1e9))
    # Doubles hold microseconds since 1970 to a quarter, nanoseconds to 256.
    assert shares(only(tmp_path / "us.json")) == pytest.approx(planted.shares, abs=1e-3)
    assert shares(only(tmp_path / "ns.json")) == pytest.approx(planted.shares, abs=1e-3)
    assert only(tmp_path / "ns.json").window_s == pytest.approx(planted.window_s, rel=1e-3)


@pytest.mark.parametrize("vendor", ["cuda", "rocm", "xpu"])
def test_copies_are_known_by_every_vendors_names(generate: ModuleType, tmp_path: Path, vendor: str) -> None:
    planted = generate.plan(8, vendor=vendor)
    (tmp_path / "t.json").write_text(generate.kineto_text(planted))
    assert shares(only(tmp_path / "t.json")) == pytest.approx(planted.shares, abs=1e-4)


def test_old_category_names_are_known(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(9)
    old = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    pieces = [replace(p, cat=old.get(p.cat, p.cat)) for p in planted.pieces]
    (tmp_path / "t.json").write_text(generate.kineto_text(replace(planted, pieces=pieces)))
    assert shares(only(tmp_path / "t.json")) == pytest.approx(planted.shares, abs=1e-4)


def test_each_device_has_its_own_partition_and_a_stray_touch_has_none(generate: ModuleType, tmp_path: Path) -> None:
    one, two = generate.plan(1, device=0), generate.plan(2, device=1)
    other = [p for p in two.pieces if "device" in p.args and p.cat != "gpu_user_annotation"]
    stray = generate.Piece("gpu_memset", "Memset (Device)", 100.01, 1e-6, {"device": 7, "stream": 1})
    (tmp_path / "t.json").write_text(generate.kineto_text(replace(one, pieces=[*one.pieces, *other, stray])))
    found = partitions(read_kineto(tmp_path / "t.json"))
    assert [p.device for p in found] == ["accelerator 0", "accelerator 1"]
    assert shares(found[0]) == pytest.approx(one.shares, abs=1e-4)


def test_steps_without_marks_run_from_batch_to_batch(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(10, steps=8)
    pieces = [p for p in planted.pieces if not p.name.startswith("ProfilerStep")]
    (tmp_path / "t.json").write_text(generate.kineto_text(replace(planted, pieces=pieces)))
    found = profile([tmp_path / "t.json"]).run
    assert found.partitions[0].steps == 6
    assert shares(found.partitions[0])["data_stall"] == pytest.approx(planted.shares["data_stall"], abs=0.05)
    assert [c.code for c in found.caveats] == ["no-steps"]


def record_cpu_trace(path: Path, num_workers: int) -> None:
    import torch
    from torch.profiler import ProfilerActivity, schedule
    from torch.profiler import profile as torch_profile
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.randn(64, 64)), 8, num_workers=num_workers)
    with torch_profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=4, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as profiler:
        for (batch,) in loader:
            model(batch).sum().backward()
            optimizer.step()
            profiler.step()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_trace_that_torch_records_here_is_divided(tmp_path: Path, num_workers: int) -> None:
    path = tmp_path / "trace.json"
    record_cpu_trace(path, num_workers)
    timeline = read_kineto(path)
    (found,) = partitions(timeline)
    kind = "_SingleProcessDataLoaderIter" if num_workers == 0 else "_MultiProcessingDataLoaderIter"
    assert (found.device, found.steps, timeline.loader_kind) == ("cpu", 4, kind)
    assert sum(shares(found).values()) == pytest.approx(1.0)
    assert found.compute_s > 0
    # On the host all time inside next() is stall, operators of the collate function included.
    inside = sum(timeline.loader.ends - timeline.loader.starts)
    assert found.data_stall_s == pytest.approx(found.hidden_s["loader"], abs=1e-9)
    assert found.data_stall_s == pytest.approx(inside, rel=0.05)
    assert timeline.caveats == []
