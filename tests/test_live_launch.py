"""The user's own job under the probe: what travels into it, what comes back, and that it stays what it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ioprobe.analysis import report_from_run
from ioprobe.diagnosis.types import Verdict
from ioprobe.errors import TargetError, UsageError
from ioprobe.live.launch import Launch, launch, private_folder

TRAIN = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)
torch.set_num_threads(1)

class Squares(Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return torch.randn(8), torch.tensor(i % 3)

def main():
    train_loader = DataLoader(Squares(96), batch_size=4, shuffle=True, num_workers=int(os.environ.get("WORKERS", "1")))
    val_loader = DataLoader(Squares(24), batch_size=4)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(2):
        for x, y in train_loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item().hex())
        with torch.no_grad():
            for x, y in val_loader:
                model(x)
    print(" ".join(losses), torch.rand(1).item().hex(), len(losses))
    sys.exit(int(os.environ.get("CODE", "0")))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


@pytest.mark.parametrize("workers", [0, 1])
def test_the_job_is_the_same_with_and_without(
    script: Callable[[str], str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("WORKERS", str(workers))
    path = script(TRAIN)
    bare = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    ended = launch(Launch((sys.executable, path)))
    assert ended.exit_code == 0
    assert capfd.readouterr().out == bare.stdout
    run = ended.run
    names = {m.name: m for m in run.loaders}
    assert set(names) == {"train", "validation"}
    assert names["train"].variable == "train_loader"
    assert names["validation"].variable == "val_loader"
    assert len(names["train"].main.call_s) == 48
    assert len(names["validation"].main.call_s) == 12
    assert names["train"].main.samples == [4] * 48
    assert names["train"].main.epoch == [0] * 24 + [1] * 24
    assert run.loop() is names["train"]
    assert names["train"].settings is not None
    assert names["train"].settings.num_workers == workers
    assert names["train"].workers is not None
    assert len(names["train"].workers.worker) == 48
    assert run.step is not None
    assert run.step.coupled
    report = report_from_run(run)
    assert report.diagnosis.loop_samples_per_s is not None


def test_the_exit_code_is_the_jobs(script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE", "3")
    monkeypatch.setenv("WORKERS", "0")
    ended = launch(Launch((sys.executable, script(TRAIN))))
    assert ended.exit_code == 3
    assert not ended.run.complete
    assert ended.run.failures[0].message == "the job ended with exit code 3"
    assert len(ended.run.loaders[-1].main.call_s) == 48


def test_hooks_travel_through_a_shell_and_chain_the_users_sitecustomize(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import os; open(os.environ['MARK'], 'a').write('x')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    monkeypatch.setenv("WORKERS", "0")
    path = script(TRAIN)
    ended = launch(Launch(("sh", "-c", f"cd / && exec {sys.executable} {path} > {tmp_path}/out")))
    assert (tmp_path / "mark").read_text() == "x"
    assert len(ended.run.loaders[-1].main.call_s) == 48


def test_cached_and_drained_phases_give_the_ladders_rungs_and_the_job_stops(script: Callable[[str], str]) -> None:
    ended = launch(
        Launch((sys.executable, script(TRAIN)), phases=("observe", "cached", "drain"), steps=12, then="stop")
    )
    assert ended.exit_code == 0
    run = ended.run
    assert run.complete
    assert run.step is not None
    assert not run.step.coupled
    assert len(run.step.durations_s) + len(run.step.warmup_s) == 12
    alone = run.loader_alone()
    assert alone is not None
    assert len(alone.main.call_s) == 12
    loop = run.loop()
    assert loop is not None
    assert len(loop.main.call_s) == 12
    rungs = {r.stage.value for r in report_from_run(run).diagnosis.ladder if r.samples_per_s is not None}
    assert {"loader", "step", "loop"} <= rungs


def test_what_a_spawned_worker_imports_counts_as_its_start(script: Callable[[str], str]) -> None:
    spawned = TRAIN.replace("num_workers=", "multiprocessing_context='spawn', num_workers=")
    ended = launch(Launch((sys.executable, script(f"import time\ntime.sleep(0.25)\n{spawned}"))))
    starts = next(m for m in ended.run.loaders if m.name == "train").worker_init_s
    assert len(starts) == 2  # one worker, two epochs
    assert min(starts) > 0.25


def test_a_job_without_a_dataloader_is_judged_by_its_stacks(script: Callable[[str], str]) -> None:
    path = script(
        """
        import time, torch, zlib, os
        data = zlib.compress(os.urandom(300_000))
        def get_batch():
            return [zlib.decompress(data) for _ in range(50)]
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            get_batch()
        """
    )
    run = launch(Launch((sys.executable, path), stacks_hz=50.0)).run
    assert [c.code for c in run.caveats] == ["no-dataloader"]
    report = report_from_run(run)
    assert report.diagnosis.verdict is Verdict.DATA_BOUND
    assert report.diagnosis.stall_share.measured is not None


def test_a_job_without_python_says_that_nothing_was_seen() -> None:
    ended = launch(Launch(("true",)))
    assert ended.exit_code == 0
    assert [c.code for c in ended.run.caveats] == ["nothing-seen"]
    assert report_from_run(ended.run).diagnosis.verdict is Verdict.UNDECIDED


def test_the_late_rank_is_named_and_its_cost_given(script: Callable[[str], str]) -> None:
    path = script(
        """
        import time, torch, torch.distributed as dist
        from torch.utils.data import DataLoader, Dataset
        dist.init_process_group("gloo")
        torch.set_num_threads(1)
        class Slow(Dataset):
            def __len__(self): return 160
            def __getitem__(self, i):
                time.sleep(0.005 if dist.get_rank() == 1 else 0)
                return torch.ones(4)
        w = torch.zeros(4, requires_grad=True)
        for x in DataLoader(Slow(), batch_size=4):
            (w * x).sum().backward()
            dist.all_reduce(w.grad)
        dist.destroy_process_group()
        """
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ended = launch(Launch((*torchrun, path)))
    assert ended.exit_code == 0
    report = report_from_run(ended.run)
    assert [r.rank for r in report.ranks] == [0, 1]
    assert [r.late for r in report.ranks] == [False, True]
    assert report.diagnosis.reasons[0].startswith("rank 1 is late: each other rank waits")
    assert report.diagnosis.verdict in (Verdict.DATA_BOUND, Verdict.MISCONFIGURED)


WAITS = """
import signal, sys, time, torch
from torch.utils.data import DataLoader
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
signal.signal(signal.SIGINT, lambda *_: sys.exit(6))
def batches():
    for k in range(10_000):
        for x in DataLoader(list(range(64)), batch_size=8):
            yield x
