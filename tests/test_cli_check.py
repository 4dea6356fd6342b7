"""``ioprobe check``, ``compare`` and ``rule`` from the outside: exit code, stdout and stderr of every ending."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest
from run_makers import loader_run, run_of

from ioprobe.run import Run, dumps
from ioprobe_cli.main import run as ioprobe

GOOD = "[host]\ncores = 8\naccelerators = 0\n[pipelines.train]\nnum_workers = 4\npersistent_workers = true\n"
BAD = "[host]\ncores = 8\n[pipelines.train]\nnum_workers = 0\nprefetch_factor = 2\n"
FACTORY = """
import torch, time
from torch.utils.data import DataLoader, TensorDataset
DATA = TensorDataset(torch.zeros(64, 4))
def make_loader(num_workers=0): return DataLoader(DATA, batch_size=8, num_workers=num_workers)
def restarts(): return DataLoader(list(range(64)), batch_size=8, num_workers=2)
def raises(): raise KeyError("no such file list")
def hangs(): time.sleep(600)
def nothing(): pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "IOPROBE_SELECT", "IOPROBE_CONFIG", "IOPROBE_HOST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".git").mkdir()
    return tmp_path


def write(text: str, name: str = "ioprobe.toml") -> str:
    Path(name).write_text(text)
    return name


def save(run: Run, name: str) -> str:
    Path(name).write_bytes(dumps(run))
    return name


def tar(name: str) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    with tarfile.open(name, "w") as file:
        file.addfile(tarfile.TarInfo("0.txt"))


def coupled(wait_s: float = 0.01) -> Run:
    return run_of(loader_run([wait_s] * 100, [0.03] * 100))


