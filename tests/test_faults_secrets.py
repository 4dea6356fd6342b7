"""No credential reaches a report, a run file, a log, an error or the terminal, however it got in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ioprobe.secrets import hide, redact_words
from ioprobe_cli.main import run

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfi"
FACTORY = """
import os, sys, torch
from torch.utils.data import DataLoader

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        if i >= int(os.environ["FAILS_AT"]):
            raise ConnectionError(f"403 for key {os.environ['AWS_SECRET_ACCESS_KEY']} at "
                                  f"https://user:{os.environ['MY_PASSWORD']}@host/x?sig={os.environ['HF_TOKEN']}")
        return torch.zeros(4)

def make(token="", **options):
    print("using", os.environ["AWS_SECRET_ACCESS_KEY"], token)
    sys.stderr.write(f"https://user:{os.environ['MY_PASSWORD']}@host/\\n")
    return DataLoader(Data(), batch_size=4, **options)

def broken(token="", **options):
    raise ValueError(f"cannot log in with {os.environ['HF_TOKEN']}, {token} or {os.environ['MY_PASSWORD']}")
"""
VALUES = {"AWS_SECRET_ACCESS_KEY": SECRET, "HF_TOKEN": "hf_abcdefghijklmnop", "MY_PASSWORD": "hunter2-hunter2"}
TYPED = "typed-on-the-command-line"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "make.py").write_text(FACTORY)
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FAILS_AT", "40")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _told(place: Path, ended: subprocess.CompletedProcess[str]) -> dict[str, str]:
    told = {p.name: p.read_text(errors="replace") for p in place.rglob("*") if p.is_file() and p.suffix != ".py"}
    return {p: t for p, t in told.items() if "__pycache__" not in p} | {"stdout": ended.stdout, "stderr": ended.stderr}


@pytest.mark.parametrize("words", [
    ["analyze", "make.py:make", "--step-ms", "1", "--num-workers", "1", "--seconds", "2", "--set", f"token={TYPED}"],
    ["loader", "make.py:broken", "--seconds", "2", "--set", f"token={TYPED}"],
], ids=["worker", "factory"])  # fmt: skip
def test_a_measurement_that_fails_with_credentials_in_its_message_shows_none(place: Path, words: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ioprobe_cli", *words, "-o", "out"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    told = _told(place, ended)
    assert "ConnectionError: 403 for key ***" in ended.stderr or "cannot log in with ***, *** or ***" in ended.stderr
    for name, text in told.items():
        for secret in (*VALUES.values(), TYPED):
            assert secret not in text, f"{name} shows {secret}"
    if words[0] == "analyze":
        assert "using ***" in told["target.log"]


def test_a_job_s_command_line_is_kept_without_its_credentials(place: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ioprobe_cli", "run", "-q", "-o", "out", "--",
         sys.executable, "-c", "pass", f"--api-key={TYPED}", "--password", TYPED, f"DB_PASSWORD={TYPED}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (place / "out" / "run.json").exists(), ended.stderr
    for name, text in _told(place, ended).items():
        assert TYPED not in text, name


@pytest.mark.parametrize(
    "words",
    [
        ["storage", "s3://nowhere-at-all/x.tar", "--storage-option", f"secret={TYPED}", "--seconds", "1",
         "--storage-option", "endpoint_url=http://127.0.0.1:1"],
        ["storage", "s3://nowhere-at-all/x.tar", "--storage-option", TYPED],
        ["storage", "memory://none", "--storage-option", f"password={TYPED}"],
        ["storage", f"https://user:{TYPED}@127.0.0.1:1/x.tar?sig={TYPED}", "--seconds", "1"],
        ["check", f"s3://user:{TYPED}@b/x.tar?sig={TYPED}", "--load-timeout", "1"],
        ["synth", f"nosuch://user:{TYPED}@h/x"],
        ["analyze", f"nosuch://user:{TYPED}@h/x", "--step-ms", "1"],
        ["report", f"https://user:{TYPED}@h/run.json"],
        ["predict", f"https://user:{TYPED}@h/run.json?token={TYPED}"],
        ["compare", f"https://user:{TYPED}@h/run.json", f"https://user:{TYPED}@h/run.json"],
        ["profile", f"https://user:{TYPED}@h/trace.json"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_command_that_fails_repeats_no_credential_of_its_words(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(words) in (1, 2)
    told = capsys.readouterr()
    assert TYPED not in told.out + told.err
    for path in place.rglob("*"):
        assert TYPED not in path.name
        assert not path.is_file() or TYPED not in path.read_text(errors="replace")


def test_values_of_variables_that_hold_credentials_are_hidden() -> None:
    environment = {"AWS_SECRET_ACCESS_KEY": "s3cr3tvalue", "WANDB_API_KEY": "wandbvalue", "HOME": "/root/home",
                   "PASSWORD": "ab",
                   "TOKENIZERS_PARALLELISM": "false-or-true", "TOKEN_FILE": "/var/run/token"}  # fmt: skip
    assert hide("s3cr3tvalue wandbvalue /root/home ab", environment) == "*** *** /root/home ab"
    assert hide("false-or-true /var/run/token", environment) == "false-or-true /var/run/token"
    assert hide("https://u:p@h/x?sig=1", {}) == "https://h/x"


def test_words_of_a_command_line_are_kept_but_for_credentials() -> None:
    words = ["train.py", "--set", "lr=0.1", "--storage-option", "secret=x y", "--token", "abc", "--max-tokens", "5",
             "--tokenizer=gpt2", "API_KEY=abc", "--hf-token=abc", "s3://k:s@b/x"]  # fmt: skip
    assert redact_words(words) == [
        "train.py", "--set", "lr=0.1", "--storage-option", "secret=***", "--token", "***", "--max-tokens", "5",
        "--tokenizer=gpt2", "API_KEY=***", "--hf-token=***", "s3://b/x",
    ]  # fmt: skip
