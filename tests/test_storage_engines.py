"""The block engines: where they read, what they count, what they do when reading fails."""

from __future__ import annotations

import errno
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ioprobe.errors import MeasureError, StoreError, TargetError, UsageError
from ioprobe.probe import storage_block, storage_crew
from ioprobe.probe.engines import aio, common, preadv, replay, uring
from ioprobe.probe.engines.board import Board
from ioprobe.probe.engines.offsets import Pass
from ioprobe.probe.storage_block import choose_engine, measure_block
from ioprobe.probe.storage_block_rounds import percentiles_of_bins
from ioprobe.probe.storage_crew import Crew
from ioprobe.probe.storage_place import place_of

MiB = 1 << 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blocks") / "data.bin"
    path.write_bytes(os.urandom(8 * MiB))
    return path


@given(
    blocks=st.integers(1, 3000),
    streams=st.integers(1, 5),
    random=st.booleans(),
    contiguous=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_streams_together_visit_each_block_exactly_once(
    blocks: int, streams: int, random: bool, contiguous: bool, seed: int
) -> None:
    seen: list[int] = []
    for stream in range(streams):
        own = Pass(
            blocks, 512, random=random, seed=seed, stream=stream, streams=streams, once=True, contiguous=contiguous
        )
        while (some := own.take(97)).size:
            seen += (some // 512).tolist()
    assert sorted(seen) == list(range(blocks))


def test_another_seed_reads_in_another_order() -> None:
    one, two = (Pass(10_000, 1, random=True, seed=s).take(100).tolist() for s in (1, 2))
    assert one != two


def test_a_pass_over_few_blocks_repeats_without_end_and_without_delay() -> None:
    own = Pass(3, 4096, random=True, seed=1)
    assert set(own.take(100_000).tolist()) == {0, 4096, 8192}


@pytest.mark.parametrize("blocks", [2, 100, 4096])
def test_passes_follow_each_other_without_end(blocks: int) -> None:
    own = Pass(blocks, 1, random=True, seed=1, stream=1, streams=2)
    assert all(own.take(blocks // 2).size >= blocks // 2 for _ in range(20))


def test_a_stream_without_a_block_of_its_own_ends() -> None:
    assert Pass(1, 1, random=False, seed=1, stream=1, streams=2).take(10).size == 0


def test_sequential_blocks_follow_each_other() -> None:
    own = Pass(100, 10, random=False, seed=7, contiguous=True)
    steps = np.diff(own.take(80)) % 1000
    assert set(steps.tolist()) == {10}


def command(path: Path, **more: Any) -> dict[str, Any]:
    now = time.perf_counter_ns()
    base = {
        "path": str(path),
        "block_bytes": 4096,
        "size_bytes": path.stat().st_size,
        "random": True,
        "direct": False,
        "once": True,
        "advise": True,
        "seed": 1,
        "ramp_ns": 0,
        "at_ns": now,
        "end_ns": now + 20_000_000_000,
    }
    return {**base, **more}


def job(depth: int) -> dict[str, Any]:
    return {"depth": depth, "slot": 0, "stream": 0, "streams": 1}


ENGINES = {"preadv": preadv.Worker, "uring": uring.Worker, "aio": aio.Worker}


@pytest.mark.parametrize("depth", [1, 4, 32])
@pytest.mark.parametrize("name", list(ENGINES))
def test_a_single_pass_reads_every_block_once_and_ends(file: Path, name: str, depth: int) -> None:
    if (name == "uring" and not uring.allowed()) or (name == "aio" and not aio.allowed()):
        pytest.skip("forbidden here")
    board = Board.create(depth)
    facts, columns = ENGINES[name](job(depth), board).round(command(file))
    board.close()
    assert facts["ops"] == 8 * MiB // 4096
    assert facts["exhausted"]
    assert sum(columns["latency_counts"]) == facts["ops"]
    assert facts["max_ns"] > 0


@pytest.mark.parametrize("name", list(ENGINES))
def test_a_file_that_shrinks_is_reported_with_its_offset(tmp_path: Path, name: str) -> None:
    if (name == "uring" and not uring.allowed()) or (name == "aio" and not aio.allowed()):
        pytest.skip("forbidden here")
    path = tmp_path / "shrunk"
    path.write_bytes(bytes(5000))
    board = Board.create(1)
    with pytest.raises(OSError, match="904 of 4096 bytes came back at offset 4096: the file shrank"):
        ENGINES[name](job(1), board).round(command(path, size_bytes=8192, random=False, seed=0))
    board.close()


def test_an_input_output_error_names_file_and_offset(file: Path) -> None:
    def broken(fd: int, into: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    board = Board.create(1)
    with pytest.raises(OSError, match="Input/output error at offset") as caught:
        preadv.Worker(job(1), board, read=broken).round(command(file))
    board.close()
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(file))


def test_an_error_in_one_thread_ends_all(file: Path) -> None:
    calls = iter(range(1 << 30))

    def sometimes(fd: int, into: list[memoryview], offset: int) -> int:
        if next(calls) == 100:
            raise OSError(errno.EIO, "Input/output error")
        return os.preadv(fd, into, offset)

    board = Board.create(4)
    with pytest.raises(OSError, match="Input/output error"):
        preadv.Worker(job(4), board, read=sometimes).round(command(file, once=False))
    board.close()


def test_the_stop_flag_ends_a_round(file: Path) -> None:
    board = Board.create(1)
    board.stop()
    facts, _ = preadv.Worker(job(1), board).round(command(file, once=False))
    board.close()
    assert facts["ops"] > 0
    assert not facts["exhausted"]


def test_many_completions_at_once_take_the_same_path_to_the_same_figures(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not uring.allowed():
        pytest.skip("io_uring is forbidden here")
    monkeypatch.setattr(uring, "_AT_ONCE", 1)
    board = Board.create(1)
    facts, columns = uring.Worker(job(16), board).round(command(file))
    board.close()
    assert facts["ops"] == sum(columns["latency_counts"]) == 2048


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


def test_a_measuring_process_that_dies_is_a_clear_error(file: Path) -> None:
    with Crew("preadv", [job(1)]) as crew:
        crew._children[0].kill()
        with pytest.raises(MeasureError, match="a measuring process was killed by signal 9"):
            crew.round(command(file), 0.2)


def test_no_process_outlives_its_crew(file: Path) -> None:
    with Crew("preadv", [job(1), job(1)], slots=2) as crew:
        children = [c.pid for c in crew._children]
        crew.round({**command(file), "at_ns": 0}, 0.05)
    for pid in children:
        assert not Path(f"/proc/{pid}").exists()


def items_of(tmp_path: Path, *sizes: int) -> list[Any]:
    items = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"f{number}"
        path.write_bytes(os.urandom(size))
        items.append([str(path), [[0, size]]])
    return items


def run_replay(items: list[Any], **seams: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    board = Board.create(1)
    worker = replay.Worker({"items": items, "chunk_bytes": 1000, "slot": 0}, board, **seams)
    now = time.perf_counter_ns()
    found = worker.round({"at_ns": now, "end_ns": now + 20_000_000_000})
    worker.close()
    board.close()
    return found


def test_a_replay_reads_all_ranges_in_chunks(tmp_path: Path) -> None:
    facts, columns = run_replay(items_of(tmp_path, 2500, 0, 700))
    assert columns["nbytes"].tolist() == [1000, 1000, 500, 700]
    assert (len(columns["open_ns"]), len(columns["first_ns"])) == (3, 2)
    assert (facts["exhausted"], facts["errors"]) == (True, [])


def test_a_replay_goes_on_after_a_file_that_vanished(tmp_path: Path) -> None:
    items = items_of(tmp_path, 10, 10, 10)
    Path(items[1][0]).unlink()
    facts, columns = run_replay(items)
    assert columns["nbytes"].tolist() == [10, 10]
    assert [(e["text"], e["path"]) for e in facts["errors"]] == [("No such file or directory", items[1][0])]


def test_a_replay_tells_a_file_that_shrank(tmp_path: Path) -> None:
    items = items_of(tmp_path, 1500)
    os.truncate(items[0][0], 1000)
    facts, _ = run_replay(items)
    assert facts["errors"][0]["text"] == "ends at byte 1000, 1500 were there when it was listed"


def test_a_replay_reports_an_input_output_error_and_ends_after_a_few(tmp_path: Path) -> None:
    def broken(fd: int, into: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    facts, columns = run_replay(items_of(tmp_path, *[10] * 20), read=broken)
    assert len(facts["errors"]) == replay.MAX_ERRORS
    assert facts["errors"][0]["errno"] == errno.EIO
    assert len(columns["nbytes"]) == 0


def test_storage_that_does_not_answer_ends_the_measurement_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "hangs")  # opening it waits for a writer that never comes
    monkeypatch.setattr(storage_crew, "_GRACE_S", 0.2)
    with Crew("replay", [{"items": [[str(tmp_path / "hangs"), [[0, 10]]]], "chunk_bytes": 4096}]) as crew:
        child = crew._children[0].pid
        with pytest.raises(MeasureError, match="a read does not come back: the storage does not answer"):
            crew.round({}, 0.1)
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize(("one", "together", "single"), [(100, 80, True), (100, 102, True), (100, 110, False)])
def test_cached_requests_are_submitted_the_way_that_gives_more(one: int, together: int, single: bool) -> None:
    task = common.Task.of(job(4), command(Path(__file__), at_ns=0, ramp_ns=100, end_ns=1000))
    way = common.Submission(task, 0)
    ops, now = 0, 0
    while now < 100:
        now += 10
        ops += one if way.single else together
        way.tried(now, ops)
    assert way.single is single
    assert way.tried(now + 10, ops) is single


@pytest.mark.parametrize(("direct", "depth", "single"), [(True, 4, True), (True, 1, False), (False, 4, False)])
def test_without_a_ramp_only_direct_requests_go_one_by_one(direct: bool, depth: int, single: bool) -> None:
    task = common.Task.of(job(depth), command(Path(__file__), at_ns=5, ramp_ns=0, direct=direct))
    way = common.Submission(task, 5)
    assert way.tried(10, 3) is single


def test_direct_requests_are_never_merged_by_going_together() -> None:
    task = common.Task.of(job(4), command(Path(__file__), at_ns=0, ramp_ns=100, direct=True))
    way = common.Submission(task, 0)
    assert all(way.tried(now, 50 * now) for now in range(10, 200, 10))
