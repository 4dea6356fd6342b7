"""Run files and configurations that were edited, cut or garbled: used, or refused in one line, and shown as text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hostile import WORDS, changed, command, damaged, fuzz, refused_or_read
from hypothesis import given
from hypothesis import strategies as st
from made_runs import make_run, stacks, worker_batches
from made_tunings import tuning

from ioprobe.config import load_config, parse_config
from ioprobe.diagnosis.tuning import GridRow
from ioprobe.errors import ConfigError, RunFileError
from ioprobe.run import Caveat, DatasetFacts, Failure, Partition, StorageJob, dumps, loads


def _tree() -> Any:
    """A run with something in every part, small enough for changes to meet what matters."""
    made = make_run(
        loop_wait_s=0.05,
        step_s=0.02,
        loader_cycle_s=0.06,
        n=12,
        worker=worker_batches(12, workers=2, fetch_s=0.1, cpu_s=0.09),
        stages=[stacks(decode=80)],
        step_parts={"compute": 0.015, "communication": 0.005},
    )
    made.dataset = DatasetFacts(
        url="data/x.tar", format="webdataset", num_shards=2, num_samples=64, total_bytes=6_400_000
    )
    made.storage = [
        StorageJob(name="shards in sequence, cold", url="data/x.tar", pattern="shards", ops=64, bytes_read=6_400_000,
                   window_s=1.0, samples=64, latency_s={"p50": 0.001, "p99": 0.01}, cache_state="cold",
                   series_ops_per_s=[60.0, 64.0, 68.0], series_bytes_per_s=[6e6, 6.4e6, 6.8e6])
    ]  # fmt: skip
    made.partitions = [
        Partition(compute_s=0.5, communication_s=0.1, transfer_s=0.1, data_stall_s=0.2, other_idle_s=0.1, window_s=1.0,
                  steps=2, steps_s=[0.5, 0.5], stalls_s=[0.1, 0.1])
    ]  # fmt: skip
    made.caveats = [Caveat("other-load", "other processes used 1 core", "measure again")]
    made.failures = [Failure(phase="storage", kind="exception", message="cannot read", hint="check")]
    made.ranks = [make_run(loop_wait_s=0.01, step_s=0.02, loader_cycle_s=0.03, n=6)]
    made.ranks[0].rank, made.world_size = 1, 2
    return json.loads(dumps(made))


TREE = _tree()
USES = [
    ["report", "{run}"],
    ["report", "{run}", "--format", "json"],
    ["report", "{run}", "--format", "md"],
    ["report", "{run}", "--format", "html"],
    ["predict", "{run}", "--set", "num_workers=1,4", "--set", "step_ms=5"],
    ["plan", "{run}", "-n", "1,8"],
    ["check", "--run", "{run}", "--format", "json"],
    ["compare", "{run}", "{good}"],
    ["compare", "{good}", "{run}", "--force", "--format", "json"],
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "good.json").write_text(json.dumps(TREE))
    (folder / "ioprobe.toml").write_text("[budgets]\nstall_share = 0.1\n")
    return folder


def _use(place: Path, data: bytes, use: list[str]) -> None:
    (place / "run.json").write_bytes(data)
    words = [w.format(run=place / "run.json", good=place / "good.json") for w in use]
    if use[0] == "check":
        words += ["--config", str(place / "ioprobe.toml")]
    code, out, _ = command(*words)
    assert code in (0, 1, 2)
    assert "\x1b" not in out
    if "json" in use and out:
        json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))


@pytest.mark.parametrize(
    "use", USES, ids=lambda use: "-".join(w.strip("-") for w in use if "{" not in w and "=" not in w)
)
def test_a_changed_run_file_is_used_or_refused_in_one_line(place: Path, use: list[str]) -> None:
    @fuzz(40)
    @given(changed(TREE))
    def holds(tree: Any) -> None:
        _use(place, json.dumps(tree).encode(), use)

    holds()


ANSWER = json.loads(msgspec.json.encode(tuning(grid=[GridRow(settings={"num_workers": 4}, samples_per_s=[1.0])])))


@pytest.mark.parametrize("format_", ["text", "json", "md"])
def test_a_changed_answer_of_tune_is_shown_or_refused_in_one_line(tmp_path: Path, format_: str) -> None:
    tree = {**TREE, "kind": "tune"}

    @fuzz(40)
    @given(changed(ANSWER))
    def holds(answer: Any) -> None:
        (tmp_path / "tuning.json").write_text(json.dumps(answer))
        _use(tmp_path, json.dumps(tree).encode(), ["report", "{run}", "--format", format_])

    holds()


@fuzz(60)
@given(damaged(dumps(loads(json.dumps(TREE).encode()))))
def test_a_damaged_run_file_is_read_or_refused_in_one_line(data: bytes) -> None:
    refused_or_read(lambda: loads(data))


@pytest.mark.parametrize(("size", "fault"), [(0, "is empty"), (300, "is cut off")])
def test_a_run_file_that_was_not_written_to_its_end_is_called_so(size: int, fault: str) -> None:
    with pytest.raises(RunFileError, match=f"run file 'a.json' {fault}"):
        loads(json.dumps(TREE).encode()[:size], "a.json")


def test_a_run_file_of_another_kind_of_bytes_is_refused(place: Path) -> None:
    for data in (
        b"",
        b"\x00" * 99,
        b"\x80\x04K\x01.",
        b"[" * 100_000,
        b'{"schema": 1e999}',
        b'{"schema": true}',
        "ä".encode("latin1"),
    ):
        (place / "run.json").write_bytes(data)
        code, out, err = command("report", str(place / "run.json"))
        assert (code, out) == (2, "")
        assert err.startswith("Error: ")
        assert len(err.splitlines()) == 2


HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J\x1b]0;t\x07[bold red]r[/]\u202e{{7*7}}`|<@you>"


def test_names_in_a_run_file_stay_text_in_every_format(place: Path) -> None:
    def rename(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: rename(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [rename(v, key) for v in value]
        free = ("url", "target", "command", "step", "message", "hint", "text", "source", "cpu_model", "name", "where",
                "version", "created_at", "unit", "python", "torch", "kind")  # fmt: skip
        return f"{value}{HOSTILE}" if key in free and isinstance(value, str) else value

    tree = rename(TREE)
    tree["workload"] = {"target": HOSTILE, "command": HOSTILE, "step": HOSTILE}
    tree["host"] |= {"hostname": HOSTILE, "cpu_model": HOSTILE}
    loads(json.dumps(tree).encode())
    for use in USES:
        (place / "run.json").write_text(json.dumps(tree))
        words = [w.format(run=place / "run.json", good=place / "run.json") for w in use]
        code, out, err = command(*words, *(["--config", str(place / "ioprobe.toml")] if use[0] == "check" else []))
        assert code in (0, 1, 2)
        assert "\x1b" not in out + err
        assert "\x07" not in out + err
        if "json" not in use:
            assert "\u202e" not in out
        if "md" in use:  # in a span of code, or escaped
            assert not re.search(r"(?<!\\)<img", re.sub(r"``.*?``", "", out))
        if "html" in use:
            assert "<img" not in out
            assert not re.search(r"</script><", out)
            assert "49`" not in out


TOML = """
[pipelines.train]
target = "train.py:make_loader"
num_workers = 4
prefetch_factor = 2
pin_memory = true
dataset_pickle_bytes = "10MiB"  # ioprobe: ignore[IO402] measured
[pipelines.train.budgets]
stall_share = "5%"
[hosts.big]
usable_cores = 64
memory_bytes = "64GiB"
[budgets]
samples_per_s = 100
[[attach.rules]]
function = "decode_*"
stage = "decode"
"""


@fuzz(150)
@given(damaged(TOML.encode()))
def test_a_damaged_configuration_is_read_or_refused_in_one_line(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for name in ("ioprobe.toml", "pyproject.toml"):
        refused_or_read(lambda name=name: parse_config(text, name))


_SCALARS = st.one_of(
    st.sampled_from(["1", "-1", "nan", "inf", "1e999", "true", "1979-05-27T07:32:00Z", "07:32:00", "'5%'", "'1.2.3%'",
                     "'1e999GB'", "'9e999s'", "[]", "[[]]", "{}", "{a = {}}", "'x'", '"\\u0000"', "0x7" + 17 * "f"]),
    st.sampled_from([json.dumps(w) for w in WORDS if w.isprintable()]),
)  # fmt: skip
_KEYS = st.sampled_from(
    ["target", "num_workers", "num-workers", "prefetch_factor", "stall_share", "memory_bytes", "usable_cores", "host",
     "budgets", "pipelines", "timeout", "seconds", "au", "ignore", "select", "step_ms", '"a\\"b"',
     "x.y.z", "batch_size"]
)  # fmt: skip
_TABLES = st.sampled_from(
    ["", "[pipelines.train]", "[pipelines]", "[hosts.a]", "[host]", "[budgets]", "[[attach.rules]]", "[check]",
     "[compare]", "[tool.ioprobe]", "[tool]", "[pipelines.train.budgets]"]
)  # fmt: skip


@fuzz(150)
@given(st.lists(st.tuples(_TABLES, st.lists(st.tuples(_KEYS, _SCALARS), max_size=3)), max_size=3))
def test_any_values_of_any_keys_are_read_or_refused_in_one_line(
    tables: list[tuple[str, list[tuple[str, str]]]],
) -> None:
    text = "\n".join("\n".join([head, *(f"{key} = {value}" for key, value in rows)]) for head, rows in tables)
    for name in ("ioprobe.toml", "pyproject.toml"):
        refused_or_read(lambda name=name: parse_config(text, name))


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 50_000, "a = " + "9" * 5000, "a" + ".a" * 20_000 + " = 1", "tool = 3", "[[tool]]",
     "tool.ioprobe = 1", "a = " + "{a=" * 20_000],
    ids=["deep", "long", "dotted", "tool-number", "tool-array", "ioprobe-number", "tables"],
)  # fmt: skip
def test_a_configuration_made_to_break_the_reader_is_refused(tmp_path: Path, text: str) -> None:
    for name in ("ioprobe.toml", "pyproject.toml"):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError):
            load_config(tmp_path / name)
