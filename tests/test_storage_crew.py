"""The processes that measure: what happens when one dies or hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from storage_jobs import command, job

from ioprobe.errors import MeasureError
from ioprobe.probe import storage_crew
from ioprobe.probe.storage_crew import Crew


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
