"""What breaks in the world while ioprobe measures: named in one line, the rest kept, nothing left behind."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ioprobe.probe.failures import failure_of
from ioprobe.run import load
from ioprobe_cli import progress as progress_module
from ioprobe_cli.main import run

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "fixtures" / "pipelines" / "faults.py"
LIMITS = pytest.mark.skipif(os.geteuid() != 0, reason="setting limits for others needs root")


def _analyze(name: str, *more: str) -> list[str]:
    return [
        "analyze",
        f"{FAULTS}:{name}",
        "--step",
        f"{FAULTS}:step",
        "--seconds",
        "3",
        "--no-verify",
        "-o",
        "out",
        *more,
    ]


def _listening() -> set[str]:
    """Return the addresses at which this process and its children listen."""
    found = set()
    for process in [psutil.Process(), *_children("")]:
        with contextlib.suppress(psutil.Error):
            found |= {str(c.laddr) for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return found


def _children(words: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if words in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _at_phase(monkeypatch: pytest.MonkeyPatch, words: str, act: object) -> None:
    """Do something once, when progress says these words and the measurement is under way."""
    seen: list[str] = []

    def watch(self: object, text: str, done_s: float, of_s: float) -> None:
        if words in text and done_s > 0.3 and not seen:
            seen.append(text)
            act()  # type: ignore[operator]

    monkeypatch.setattr(progress_module.Progress, "__call__", watch)


def test_kill_9_of_the_measuring_process_costs_a_note_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    workers: list[psutil.Process] = []

    def kill() -> None:
        (child,) = [p for p in _children("ioprobe.probe.child") if p.ppid() == os.getpid()]
        workers.extend(child.children(recursive=True))
        child.kill()

    _at_phase(monkeypatch, "coupled", kill)
    code = run(_analyze("healthy", "--format", "json"))
    captured = capsys.readouterr()
    assert code == 0
    found = json.loads(captured.out)
    (note,) = [c["text"] for c in found["caveats"] if c["code"] == "process-killed"]
    assert "the process that runs your loader was ended by SIGKILL" in note
    assert "the kernel ended none for want of memory" in note
    assert found["diagnosis"]["verdict"] != "misconfigured"
    assert "SIGKILL" not in found["diagnosis"]["evidence"]
    assert {m.failure for m in load("out").loaders} == {None}
    assert len(workers) >= 2
    _, alive = psutil.wait_procs(workers, 10)
    assert alive == []
    assert [p.name for p in Path("/dev/shm").iterdir() if any(f"torch_{w.pid}_" in p.name for w in workers)] == []


def test_nothing_listens_while_it_measures_and_temporary_files_are_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setattr("tempfile.tempdir", None)
    modes: list[int] = []
    before, listening = _listening(), set[str]()  # servers of other tests in this process are not meant

    def look() -> None:
        listening.update(_listening() - before)
        modes.extend(p.stat().st_mode & 0o077 for p in (tmp_path / "t").iterdir())

    _at_phase(monkeypatch, "the loader alone", look)
    assert run(["loader", f"{FAULTS}:healthy", "--seconds", "3", "-o", "out"]) == 0
    assert listening == set()
    assert set(modes) <= {0}
    capsys.readouterr()


def test_a_worker_that_cannot_have_memory_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import resource

    monkeypatch.chdir(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (7 << 30, before[1]))
    try:
        code = run(_analyze("worker_out_of_memory"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    err = capsys.readouterr().err
    assert code == 2
    assert "MemoryError" in err
    assert "faults.py:" in err
    assert "Traceback" not in err


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A memory cgroup of 700 MiB, of either version."""
    first = Path("/sys/fs/cgroup/memory")
    home = first if first.is_dir() else Path("/sys/fs/cgroup")
    place = home / f"ioprobe-test-{os.getpid()}"
    try:
        place.mkdir()
        limit = place / ("memory.limit_in_bytes" if home is first else "memory.max")
        limit.write_text(str(700 << 20))
        with contextlib.suppress(OSError):
            (place / ("memory.memsw.limit_in_bytes" if home is first else "memory.swap.max")).write_text(
                str(700 << 20) if home is first else "0"
            )
    except OSError as error:
        with contextlib.suppress(OSError):
            place.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield place
    for _ in range(200):
        try:
            place.rmdir()
            break
        except OSError:
            time.sleep(0.02)


