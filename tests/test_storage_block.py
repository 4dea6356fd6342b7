"""Block reads as a whole: which engine, which cache state, what is said of the figures and refused."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storage_jobs import MiB

from ioprobe.errors import StoreError, TargetError, UsageError
from ioprobe.probe import storage_block
from ioprobe.probe.engines import aio, common, uring
from ioprobe.probe.storage_block import choose_engine, measure_block
from ioprobe.probe.storage_block_rounds import percentiles_of_bins
from ioprobe.probe.storage_place import place_of


def test_percentiles_come_out_of_the_histogram_within_half_a_percent() -> None:
    latencies = np.random.default_rng(0).lognormal(11, 1, 100_000).astype(np.int64)
    keys, counts = np.unique((np.log2(latencies) * common.BINS_PER_OCTAVE).astype(int), return_counts=True)
    found = percentiles_of_bins(dict(zip(keys.tolist(), counts.tolist(), strict=True)), int(latencies.max()))
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
        assert math.isclose(found[name], np.quantile(latencies, q) / 1e9, rel_tol=0.006)
    assert found["max"] == latencies.max() / 1e9


def test_no_latencies_give_no_percentiles() -> None:
    assert percentiles_of_bins({}, 0) == {}


@pytest.mark.parametrize(
    ("ring", "linux_aio", "depth", "direct", "block_bytes", "engine"),
    [
        (True, True, 1, True, 4096, "preadv"),
        (True, True, 1, True, MiB, "io_uring"),
        (False, True, 1, True, MiB, "preadv"),
        (True, True, 1, False, MiB, "preadv"),
        (True, True, 8, True, 4096, "libaio"),
        (True, True, 8, True, MiB, "io_uring"),
        (True, False, 8, True, 4096, "io_uring"),
        (True, True, 8, False, 4096, "io_uring"),
        (False, True, 8, True, MiB, "libaio"),
        (False, True, 8, False, 4096, "preadv"),
        (False, False, 8, True, 4096, "preadv"),
    ],
)
def test_the_engine_is_the_best_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
    ring: bool,
    linux_aio: bool,
    depth: int,
    direct: bool,
    block_bytes: int,
    engine: str,
) -> None:
    monkeypatch.setattr(uring, "allowed", lambda: ring)
    monkeypatch.setattr(aio, "allowed", lambda: linux_aio)
    assert choose_engine("auto", depth, direct, block_bytes) == engine


def test_asking_for_a_forbidden_engine_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uring, "allowed", lambda: False)
    with pytest.raises(UsageError, match="io_uring is forbidden or missing here"):
        choose_engine("io_uring", 4, True)


def block(path: Path, **more: Any) -> Any:
    given = {"pattern": "random", "block_bytes": 4096, "depth": 4, "direct": False, "seconds": 0.2, **more}
    return measure_block(str(path), **given)


def test_warm_reads_come_from_the_cache_and_say_so(file: Path) -> None:
    found = block(file, cache="warm")
    assert (found.cache_state, found.resident_before, found.failure) == ("warm", 1.0, None)
    assert found.device_read_bytes in (0, None) or found.device_read_bytes < found.bytes_read
    assert found.bytes_read == found.ops * 4096 > 0
    assert list(found.latency_s) == ["p50", "p95", "p99", "p999", "max"]
    assert found.engine_ceiling_ops_per_s is not None
    assert found.cpu_s_per_op is not None


def test_cold_reads_come_from_the_device(file: Path) -> None:
    if place_of(file).in_memory or place_of(file).filesystem == "overlay":
        pytest.skip("no page cache of its own here")
    found = block(file, cache="cold", block_bytes=65536)
    assert (found.cache_state, found.resident_before) == ("cold", 0.0)
    assert found.device_read_bytes is None or found.device_read_bytes >= 0.9 * 8 * MiB


def test_two_processes_are_counted_together(file: Path) -> None:
    found = block(file, cache="warm", processes=2, depth=2)
    assert (found.processes, found.depth) == (2, 2)
    assert found.name == "random 4.0 KiB x2 in each of 2 processes warm"


def test_a_mapping_is_read_by_its_engine(file: Path) -> None:
    found = block(file, cache="warm", engine="mmap")
    assert (found.engine, found.failure) == ("mmap", None)
    assert found.ops > 0


def test_many_threads_are_spread_over_processes() -> None:
    children = storage_block._children("preadv", 64, 1)
    assert [c["depth"] for c in children] == [32, 32]
    assert [c["slot"] for c in children] == [0, 32]
    assert {c["streams"] for c in children} == {2}


def test_a_figure_near_the_own_ceiling_is_marked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_block, "engine_ceiling", lambda *a: 1.0)
    assert "tool-limited" in {c.code for c in block(file, cache="warm").caveats}
    monkeypatch.setattr(storage_block, "engine_ceiling", lambda *a: 1e12)
    assert "tool-limited" not in {c.code for c in block(file, cache="warm").caveats}


def test_refused_direct_reads_go_through_the_cache_with_a_caveat(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_block, "direct_alignment", lambda path: 0)
    found = block(file, direct=True)
    assert not found.direct
    assert found.cache_state != "direct"
    assert "refuses O_DIRECT" in next(c.text for c in found.caveats if c.code == "direct-refused")


def test_memory_file_systems_are_said_to_be_memory() -> None:
    path = Path("/dev/shm") / f"ioprobe-test-{os.getpid()}"
    try:
        path.write_bytes(bytes(MiB))
        if not place_of(path).in_memory:
            pytest.skip("/dev/shm is no tmpfs here")
        found = block(path, direct=True)
    finally:
        path.unlink(missing_ok=True)
    assert found.cache_state == "warm"
    assert "memory-filesystem" in {c.code for c in found.caveats}


def test_holes_are_said_to_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as out:
        out.truncate(8 * MiB)
    if place_of(path).in_memory:
        pytest.skip("no blocks are counted in memory")
    assert "the file is sparse" in next(c.text for c in block(path).caveats if c.code == "sparse-files")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"pattern": "zigzag"}, "unknown pattern 'zigzag'"),
        ({"block_bytes": 0}, "a block size of 0 cannot be measured"),
        ({"depth": 0}, "a depth of 0 cannot be measured"),
        ({"seconds": -1.0}, "cannot measure for -1.0 seconds"),
        ({"seconds": math.nan}, "cannot measure for nan seconds"),
        ({"engine": "magic"}, "unknown engine 'magic'"),
        ({"cache": "tepid"}, "unknown cache state 'tepid'"),
        ({"block_bytes": 16 * MiB}, "it has 8.0 MiB"),
    ],
)
def test_arguments_that_cannot_be_meant_are_named(file: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        block(file, **more)


def test_a_file_of_zero_bytes_cannot_be_read_in_blocks(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match="it has zero bytes"):
        block(tmp_path / "empty")


def test_a_missing_file_and_a_folder_are_target_errors(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="does not exist"):
        block(tmp_path / "none")
    with pytest.raises(TargetError, match="neither a file nor a block device"):
        block(tmp_path)


def test_a_file_that_may_not_be_read_is_a_store_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str, flags: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(storage_block.os, "open", denied)
    with pytest.raises(StoreError, match="Permission denied"):
        storage_block.file_bytes(str(file))


def test_a_file_that_shrinks_while_it_is_read_keeps_the_job_with_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shrinks"
    path.write_bytes(bytes(MiB))
    monkeypatch.setattr(storage_block, "engine_ceiling", lambda *a: os.truncate(path, 4096))
    found = block(path, cache="warm", depth=1)
    assert found.failure is not None
    assert "the file shrank" in found.failure.message
    assert found.stopped_because == "failed"