def test_a_good_config_is_0_and_a_bad_one_1(capsys: pytest.CaptureFixture[str]) -> None:
    write(GOOD)
    assert ioprobe(["check"]) == 0
    note, summary = capsys.readouterr().out.splitlines()
    assert summary.startswith("1 pipeline: 0 failed")
    assert note.startswith("note: 20 rules and budgets abstained for want of facts: format (4x), num_shards (3x), ")
    assert note.endswith(" others; --verbose lists them")
    assert ioprobe(["check", "-v"]) == 0
    assert "train: IO301 fewer-shards-than-workers abstained: not known: num_shards\n" in capsys.readouterr().out
    write(BAD)
    assert ioprobe(["check"]) == 1
    assert "ioprobe.toml:5:1: IO105" in capsys.readouterr().out
    assert ioprobe(["check", "--exit-zero"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pipelines.train\n", "Error: ioprobe.toml:1:17: "),
        ("[pipelines.train]\nnum_worker = 1\n", "unknown key 'num_worker'"),
        ("", "'ioprobe.toml' has no pipeline"),
        (GOOD + "host = 'a100'\n", "no table [hosts.a100]"),
        (GOOD + "ignore = ['IO999']\n", "no rule or prefix 'IO999'"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_line_and_2(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(text)
    assert ioprobe(["check"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) <= 2


def test_nothing_to_judge_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert ioprobe(["check"]) == 2
    assert "has no pipeline" in capsys.readouterr().err


def test_selection_comes_from_file_then_environment_then_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def codes(*flags: str) -> set[str]:
        ioprobe(["check", "--format", "json", *flags])
        return {o["name"] for o in json.loads(capsys.readouterr().out)["outcomes"] if o["status"] == "failed"}

    write("[check]\nselect = ['IO102']\n" + BAD)
    assert codes() == {"IO102"}
    monkeypatch.setenv("IOPROBE_SELECT", "IO105")
    assert codes() == {"IO105"}
    assert codes("--select", "IO1") == {"IO102", "IO105"}
    assert codes("--select", "IO1", "--ignore", "no-workers") == {"IO105"}


def test_ignores_of_each_kind_are_counted_with_their_reason(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "[host]\ncores = 8\n[check]\nper-pipeline = { 'v*' = ['IO102'] }\n"
        "[pipelines.train]\nnum_workers = 0  # ioprobe: ignore[IO102] tensors in memory\n"
        "[pipelines.val]\nnum_workers = 0\n[pipelines.test]\nnum_workers = 0\nignore = ['no-workers']\n"
    )
    assert ioprobe(["check", "--format", "json"]) == 0
    ignored = json.loads(capsys.readouterr().out)["ignored"]
    assert {(i["outcome"]["pipeline"], i["reason"]) for i in ignored} == {
        ("train", "tensors in memory"),
        ("val", "[check] per-pipeline 'v*'"),
        ("test", "[pipelines.test] ignore"),
    }


def test_reports_are_written_beside_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    write(BAD)
    assert ioprobe(["check", "--format", "junit", "-o", "j.xml", "--report", "sarif=s.sarif"]) == 1
    assert "IO105" in capsys.readouterr().out
    assert Path("j.xml").read_text().startswith("<?xml")
    assert json.loads(Path("s.sarif").read_text())["version"] == "2.1.0"
    assert ioprobe(["check", "--report", "pdf=x"]) == 2
    assert ioprobe(["check", "-o", "missing/x"]) == 2


def test_the_step_summary_is_appended_where_github_asks_for_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(BAD)
    Path("summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    assert ioprobe(["check", "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error file=ioprobe.toml,line=4,col=1,title=IO102")
    assert Path("summary.md").read_text().startswith("before\n### ioprobe check: failed\n")


def test_what_a_table_leaves_out_is_torchs_default_and_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    write("[host]\ncores = 8\naccelerators = 1\n[pipelines.train]\nbatch_size = 32\nprefetch_factor = 4\n")
    assert ioprobe(["check"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ioprobe.toml:")]
    assert lines == [
        "ioprobe.toml:4:1: IO102 no-workers [train]: num_workers = 0: nothing overlaps, every step waits for its whole "
        "batch (num_workers is not set: torch's default)",
        "ioprobe.toml:4:1: IO206 pin-missing [train]: pin_memory is off on a host with accelerators: copies cannot "
        "overlap with the step (pin_memory is not set: torch's default)",
        "ioprobe.toml:6:1: IO105 settings-without-workers [train]: prefetch_factor needs workers, but num_workers = 0 "
        "by default: torch raises ValueError",
    ]


def test_data_that_is_merely_named_has_no_settings_to_object_to(capsys: pytest.CaptureFixture[str]) -> None:
    tar("data/0.tar")
    assert ioprobe(["check", "data/*.tar", "--select", "IO102", "-v", "-q"]) == 0
    assert "IO102 no-workers abstained: not known: num_workers" in capsys.readouterr().out
    write("[pipelines.train]\ntarget = 'data/*.tar'\n")
    assert ioprobe(["check", "--select", "IO102", "-q"]) == 1


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("data/*.tar", "no dataset at '{here}/data/*.tar'"),
        ("data/train-{000..127}.tar", "no dataset at '{here}/data/train-{000..127}.tar'"),
        ("data/train.parquet", "no dataset at '{here}/data/train.parquet'"),
        ("there/*.tar", "no file matches '{here}/there/*.tar'"),
        ("there/{0..3}.tar", "cannot read '{here}/there/0.tar': no such file or object"),
        ("train.py", "is Python code, and no function is named (name the factory: {here}/train.py:make_loader)"),
        ("train.py:make_loader", "no such file '{here}/train.py'"),
        ("nowhere.data:make_loader", "no module 'nowhere.data'"),
        ("json.nowhere:make_loader", "no module 'json.nowhere'"),
    ],
)
@pytest.mark.parametrize("table", ["num_workers = 4", "batch_size = 8"])
def test_a_target_that_is_not_there_is_one_line_and_2(
    target: str, message: str, table: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there").mkdir()
    write(f"[host]\ncores = 8\n[pipelines.train]\ntarget = '{target}'\n{table}\n")
    assert ioprobe(["check", "-q"]) == 2
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")]
    assert message.replace("{here}", str(here)) in line
    assert ioprobe(["check", "-q", "--no-load"]) in (0, 1)


def test_data_of_another_machine_is_judged_by_what_its_table_says_and_that_is_noted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(GOOD + "target = '/mnt/elsewhere/{000..127}.tar'\nnum_shards = 3\n")
    assert ioprobe(["check"]) == 1
    out = capsys.readouterr().out
    assert "IO301 fewer-shards-than-workers [train]: 3 shards for 4 readers" in out
    assert "note: train: the dataset '/mnt/elsewhere/{000..127}.tar' is not on this machine; judged by what" in out


def test_a_config_for_another_host_is_judged_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "[hosts.small]\ncores = 2\nstorage = 'nvme'\n[hosts.big]\ncores = 64\nstorage = 'nvme'\n"
        "[pipelines.train]\nnum_workers = 8\npersistent_workers = true\n"
    )
    assert ioprobe(["check", "--host", "big", "-v"]) == 0
    assert "train: [hosts.big]: 64 cores" in capsys.readouterr().out
    assert ioprobe(["check", "--host", "small"]) == 1


def test_budgets_over_a_saved_run_pass_fail_or_are_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    run = save(coupled(), "run.json")
    write(GOOD.replace("num_workers = 4", "num_workers = 2") + "[budgets]\nstall_share = '30%'\n")
    assert ioprobe(["check", "--run", run]) == 0
    write(GOOD.replace("num_workers = 4", "num_workers = 2") + "[budgets]\nstall_share = '20%'\n")
    assert ioprobe(["check", "--run", run]) == 1
    assert "ioprobe.toml:8:1: stall_share [train]: stall_share is 25.0%" in capsys.readouterr().out
    write(GOOD.replace("num_workers = 4", "num_workers = 2") + "[budgets]\nmemory = '1GiB'\n")
    assert ioprobe(["check", "--run", run]) == 2
    assert ioprobe(["check", "--run", run, "--undecided", "pass"]) == 0


def test_a_run_is_judged_as_the_pipeline_with_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    two = "[pipelines.train]\nnum_workers = 2\ntarget = 'train.py:make'\n[pipelines.val]\nnum_workers = 2\n"
    write(two + "target = 'val.py:make'\n[host]\ncores = 8\naccelerators = 0\n[budgets]\nstall_share = '20%'\n")
    run = coupled()
    for spelled in ("val.py:make", "./val.py:make", str(Path("val.py:make").resolve())):
        run.workload = msgspec.structs.replace(run.workload, target=spelled)
        assert ioprobe(["check", "--run", save(run, "val.json")]) == 1
        assert "stall_share [val]" in capsys.readouterr().out
    run.workload = msgspec.structs.replace(run.workload, target="other.py:make")
    assert ioprobe(["check", "--run", save(run, "other.json")]) == 2
    out, err = capsys.readouterr()
    assert "none of train, val has its target 'other.py:make'" in err
    assert "--pipeline" in err
    assert not out
    assert ioprobe(["check", "--run", "other.json", "--pipeline", "train"]) == 1


def test_a_run_of_a_newer_schema_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    write(GOOD)
    Path("run.json").write_text('{"schema": 99}')
    assert ioprobe(["check", "--run", "run.json"]) == 2
    assert "has schema 99" in capsys.readouterr().err


def test_a_baseline_fails_what_became_slower(capsys: pytest.CaptureFixture[str]) -> None:
    write(GOOD)
    base, new = save(coupled(0.001), "base.json"), save(coupled(0.02), "new.json")
    assert ioprobe(["check", "--run", new, "--baseline", base, "--select", "IO501"]) == 1
    assert "baseline:samples_per_s" in capsys.readouterr().out
    assert ioprobe(["check", "--run", base, "--baseline", base, "--select", "IO501"]) == 0


def test_a_factory_is_built_but_not_iterated(capsys: pytest.CaptureFixture[str]) -> None:
    write(FACTORY, "train.py")
    assert ioprobe(["check", "train.py:restarts", "--format", "json"]) == 1
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert {o["name"] for o in data["outcomes"] if o["status"] == "failed"} == {"IO103"}
    assert data["pipelines"][0]["known"]["num_workers"] == "loader"
    assert "building the loader of train.py:restarts" in err
    assert ioprobe(["check", "train.py:make_loader", "-q"]) == 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "KeyError: 'no such file list' (train.py:7)"),
        ("hangs", "did not return within 3 s"),
        ("nothing", "returned nothing; expected a DataLoader"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_a_factory_that_fails_is_one_line_and_2(
    function: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(FACTORY, "train.py")
    # Long enough to import torch on a busy machine, unless it is the hang that is wanted.
    limit = "3" if function == "hangs" else "60"
    assert ioprobe(["check", f"train.py:{function}", "--load-timeout", limit]) == 2
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")]
    assert message in line.replace(f"{here}/", "")


def test_a_dataset_is_listed_and_its_shards_counted(capsys: pytest.CaptureFixture[str]) -> None:
    for shard in range(9):
        tar(f"data/{shard}.tar")
    write("[host]\ncores = 8\n[pipelines.train]\ntarget = 'data/*.tar'\nnum_workers = 4\npersistent_workers = true\n")
    assert ioprobe(["check", "-q"]) == 1
    assert "IO302 shards-do-not-divide [train]: 9 shards over 4 readers" in capsys.readouterr().out
    assert ioprobe(["check", "-q", "--no-load"]) == 0


def test_a_store_that_cannot_be_reached_is_2_within_the_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    # Port 9 of loopback: refused at once, or dropped until the time-out ends it.
    assert ioprobe(["check", "http://127.0.0.1:9/train-{000..003}.tar", "--load-timeout", "20", "-q"]) == 2
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")]
    assert "http://127.0.0.1:9/" in line


def test_static_checks_import_neither_torch_nor_pyarrow() -> None:
    write(GOOD)
    code = (
        "import sys; from ioprobe_cli.main import run; assert run(['check']) == 0;"
        "bad = {'torch', 'pyarrow', 'scipy'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_compare_has_the_three_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    base, slow = save(coupled(0.001), "base.json"), save(coupled(0.02), "slow.json")
    assert ioprobe(["compare", base, base]) == 0
    assert capsys.readouterr().out.endswith("no change: both are the same run\n")
    assert ioprobe(["compare", base, slow, "--format", "md"]) == 1
    assert capsys.readouterr().out.startswith("### ioprobe compare: slower")
    assert ioprobe(["compare", base, "missing.json"]) == 2
    other = coupled()
    other = Run(**{**{f: getattr(other, f) for f in other.__struct_fields__}, "world_size": 8})
    unlike = save(other, "unlike.json")
    assert ioprobe(["compare", base, unlike]) == 2
    assert "ranks: 1 -> 8" in capsys.readouterr().err
    assert ioprobe(["compare", base, base, "--noise", "0.01", "--format", "json"]) == 0
    assert ioprobe(["compare", base, "train.py:make_loader"]) == 2


def test_rules_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert ioprobe(["rule"]) == 0
    assert "  IO301  fewer-shards-than-workers" in capsys.readouterr().out
    assert ioprobe(["rule", "IO102"]) == 0
    out = capsys.readouterr().out
    for title in ("What it sees:", "Why it matters:", "When it is wrong:", "Example:"):
        assert title in out
    assert ioprobe(["rule", "fewer-shards-than-workers", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["code"] == "IO301"
    assert ioprobe(["rule", "IO999"]) == 2
    said = capsys.readouterr().err
    assert "no rule or prefix 'IO999'" in said
    assert "did you mean" not in said  # nothing is like it


def test_pytest_makes_a_test_of_each_pipeline() -> None:
    write("[host]\ncores = 8\n[pipelines.good]\nnum_workers = 2\npersistent_workers = true\n" + BAD.partition("\n[")[2]
          .replace("pipelines.train", "[pipelines.bad").replace("[[", "["))  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q",
         "--ioprobe-check", "ioprobe.toml"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "IO105 settings-without-workers [bad]" in done.stdout
    assert "Traceback" not in done.stdout


def test_credentials_of_a_dataset_are_not_shown_and_datasets_alike_but_for_them_stay_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = [f"http://{user}:hidden@127.0.0.1:9/x.tar?token=hidden" for user in ("a", "b")]
    ioprobe(["check", "--no-load", "--format", "json", *places])
    shown = "".join(capsys.readouterr())
    assert shown.count('"target": "http://127.0.0.1:9/x.tar"') == 2
    assert "hidden" not in shown
