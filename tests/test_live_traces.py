"""Traces divided into shares: what is planted is recovered, whatever the file looks like."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ioprobe.errors import RunFileError
from ioprobe.live.profile import profile, recording_kind
from ioprobe.live.traces.events import EventReader
from ioprobe.live.traces.intervals import cover, covered, join
from ioprobe.live.traces.kineto import read_kineto
from ioprobe.live.traces.nsys import read_nsys
from ioprobe.live.traces.partition import partitions
from ioprobe.live.traces.ranks import lateness
from ioprobe.run import Partition

SHARES = ("compute", "communication", "transfer", "data_stall", "other_idle")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    import importlib.util
    import sys

    path = Path(__file__).parents[1] / "fixtures/traces/generate.py"
    spec = importlib.util.spec_from_file_location("generate_traces", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_traces"] = module
    spec.loader.exec_module(module)
    return module


def shares(partition: Partition) -> dict[str, float]:
    return {name: getattr(partition, f"{name}_s") / partition.window_s for name in SHARES}


def only(path: Path) -> Partition:
    (found,) = partitions(read_kineto(path))
    return found


# Intervals


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


# Planted shares


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


# What files look like


def test_gzip_list_form_and_compact_json_say_the_same(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(11)
    text = generate.kineto_text(planted, rank=3, world_size=8)
    document = json.loads(text)
    (tmp_path / "plain.json").write_text(text)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "list.json").write_text(json.dumps(document["traceEvents"]))
    (tmp_path / "compact.json").write_text(json.dumps(document, separators=(",", ":")))
    (tmp_path / "sorted.json").write_text(json.dumps(document, sort_keys=True, indent=1))
    expected = shares(only(tmp_path / "plain.json"))
    for name in ("t.json.gz", "list.json", "compact.json", "sorted.json"):
        assert shares(only(tmp_path / name)) == pytest.approx(expected, abs=1e-9), name
    ranked = [read_kineto(tmp_path / n) for n in ("plain.json", "compact.json", "sorted.json")]
    assert [(t.rank, t.world_size) for t in ranked] == [(3, 8)] * 3


@pytest.mark.parametrize("chunk_bytes", [700, 4096, 100_000])
def test_chunks_of_any_size_hold_the_same_events(generate: ModuleType, tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "t.json"
    path.write_text(generate.kineto_text(generate.plan(12, steps=3)))
    expected = [(e["name"], e["ts"]) for e in json.loads(path.read_text())["traceEvents"]]
    reader = EventReader(path, chunk_bytes)
    assert [(e.name, e.ts) for batch in reader.batches() for e in batch] == expected
    assert (reader.damaged, reader.mended, reader.truncated) == (0, 0, False)
    assert reader.header["traceName"] == "emulated"


def test_objects_nested_in_arguments_do_not_split_an_event(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{i}", "ts": i, "dur": 1, "args": {"stack": [{"name": "a"}, {"id": 2}]}}
        for i in range(50)
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    reader = EventReader(path, 512)
    assert [e.name for batch in reader.batches() for e in batch] == [f"op{i}" for i in range(50)]
    assert (reader.damaged, reader.mended) == (0, 0)


def test_a_cut_off_file_is_read_as_far_as_it_goes(generate: ModuleType, tmp_path: Path) -> None:
    text = generate.kineto_text(generate.plan(13, steps=8))
    (tmp_path / "t.json").write_text(text[: int(0.7 * len(text))])
    packed = gzip.compress(text.encode())
    (tmp_path / "t.json.gz").write_bytes(packed[: int(0.7 * len(packed))])
    for name in ("t.json", "t.json.gz"):
        run = profile([tmp_path / name]).run
        assert 3 <= run.partitions[0].steps <= 6
        assert "trace-truncated" in [c.code for c in run.caveats]


def test_damaged_events_are_mended_or_counted_and_the_rest_is_read(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(14)
    text = generate.kineto_text(planted)
    lines = text.replace('"aten::add_"', '"aten::"add"_"', 3)  # unescaped quotes, as with_stack wrote them
    lines = lines.replace('"cudaLaunchKernel"', '"cuda\x01Launch\nKernel"', 2)  # control characters
    (tmp_path / "t.json").write_text(lines)
    run = profile([tmp_path / "t.json"]).run
    assert shares(run.partitions[0]) == pytest.approx(planted.shares, abs=1e-4)
    (caveat,) = [c for c in run.caveats if c.code == "trace-damaged"]
    assert "0 events that cannot be read and 5 mended" in caveat.text


def test_numbers_written_as_text_are_numbers(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": str(i), "dur": "0.5", "args": {"device": "0"}} for i in (1, 2)
    ]
    (tmp_path / "t.json").write_text(json.dumps(events))
    assert partitions(read_kineto(tmp_path / "t.json"))[0].window_s == pytest.approx(1.5e-6)


HOSTILE = {
    "empty.json": b"",
    "blank.json": b"  \n ",
    "word.json": b"hello there\n",
    "brace.json": b"{",
    "other.json": b'{"a": [1, 2, 3]}',
    "no_events.json": b'{"traceEvents": []}',
    "useless.json": b'{"traceEvents": [{"ph": "M", "name": "process_name", "ts": 0}]}',
    "numbers.json": b"[1, 2, 3]",
    "nested.json": b"[" * 100_000,
    "binary.json": bytes(range(256)) * 40,
    "trace.pftrace": b"\x0a\x9d\x01\x00" * 999,
    "bad.json.gz": b"\x1f\x8b\x08\x00garbage that is no deflate stream at all",
    "nothing.sqlite": b"SQLite format 3\x00" + b"\x00" * 200,
    "zero.json": b'[{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":0,"args":{"device":0}}]',
    "endless.json": b'[{"ph":"X","cat":"kernel","name":"k","ts":1e999,"dur":1,"args":{"device":0}}]',
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_file_gets_one_clear_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name])
    with pytest.raises(RunFileError) as caught:
        profile([tmp_path / name])
    assert str(tmp_path / name) in caught.value.message
    assert "\n" not in caught.value.message + caught.value.hint
    assert caught.value.hint


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=r"cannot read recording '.*gone\.json': No such file"):
        profile([tmp_path / "gone.json"])
    with pytest.raises(RunFileError, match="holds no recording"):
        profile([tmp_path])


def test_kinds_are_told_by_content_not_by_name(generate: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(generate.kineto_text(generate.plan(1)))
    generate.write_nsys(tmp_path / "b.json", [generate.plan(1)])
    (tmp_path / "c.json").write_text("main (train.py:1) 5\n")
    assert [recording_kind(tmp_path / n) for n in ("a.txt", "b.json", "c.json")] == ["kineto", "nsys", "stacks"]


# Nsight Systems


@pytest.mark.parametrize("drifted", [False, True])
def test_nsight_exports_hold_the_planted_shares_whatever_their_columns(
    generate: ModuleType, tmp_path: Path, drifted: bool
) -> None:
    planted = [generate.plan(21), generate.plan(22, pinned=False)]
    path = tmp_path / "two ranks?.sqlite"
    generate.write_nsys(path, planted, drifted=drifted)
    before = path.read_bytes()
    timelines = read_nsys(path)
    assert [t.rank for t in timelines] == [0, 1]
    for timeline, plan in zip(timelines, planted, strict=True):
        (found,) = partitions(timeline)
        assert shares(found) == pytest.approx(plan.shares, abs=1e-4)
    assert timelines[0].devices[0].pageable_copies == 0
    assert timelines[1].devices[0].pageable_copies > 0
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_kineto_and_nsight_agree(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(23)
    (tmp_path / "t.json").write_text(generate.kineto_text(planted))
    generate.write_nsys(tmp_path / "t.sqlite", [planted])
    (timeline,) = read_nsys(tmp_path / "t.sqlite")
    assert shares(partitions(timeline)[0]) == pytest.approx(shares(only(tmp_path / "t.json")), abs=1e-4)


def test_an_export_without_loader_ranges_says_so(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(24)
    quiet = replace(planted, pieces=[p for p in planted.pieces if "DataLoader" not in p.name])
    generate.write_nsys(tmp_path / "t.sqlite", [quiet])
    run = profile([tmp_path / "t.sqlite"]).run
    assert run.partitions[0].data_stall_s == 0
    assert [c.code for c in run.caveats] == ["no-loader-ranges"]


def test_an_sqlite_file_of_something_else_is_refused(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "x.sqlite")
    base.execute("CREATE TABLE shoes (size INT)")
    base.commit()
    base.close()
    with pytest.raises(RunFileError, match="no Nsight Systems export"):
        profile([tmp_path / "x.sqlite"])


# Ranks


def ranks_with_a_late_one(generate: ModuleType, tmp_path: Path, names: list[str]) -> list[Path]:
    """Three ranks; the second one arrives last at every collective, so only it does not wait there."""
    paths = []
    for rank, name in enumerate(names):
        shape = generate.Shape(data_stall_s=0.008 if rank == 1 else 0.0005)
        planted = generate.plan(30, steps=10, shape=shape, collective_extra_s=0.0 if rank == 1 else 0.0075)
        path = tmp_path / name
        path.write_text(generate.kineto_text(planted, rank=rank, world_size=3))
        paths.append(path)
    return paths


def test_the_late_rank_is_found_and_its_cost_to_the_others_given(generate: ModuleType, tmp_path: Path) -> None:
    paths = ranks_with_a_late_one(generate, tmp_path, ["a.json", "b.json", "c.json"])
    run = profile(paths).run
    waits = {p.rank: p.hidden_s for p in run.partitions}
    # Ten exposed collectives, each 7.5 ms longer on the two ranks that wait.
    assert waits[1]["kept_waiting"] == pytest.approx(0.075, rel=0.02)
    assert waits[0]["waiting_for_ranks"] == pytest.approx(0.075, rel=0.02)
    assert waits[1]["waiting_for_ranks"] == pytest.approx(0.0, abs=1e-4)
    assert run.world_size == 3


def test_names_and_order_of_rank_files_do_not_matter(generate: ModuleType, tmp_path: Path) -> None:
    paths = ranks_with_a_late_one(generate, tmp_path, ["z.json", "x.json", "y.json"])
    forward, backward = profile(paths).run, profile(paths[::-1]).run
    by_rank = lambda run: {p.rank: (p.hidden_s, p.data_stall_s) for p in run.partitions}  # noqa: E731
    assert by_rank(forward) == by_rank(backward)


def test_ranks_that_share_no_collectives_are_not_compared(generate: ModuleType, tmp_path: Path) -> None:
    with_some, without = tmp_path / "rank0.json", tmp_path / "rank1.json"
    planted = generate.plan(31)
    with_some.write_text(generate.kineto_text(planted))
    without.write_text(
        generate.kineto_text(replace(planted, pieces=[p for p in planted.pieces if "nccl" not in p.name]))
    )
    found, caveats = lateness([read_kineto(with_some), read_kineto(without)])
    assert found is None
    assert [c.code for c in caveats] == ["ranks-unmatched"]


# Real traces


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


_GLOO = """
import os, sys, time, torch, torch.distributed as dist
from torch.profiler import profile, schedule, ProfilerActivity
from torch.utils.data import DataLoader, Dataset
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
class Slow(Dataset):
    def __len__(self): return 12
    def __getitem__(self, i):
        if rank == 1: time.sleep(0.02)
        return torch.ones(64)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=6, repeat=1),
             on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/trace{rank}.json")) as p:
    for x in DataLoader(Slow(), 1):
        model(x).sum().backward(); p.step()
dist.destroy_process_group()
"""


def test_the_rank_that_loads_slowly_is_late_in_real_gloo_traces(tmp_path: Path) -> None:
    import subprocess
    import sys

    from ioprobe.diagnosis.recordings import diagnose_partition, rank_summaries
    from ioprobe.diagnosis.types import Verdict

    command = [sys.executable, "-W", "ignore", "-c", _GLOO]
    children = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for rank in (0, 1)
    ]
    assert [child.wait(120) for child in children] == [0, 0]
    run = profile([tmp_path / "trace0.json", tmp_path / "trace1.json"]).run
    by_rank = {p.rank: p for p in run.partitions}
    assert shares(by_rank[1])["data_stall"] > 0.5
    assert by_rank[1].hidden_s["kept_waiting"] > 5 * 0.015
    summaries = rank_summaries(run)
    assert [s.late for s in summaries] == [False, True]
    assert "rank 1 is late" in summaries[1].because
    assert diagnose_partition(run).verdict is Verdict.DATA_BOUND