@LIMITS
@pytest.mark.root
def test_a_worker_that_the_kernel_ends_for_memory_is_a_verdict_about_memory(
    tmp_path: Path, memory_cgroup: Path
) -> None:
    code = f"""
import os, sys
open({str(memory_cgroup / "cgroup.procs")!r}, "w").write(str(os.getpid()))
from ioprobe_cli.main import main
main({_analyze("worker_fills_memory", "--format", "json")!r})
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    if ended.returncode == -signal.SIGKILL:
        pytest.skip("the kernel chose ioprobe itself")
    found = json.loads(ended.stdout)
    assert found["diagnosis"]["verdict"] == "misconfigured", ended.stderr
    assert ended.returncode == 0
    assert "killed" in found["diagnosis"]["evidence"]
    assert load(tmp_path / "out").loaders[0].failure is not None


def _in_own_mounts(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script whose mounts nobody else sees; skips where that is not allowed."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts of one's own are not allowed here")
    words = ["unshare", "-m", "sh", "-euc", script]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@LIMITS
@pytest.mark.root
def test_a_full_shared_memory_is_a_verdict_about_it(tmp_path: Path) -> None:
    command = " ".join([sys.executable, "-m", "ioprobe_cli", *_analyze("large_batches", "--format", "json")])
    ended = _in_own_mounts(tmp_path, f"mount -t tmpfs -o size=4m tmpfs /dev/shm; {command}")
    found = json.loads(ended.stdout)
    assert found["diagnosis"]["verdict"] == "misconfigured", ended.stderr
    assert ended.returncode == 0
    assert "shared memory" in found["diagnosis"]["evidence"]
    assert "Traceback" not in ended.stderr


@LIMITS
@pytest.mark.root
@pytest.mark.parametrize(("size", "measured"), [("64k", False), ("136k", True)])
def test_a_full_disk_is_told_before_measuring_and_one_that_fills_up_costs_no_report(
    tmp_path: Path, size: str, measured: bool
) -> None:
    (tmp_path / "out").mkdir()
    command = f"{sys.executable} -m ioprobe_cli loader {FAULTS}:healthy --seconds 3 -o out/run"
    script = (
        f"mount -t tmpfs -o size={size} tmpfs out; head -c 61440 /dev/zero > out/full; {command} && exit 9 || code=$?; "
    )
    ended = _in_own_mounts(tmp_path, script + "ls -A out/run >&2; exit $code")
    assert ended.returncode == 2
    assert ("Ladder" in ended.stdout) == measured
    assert f"Error: cannot write {'' if measured else 'to '}'out/run" in ended.stderr
    assert "No space left on device" in ended.stderr
    assert ".tmp" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_storage_that_pauses_and_goes_on_is_measured_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["loader", f"{FAULTS}:storage_pauses", "--seconds", "8", "--timeout", "10", "-o", "out"]) == 0
    (found,) = [m for m in load("out").loaders if m.purpose == "baseline"]
    assert found.failure is None
    assert max(found.main.wait_s) > 1.9
    capsys.readouterr()


def test_a_loader_that_gives_next_to_nothing_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["loader", f"{FAULTS}:one_batch", "--seconds", "2", "-o", "out"]) == 2
    assert "Error: the loader gave too few batches to be measured: 1\n" in capsys.readouterr().err


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    words = ["--samples", "100", "--shard-size", "2", "--image-size", "32", "--quiet"]
    assert run(["synth", "ds", *words]) == 0
    return tmp_path / "ds"


def test_one_damaged_shard_in_fifty_is_named_and_what_was_measured_before_is_kept(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = shards / "shard-000037.tar"
    data = bytearray(bad.read_bytes())
    data[512:1024] = bytes(512)  # the beginning of an image, which no header tells
    bad.write_bytes(data)
    code = run(["loader", "ds", "--num-workers", "1", "--batch-size", "4", "--seconds", "3", "-o", "out"])
    err = capsys.readouterr().err
    assert code == 2
    assert "shard-000037.tar" in err
    assert "Traceback" not in err
    failure = load("out").loaders[0].failure
    assert failure is not None
    assert "sample '000000074'" in failure.message
    assert len(load("out").loaders[0].main.call_s) == 18


def test_a_shard_that_vanishes_after_it_was_listed_is_named(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ioprobe.data.loaders import make_loader
    from ioprobe.errors import TargetError

    loader = make_loader("ds", batch_size=2, num_workers=0)
    (shards / "shard-000049.tar").unlink()
    with pytest.raises(TargetError, match=r"cannot read '.*shard-000049\.tar': no such file"):
        list(loader)


def test_a_shard_that_is_replaced_while_it_is_read_is_read_to_its_end_as_it_was(shards: Path) -> None:
    from ioprobe.data.loaders import make_loader

    loader = make_loader("ds/shard-000000.tar", batch_size=1, num_workers=0)
    whole = [batch["cls"].item() for batch in loader]
    batches = iter(loader)
    first = next(batches)["cls"].item()
    (shards / "shard-000001.tar").replace(shards / "shard-000000.tar")
    assert [first, *(batch["cls"].item() for batch in batches)] == whole


def test_a_parquet_file_that_is_replaced_by_a_smaller_one_is_an_error_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ioprobe.data.loaders import make_loader
    from ioprobe.errors import DataError

    monkeypatch.chdir(tmp_path)
    for name, samples in (("big", "64"), ("small", "4")):
        words = ["--format", "parquet", "--kind", "array", "--sample-bytes", "2000", "--row-group-size", "4", "--quiet"]
        assert run(["synth", name, "--samples", samples, "--shard-size", samples, *words]) == 0
    loader = make_loader("big", batch_size=4, num_workers=0)
    (big,), (small,) = Path("big").glob("*.parquet"), Path("small").glob("*.parquet")
    small.replace(big)
    with pytest.raises(DataError, match=r"row group \d+ of .*big"):
        list(loader)


def test_a_bus_error_names_both_things_that_may_have_shrunk() -> None:
    found = failure_of(RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error."), "loop")
    assert found.kind == "shared-memory"
    assert "/dev/shm" in found.hint
    assert "cut while it was mapped" in found.hint


def test_two_commands_in_one_directory_keep_their_runs_apart(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "ioprobe_cli", "loader", f"{FAULTS}:plain_list", "--seconds", "2"]
    both = [
        subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=90) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    runs = sorted((tmp_path / "ioprobe-runs").iterdir())
    assert len(runs) == 2
    for folder in runs:
        assert load(folder).complete
        assert sorted(p.name for p in folder.iterdir() if p.name != "target.log") == ["report.html", "run.json"]


# Clocks

_WALL_CLOCKS = {
    "time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.datetime.now", "datetime.datetime.utcnow",
    "date.today", "time.localtime", "time.gmtime", "time.ctime", "time.strftime",
}  # fmt: skip


def test_durations_come_from_clocks_that_never_jump() -> None:
    stamps = 0
    for path in [*(ROOT / "ioprobe").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _WALL_CLOCKS:
                line = path.read_text().splitlines()[node.lineno - 1]
                # A date for people, formatted where it is taken, so that nothing can be subtracted from it.
                assert 'isoformat(timespec="seconds")' in line, f"{path}:{node.lineno} reads a clock that jumps"
                stamps += 1
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert not {a.name for a in node.names} & {"time", "time_ns"}, f"{path}:{node.lineno}"
    assert stamps


def test_a_clock_that_jumps_by_a_year_changes_no_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data import DataLoader

    from ioprobe.probe.loop import LoopMeter

    now = iter(range(0, 10**9, 31_536_000))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    loader = DataLoader([float(i) for i in range(400)], batch_size=8)
    found = LoopMeter(loader, lambda batch: None, settings=None, seconds=0.5, least_s=0.1, stacks_hz=0).run()
    assert found.failure is None
    assert 0 < found.wall_s < 30
    assert all(0 <= w < 30 for w in found.main.wait_s)


def test_a_length_that_raises_ends_no_measurement() -> None:
    from ioprobe.instrument.facts import loader_facts
    from ioprobe.probe.loop import LoopMeter

    class Batches:
        asked = 0

        def __len__(self) -> int:
            Batches.asked += 1
            raise RuntimeError("the index is not loaded yet")

        def __iter__(self) -> Iterator[list[float]]:
            for _ in range(100_000):
                time.sleep(0.001)
                yield [0.0] * 4

    loader = Batches()
    assert loader_facts(loader).num_batches is None
    Batches.asked = 0
    found = LoopMeter(loader, None, settings=None, seconds=3.0, least_s=0.1, precision=0.9, stacks_hz=0).run()
    assert Batches.asked
    assert found.failure is None
    assert found.stopped_because == "interval"
