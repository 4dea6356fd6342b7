"""Traces of several ranks: the late one is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from planted_traces import shares

from ioprobe.live.profile import profile
from ioprobe.live.traces.kineto import read_kineto
from ioprobe.live.traces.ranks import lateness


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
dist.barrier()
os._exit(0)  # gloo's threads may end a process whose peer was gone first
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
