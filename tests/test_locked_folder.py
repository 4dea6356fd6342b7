"""Temporary folders that a killed ioprobe left: removed at the next start, and nobody else's with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ioprobe.errors import OutputError
from ioprobe.probe.locked_folder import LOCK, make_folder, sweep

PREFIX = "ioprobe-"


def _left_by_the_dead(place: Path) -> Path:
    """Return the folder of a process that was killed."""
    code = (
        "import os, pathlib, signal, sys; from ioprobe.probe.locked_folder import make_folder;"
        f"make_folder(pathlib.Path(sys.argv[1]), {PREFIX!r}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(place)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = place.iterdir()
    return left


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    left = _left_by_the_dead(tmp_path)
    (left / "listener-x").touch()
    mine = make_folder(tmp_path, PREFIX)
    sweep(tmp_path, PREFIX)
    assert [p.name for p in tmp_path.iterdir()] == [mine.path.name]
    assert mine.path.stat().st_mode & 0o777 == 0o700
    mine.remove()
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_our_own_folders_is_removed(tmp_path: Path) -> None:
    left = _left_by_the_dead(tmp_path)
    names = [f"{left.name}.bak", f"my-{left.name}", "ioprobe-1234", f"ioprobe-run-{left.name[8:]}", left.name.upper()]
    kept = [tmp_path / name for name in names]
    for path in kept:
        path.mkdir()
        (path / LOCK).touch()
    (tmp_path / "ioprobe-00000000").mkdir()  # without a lock it is not known whose it is
    (tmp_path / "ioprobe-00000001").touch()
    (tmp_path / "ioprobe-00000002").symlink_to(kept[0])
    (tmp_path / "ioprobe-00000003").mkdir()
    (tmp_path / "ioprobe-00000003" / LOCK).symlink_to(kept[0] / LOCK)
    before = {p.name for p in tmp_path.iterdir()}
    sweep(tmp_path, PREFIX)
    assert before - {p.name for p in tmp_path.iterdir()} == {left.name}
    assert all((path / LOCK).exists() for path in kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_folders_of_others_stay(tmp_path: Path) -> None:
    left = _left_by_the_dead(tmp_path)
    os.chown(left, 12345, 12345)
    sweep(tmp_path, PREFIX)
    assert left.exists()


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot make a temporary folder in '.*nowhere': No such file") as caught:
        make_folder(tmp_path / "nowhere", PREFIX)
    assert "TMPDIR" in caught.value.hint
    sweep(tmp_path / "nowhere", PREFIX)
