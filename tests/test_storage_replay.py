"""A replay of a loader's reads: all ranges in chunks, whatever happens to the files."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

from ioprobe.probe.engines import replay
from ioprobe.probe.engines.board import Board


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
