"""Exports of Nsight Systems: the same shares, whatever their columns."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from planted_traces import only, shares

from ioprobe.errors import RunFileError
from ioprobe.live.profile import profile
from ioprobe.live.traces.nsys import read_nsys
from ioprobe.live.traces.partition import partitions


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
