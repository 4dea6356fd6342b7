"""A user without rights: not root, no right to trace others, a home that nobody may write to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"),
]

NOBODY = 65534
# It may search and read everything, so that interpreter and checkout may lie anywhere; nothing else is left of root.
RIGHTS = "-all,+dac_read_search"
DROP = [
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}", f"--bounding-set={RIGHTS}",
]  # fmt: skip
TRAIN = Path(__file__).parents[1] / "fixtures" / "profiles" / "train.py"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory of that user's, beside a home and a folder that belong to root."""
    for name in ("work", "home", "roots"):
        (tmp_path / name).mkdir(mode=0o755)
    os.chown(tmp_path / "work", NOBODY, NOBODY)
    return tmp_path


def run(place: Path, *words: str, where: str = "work") -> subprocess.CompletedProcess[str]:
    """Run ``ioprobe`` as that user."""
    return subprocess.run(
        [*DROP, sys.executable, "-m", "ioprobe_cli", *words],
        cwd=place / where, env=_environment(place), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def _environment(place: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return kept | {"HOME": str(place / "home"), "TMPDIR": "/tmp"}


@pytest.fixture(params=["own", "of root"])
def job(place: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A running job, of that user or of root."""
    command = [*(DROP if request.param == "own" else []), sys.executable, str(TRAIN), "60", "10", "1"]
    process = subprocess.Popen(command, cwd=place / "work", env=_environment(place), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield request.param, process.pid
    finally:
        process.terminate()
        process.communicate()


def test_doctor_names_what_the_user_lacks(place: Path) -> None:
    """The home is a finding; the missing right to trace is told, and is none while the kernel allows own jobs."""
    done = run(place, "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the home cannot be written" in done.stdout
    assert "the process lacks CAP_SYS_PTRACE" in done.stdout


def test_a_verdict_needs_no_rights_and_no_home(place: Path) -> None:
    """The default job: it synthesizes, measures, and writes only below the working directory."""
    done = run(place, "analyze", "--seconds", "5", "--no-verify", "--format", "json", "-q", "-o", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["diagnosis"]["verdict"] != "undecided"
    assert list((place / "home").iterdir()) == []


def test_a_working_directory_that_cannot_be_written_is_named(place: Path) -> None:
    """In one line, with exit code 2, before anything is measured."""
    done = run(place, "analyze", "--seconds", "5", "-q", where="roots")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_own_jobs_can_be_watched_and_those_of_others_are_named(place: Path, job: tuple[str, int]) -> None:
    """What another user's job needs is said, and without stacks it is judged all the same."""
    whose, pid = job
    done = run(place, "attach", str(pid), "--duration", "2s", "--format", "json", "-q", "-o", "out")
    if whose == "own":
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["diagnosis"]["verdict"]
        return
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: cannot look into process {pid}: it belongs to user 0")
    assert "--no-stacks" in done.stderr
    bare = run(place, "attach", str(pid), "--no-stacks", "--duration", "2s", "--format", "json", "-q", "-o", "bare")
    assert bare.returncode == 0, bare.stderr
