"""The block engines: what they count, what they do when reading fails, how they submit."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from storage_jobs import MiB, command, job

from ioprobe.probe.engines import aio, common, preadv, uring
from ioprobe.probe.engines.board import Board

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
