"""Jobs of every make under the probe: those that fork, crash or end themselves, and those with loaders of their own."""

from __future__ import annotations

import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ioprobe.analysis import report_from_run
from ioprobe.live.launch import Launch, launch
from ioprobe.run import Run

START = """
import os, signal, sys, threading, time, queue
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
weight = torch.zeros(1, requires_grad=True)
def step(batch): (weight * batch.float().mean()).sum().backward()
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Run, int]]]:
    """Returns a function that runs a script and returns (run, exit code)."""

    def start(text: str, *more: str) -> tuple[Run, int]:
        (tmp_path / "train.py").write_text(START + textwrap.dedent(text))
        ended = launch(Launch((sys.executable, *more, *([] if more else [str(tmp_path / "train.py")]))))
        report_from_run(ended.run)  # whatever was seen makes a report
        return ended.run, ended.exit_code

    # What killed jobs leave goes, too. A short path: sockets live below it, and their names may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="io") as short:
        monkeypatch.setenv("TMPDIR", short)
        yield start


def steps(run: Run, number: int = -1) -> int:
    return len(run.loaders[number].main.call_s)


CRASH = """
for k, batch in enumerate(DataLoader(list(range(800)), batch_size=4, num_workers=1)):
    step(batch)
    time.sleep(0.004)
    if k == 60:
        {how}
"""


@pytest.mark.parametrize(
    ("how", "code", "said", "fewest"),
    [
        ("raise ValueError('no luck')", 1, "the job ended with exit code 1", 60),
        ("os._exit(9)", 9, "the job ended with exit code 9", 20),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "the job was ended by SIGSEGV", 20),
        ("sys.exit(0)", 0, "", 60),
    ],
)
def test_a_job_that_ends_in_its_first_epoch_gives_what_was_seen(
    job: Callable[..., tuple[Run, int]], how: str, code: int, said: str, fewest: int
) -> None:
    run, ended = job(CRASH.format(how=how))
    assert ended == code
    assert [failure.message for failure in run.failures] == ([said] if said else [])
    assert run.complete == (code == 0)
    assert fewest <= steps(run) <= 60  # without its end, what was written last is missing


def test_a_worker_that_fails_ends_the_job_with_its_own_error(
    job: Callable[..., tuple[Run, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    run, code = job(
        """
        class Broken(Dataset):
            def __len__(self): return 400
            def __getitem__(self, i):
                if i == 300: raise KeyError("sample 300")
                return i
        for batch in DataLoader(Broken(), batch_size=4, num_workers=1):
            step(batch)
        """
    )
    assert code == 1
    assert "KeyError: Caught KeyError in DataLoader worker process 0." in capfd.readouterr().err
    assert steps(run) >= 74


def test_a_module_is_run_by_its_name(
    job: Callable[..., tuple[Run, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, code = job("for batch in DataLoader(list(range(80)), batch_size=4): step(batch)", "-m", "train")
    assert code == 0
    assert steps(run) == 20
    assert run.loaders[-1].variable == ""


def test_of_a_job_that_forks_the_process_with_most_batches_is_shown(job: Callable[..., tuple[Run, int]]) -> None:
    run, code = job(
        """
        for batch in DataLoader(list(range(40)), batch_size=4): step(batch)
        pid = os.fork()
        if pid == 0:
            for batch in DataLoader(list(range(400)), batch_size=4): step(batch)
            time.sleep(0.1)
            for batch in DataLoader(list(range(40)), batch_size=4): step(batch)
            os._exit(3)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert code == 3
    assert [caveat.code for caveat in run.caveats] == ["several-processes"]
    assert max(steps(run, k) for k in range(len(run.loaders))) >= 99


def test_subclasses_replacements_and_patches_of_the_loader_keep_their_say(
    job: Callable[..., tuple[Run, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    run, code = job(
        """
        import torch.utils.data as data
        from torch.utils.data import dataloader

        class Doubled(DataLoader):
            def __init__(self, values): super().__init__(values, batch_size=4, num_workers=1)
            def __iter__(self):
                for batch in super().__iter__():
                    yield 2 * batch
        data.DataLoader = Doubled  # as extensions do

        counted = []
        inner = dataloader._BaseDataLoaderIter.__next__
        def counting(self):
            batch = inner(self)
            counted.append(len(batch))
            return batch
        dataloader._BaseDataLoaderIter.__next__ = counting

        total = 0
        train_loader = data.DataLoader(list(range(80)))
        for batch in train_loader:
            step(batch)
            total += int(batch.sum())
        print(total, sum(counted))
        """
    )
    assert code == 0
    assert capfd.readouterr().out == f"{2 * sum(range(80))} 80\n"
    assert steps(run) == 20
    assert run.caveats == []


def test_a_loader_that_a_thread_of_the_job_reads_is_said(job: Callable[..., tuple[Run, int]]) -> None:
    run, code = job(
        """
        class Ahead(DataLoader):
            def __iter__(self):
                ready = queue.Queue(2)
                def fill():
                    for batch in DataLoader.__iter__(self): ready.put(batch)
                    ready.put(None)
                threading.Thread(target=fill, daemon=True).start()
                while (batch := ready.get()) is not None:
                    yield batch
        for batch in Ahead(list(range(400)), batch_size=4):
            step(batch)
            time.sleep(0.004)
        """
    )
    assert code == 0
    assert [caveat.code for caveat in run.caveats] == ["read-by-thread"]


def test_a_signal_that_ends_the_job_is_named(job: Callable[..., tuple[Run, int]]) -> None:
    run, code = job("os.kill(os.getpid(), signal.SIGTERM)")
    assert code == 128 + signal.SIGTERM
    assert run.failures[0].message == "the job was ended by SIGTERM"