for k, x in enumerate(batches()):
    if k == 40:
        open(sys.argv[1], "w").close()
    time.sleep(0.005)
"""


def _driver(command: tuple[str, ...], mark: Path, out: Path) -> subprocess.Popen[bytes]:
    """Return an ioprobe whose job has made the mark."""
    code = (
        "import sys\nfrom ioprobe.live.launch import Launch, launch\nfrom ioprobe.run import dumps\n"
        f"ended = launch(Launch({command!r}))\n"
        f"open({str(out)!r}, 'wb').write(dumps(ended.run))\nsys.exit(ended.exit_code)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 60
    while not mark.exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 5), (signal.SIGINT, 6), (signal.SIGTERM, 143)])
def test_signals_reach_the_job(script: Callable[[str], str], tmp_path: Path, number: signal.Signals, code: int) -> None:
    mark = tmp_path / "mark"
    process = _driver((sys.executable, script(WAITS), str(mark)), mark, tmp_path / "run.json")
    process.send_signal(number)
    assert process.wait(30) == code
    assert json.loads((tmp_path / "run.json").read_bytes())["loaders"]


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_the_job_outlives_ioprobe_with_its_own_exit_code_and_tidies_up(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mark, code = tmp_path / "mark", tmp_path / "code"
    shell = f"{sys.executable} {script(WAITS)} {mark}; echo $? > {code}.part; mv {code}.part {code}"
    process = _driver(("sh", "-c", shell), mark, tmp_path / "run.json")
    job = _child(_child(process.pid))
    assert list(tmp_path.glob("ioprobe-run-*"))
    process.kill()
    process.wait(10)
    os.kill(job, signal.SIGUSR1)  # it lives, and answers by its own handler
    end = time.monotonic() + 30
    while list(tmp_path.glob("ioprobe-run-*")) or not code.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert code.read_text() == "5\n"


def test_folders_of_dead_jobs_are_swept_and_those_in_use_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, orphaned = tmp_path / "ioprobe-run-deadbeef", tmp_path / "ioprobe-run-00000001"
    for folder in (dead, orphaned):
        folder.mkdir()
        (folder / "lock").touch()
    (orphaned / f"{os.getpid()}-1.rec").touch()  # ioprobe is gone, a process of the job is not
    with private_folder() as mine:
        assert not dead.exists()
        assert mine.stat().st_mode & 0o777 == 0o700
        with private_folder():
            assert mine.exists()
    assert not mine.exists()
    assert orphaned.exists()


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="no command"):
        Launch(())
    with pytest.raises(UsageError, match="no such phase 'obsreve'"):
        Launch(("true",), phases=("obsreve",))
    with pytest.raises(UsageError, match="lack 'observe'"):
        Launch(("true",), phases=("drain",))
    with pytest.raises(TargetError, match="cannot start 'no-such-program'"):
        launch(Launch(("no-such-program",)))
