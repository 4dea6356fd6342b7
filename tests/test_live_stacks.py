"""py-spy's recordings: parsed, told apart by process and thread, classed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ioprobe.config import AttachConfig, FrameRule
from ioprobe.diagnosis.recordings import diagnose_stacks
from ioprobe.diagnosis.types import Verdict
from ioprobe.errors import RunFileError
from ioprobe.live.profile import profile, rules_of
from ioprobe.live.stacks.recordings import call_on_line, parse_chrome, parse_raw, parse_speedscope, read_stacks
from ioprobe.live.stacks.shares import jobs
from ioprobe.run import Limit, Stage

FIXTURES = Path(__file__).parents[1] / "fixtures/profiles"
LOOP = "_worker_loop (torch/utils/data/_utils/worker.py:374)"
FETCH = "_MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)"
NEXT = "_BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:725)"
GET = (
    f"{NEXT};_MultiProcessingDataLoaderIter._next_data (torch/utils/data/dataloader.py:1505);"
    "_MultiProcessingDataLoaderIter._get_data (torch/utils/data/dataloader.py:1464)"
)
MAIN = 'process 10:"python train.py"'
WORKER = f'{MAIN};process 11:"python train.py"'


@pytest.mark.parametrize("form", ["raw.txt", "speedscope.json", "chrometrace.json.gz"])
def test_recordings_of_a_decode_bound_job_name_decode_in_every_format(form: str) -> None:
    run = profile([FIXTURES / f"decode.{form}"]).run
    found = diagnose_stacks(run)
    assert (found.verdict, found.limiting_stage) == (Verdict.DATA_BOUND, Limit.DECODE)
    assert found.stall_share.measured is not None
    assert found.stall_share.measured.value > 0.9
    assert "Photos.decode" in found.evidence
    assert "train.py:35" in found.evidence
    assert run.loaders[0].settings is not None
    assert run.loaders[0].settings.num_workers == 2


@pytest.mark.parametrize("form", ["raw.txt", "chrometrace.json.gz"])
def test_recordings_of_a_step_bound_job_name_the_step(form: str) -> None:
    found = diagnose_stacks(profile([FIXTURES / f"step.{form}"]).run)
    assert (found.verdict, found.limiting_stage) == (Verdict.COMPUTE_BOUND, Limit.STEP)
    assert any("step at" in reason for reason in found.reasons)


def test_a_raw_line_is_taken_apart() -> None:
    line = f"{WORKER};thread (11): MainThread;main (train.py:3);{LOOP};f (a b/data.py:7) 42"
    (stack,) = parse_raw(line)
    assert (stack.pids, stack.thread, stack.is_main_thread, stack.samples) == ((10, 11), "MainThread", True, 42)
    assert [f[:3] for f in stack.frames][:2] == [
        ("f", "a b/data.py", 7),
        ("_worker_loop", "torch/utils/data/_utils/worker.py", 374),
    ]
    assert stack.command == "python train.py"


def test_a_command_line_with_semicolons_is_one_frame() -> None:
    (stack,) = parse_raw('process 7:"python -c "import a; b()" x";f (x.py:1) 3')
    assert (stack.pids, [f.function for f in stack.frames]) == ((7,), ["f"])


def test_a_command_line_of_several_lines_is_one_frame() -> None:
    command = 'python -c \nimport sys; sys.argv=["t"]; x = "a;b"\nfor x in y: f("z 3")\n'
    text = (
        f'process 7:"{command}";thread (7): MainThread;<module> (<string>:2);f (x.py:1) 3\n'
        f'process 7:"{command}";process 8:"{command}";thread (8): MainThread;g (x.py:9) 4\n'
        f'process 7:"{command}";g (x.py:9) 5\n'
    )
    found = parse_raw(text)
    assert [(s.pids, [f.function for f in s.frames], s.samples) for s in found] == [
        ((7,), ["f", "<module>"], 3),
        ((7, 8), ["g"], 4),
        ((7,), ["g"], 5),
    ]


def test_workers_ranks_and_launchers_are_told_apart() -> None:
    lines = [
        'process 1:"torchrun train.py";wait (torch/distributed/elastic/agent/server/api.py:860) 50',
        f'process 1:"torchrun train.py";process 2:"python train.py";loop (train.py:9);{GET} 30',
        f'process 1:"torchrun train.py";process 3:"python train.py";loop (train.py:9);{GET} 10',
        'process 1:"torchrun train.py";process 3:"python train.py";loop (train.py:9);'
        "Tensor.backward (torch/_tensor.py:620) 20",
        f'process 1:"t";process 2:"p";process 4:"p";x (train.py:9);{LOOP};{FETCH};D.__getitem__ (train.py:5) 30',
        f'process 1:"t";process 3:"p";process 5:"p";x (train.py:9);{LOOP};{FETCH};D.__getitem__ (train.py:5) 30',
        f'process 1:"t";process 3:"p";process 6:"p";x (train.py:9);{LOOP};{FETCH};D.__getitem__ (train.py:5) 30',
    ]
    found = jobs(parse_raw("\n".join(lines)))
    assert [(job.pid, job.workers) for job in found] == [(2, 1), (3, 2)]
    assert [{s.role: s.samples for s in job.shares} for job in found] == [
        {"main": 30, "worker": 30},
        {"main": 30, "worker": 60},
    ]


def test_stage_counts_sum_to_the_stacks_and_each_stages_hottest_place_comes_first() -> None:
    lines = [
        f"{WORKER};x (train.py:9);{LOOP};{FETCH};D.__getitem__ (train.py:5) 7",
        f"{WORKER};x (train.py:9);{LOOP};{FETCH};D.__getitem__ (train.py:6) 5",
        f"{WORKER};x (train.py:9);{LOOP};{FETCH};D.__getitem__ (train.py:5);open (PIL/Image.py:3) 2",
        f"{MAIN};loop (train.py:9);{GET} 9",
    ]
    (job,) = jobs(parse_raw("\n".join(lines)))
    worker = next(s for s in job.shares if s.role == "worker")
    assert worker.stages == {Stage.TRANSFORM: 12, Stage.DECODE: 2}
    assert sum(worker.stages.values()) == worker.samples == 14
    assert [(h.stage, h.line, h.samples) for h in worker.hottest] == [
        (Stage.TRANSFORM, 5, 7),
        (Stage.DECODE, 5, 2),
        (Stage.TRANSFORM, 6, 5),
    ]


def test_threads_without_names_are_known_by_how_they_start() -> None:
    lines = [
        f"{MAIN};loop (train.py:9);{GET} 9",
        f"{MAIN};Thread._bootstrap (threading.py:1002);Queue._feed (multiprocessing/queues.py:231);"
        "Condition.wait (threading.py:327) 9",
    ]
    (job,) = jobs(parse_raw("\n".join(lines)))
    assert {s.role: s.stages for s in job.shares} == {"main": {Stage.WAIT: 9}, "thread": {Stage.WAIT: 9}}


def test_the_users_rules_of_the_config_are_used() -> None:
    rules = rules_of(AttachConfig(rules=[FrameRule(stage=Stage.DECODE, function="D.__getitem__", file="*train.py")]))
    line = f"{WORKER};x (train.py:9);{LOOP};{FETCH};D.__getitem__ (train.py:5) 7"
    (job,) = jobs(parse_raw(line), rules)
    assert job.shares[0].stages == {Stage.DECODE: 7}
    assert job.explained[0].rule == "ioprobe.toml: D.__getitem__"


def test_the_call_on_a_source_line_is_found_where_the_source_lies_here(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text(
        "x = zlib.decompress(f(y))\nwith self.lock:\n    pass\nreturn g(h(1), k(2))\na = b\nfor i in f():\n"
    )
    calls = [call_on_line(str(source), line) for line in (1, 2, 4, 5, 6, 99)]
    assert calls == ["zlib.decompress", "self.lock", "", "", "f", ""]
    assert call_on_line(str(tmp_path / "gone.py"), 1) == ""


def test_speedscope_profiles_hold_one_thread_each() -> None:
    document = {
        "shared": {"frames": [{"name": "main", "file": "t.py", "line": 1}, {"name": "f", "file": "t.py", "line": 2}]},
        "profiles": [
            {"type": "sampled", "name": 'Process 5 Thread 5 "MainThread"', "samples": [[0], [0, 1], [0, 1]]},
            {"type": "sampled", "name": 'Process 5 Thread 9 "loader"', "samples": [[1]]},
        ],
    }
    found = parse_speedscope(document)
    assert [(s.pids, s.thread, s.is_main_thread, s.frames[0].function, s.samples) for s in found] == [
        ((5,), "MainThread", True, "main", 1),
        ((5,), "MainThread", True, "f", 2),
        ((5,), "loader", False, "f", 1),
    ]


def test_chrome_traces_count_hundredths_of_a_second() -> None:
    def event(ph: str, name: str, ts: int) -> dict[str, object]:
        return {"ph": ph, "name": name, "pid": 5, "tid": 1, "ts": ts, "args": {"filename": "t.py", "line": 2}}

    events = [event("B", "main", 0), event("B", "f", 30_000), event("E", "f", 80_000), event("E", "main", 100_000)]
    assert [(s.frames[0].function, s.samples) for s in parse_chrome(events)] == [("main", 5), ("f", 5)]


HOSTILE = {
    "text.txt": b"this is\nno recording\nat all\nreally\nnot\n",
    "one.txt": b"hello\n",
    "counts.txt": b"12\n13\n14\n",
    "speedscope.json": b'{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": 3}',
    "cut.json": b'{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": [{"ty',
    "evented.json": json.dumps(
        {"$schema": "speedscope", "shared": {"frames": []}, "profiles": [{"type": "evented", "name": "x"}]}
    ).encode(),
    "none.json": b'{"$schema": "speedscope", "shared": {"frames": []}, "profiles": []}',
    "chrome.json": b'[{"cat": "py-spy", "ph": "B", "pid": "x", "tid": {}, "ts": null, "name": 3}]',
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_recording_gets_one_clear_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name])
    with pytest.raises(RunFileError) as caught:
        profile([tmp_path / name])
    assert str(tmp_path / name) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_gzipped_recording_is_read(tmp_path: Path) -> None:
    data = (FIXTURES / "decode.raw.txt").read_bytes()
    (tmp_path / "r.gz").write_bytes(gzip.compress(data))
    assert read_stacks(tmp_path / "r.gz") == read_stacks(FIXTURES / "decode.raw.txt")


def test_a_short_recording_is_undecided() -> None:
    lines = f"{MAIN};loop (train.py:9);{GET} 9\n"
    (job,) = jobs(parse_raw(lines))
    from ioprobe.live.profile import loader_run
    from ioprobe.run import Host, Run, Workload

    run = Run(kind="profile", created_at="", version="", host=Host(), workload=Workload(), loaders=[loader_run(job)])
    found = diagnose_stacks(run)
    assert (found.verdict, found.limiting_stage) == (Verdict.UNDECIDED, None)
    assert "9 stacks of the main process at work are too few" in found.evidence
