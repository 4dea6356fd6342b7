"""What files of traces look like: other forms say the same, damaged and hostile ones are mended or refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import ModuleType

import pytest
from planted_traces import only, shares

from ioprobe.errors import RunFileError
from ioprobe.live.profile import profile, recording_kind
from ioprobe.live.traces.events import EventReader
from ioprobe.live.traces.kineto import read_kineto
from ioprobe.live.traces.partition import partitions


def test_gzip_list_form_and_compact_json_say_the_same(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(11)
    text = generate.kineto_text(planted, rank=3, world_size=8)
    document = json.loads(text)
    (tmp_path / "plain.json").write_text(text)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "list.json").write_text(json.dumps(document["traceEvents"]))
    (tmp_path / "compact.json").write_text(json.dumps(document, separators=(",", ":")))
    (tmp_path / "sorted.json").write_text(json.dumps(document, sort_keys=True, indent=1))
    expected = shares(only(tmp_path / "plain.json"))
    for name in ("t.json.gz", "list.json", "compact.json", "sorted.json"):
        assert shares(only(tmp_path / name)) == pytest.approx(expected, abs=1e-9), name
    ranked = [read_kineto(tmp_path / n) for n in ("plain.json", "compact.json", "sorted.json")]
    assert [(t.rank, t.world_size) for t in ranked] == [(3, 8)] * 3


@pytest.mark.parametrize("chunk_bytes", [700, 4096, 100_000])
def test_chunks_of_any_size_hold_the_same_events(generate: ModuleType, tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "t.json"
    path.write_text(generate.kineto_text(generate.plan(12, steps=3)))
    expected = [(e["name"], e["ts"]) for e in json.loads(path.read_text())["traceEvents"]]
    reader = EventReader(path, chunk_bytes)
    assert [(e.name, e.ts) for batch in reader.batches() for e in batch] == expected
    assert (reader.damaged, reader.mended, reader.truncated) == (0, 0, False)
    assert reader.header["traceName"] == "emulated"


def test_objects_nested_in_arguments_do_not_split_an_event(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{i}", "ts": i, "dur": 1, "args": {"stack": [{"name": "a"}, {"id": 2}]}}
        for i in range(50)
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    reader = EventReader(path, 512)
    assert [e.name for batch in reader.batches() for e in batch] == [f"op{i}" for i in range(50)]
    assert (reader.damaged, reader.mended) == (0, 0)


def test_a_cut_off_file_is_read_as_far_as_it_goes(generate: ModuleType, tmp_path: Path) -> None:
    text = generate.kineto_text(generate.plan(13, steps=8))
    (tmp_path / "t.json").write_text(text[: int(0.7 * len(text))])
    packed = gzip.compress(text.encode())
    (tmp_path / "t.json.gz").write_bytes(packed[: int(0.7 * len(packed))])
    for name in ("t.json", "t.json.gz"):
        run = profile([tmp_path / name]).run
        assert 3 <= run.partitions[0].steps <= 6
        assert "trace-truncated" in [c.code for c in run.caveats]


def test_damaged_events_are_mended_or_counted_and_the_rest_is_read(generate: ModuleType, tmp_path: Path) -> None:
    planted = generate.plan(14)
    text = generate.kineto_text(planted)
    lines = text.replace('"aten::add_"', '"aten::"add"_"', 3)  # unescaped quotes, as with_stack wrote them
    lines = lines.replace('"cudaLaunchKernel"', '"cuda\x01Launch\nKernel"', 2)  # control characters
    (tmp_path / "t.json").write_text(lines)
    run = profile([tmp_path / "t.json"]).run
    assert shares(run.partitions[0]) == pytest.approx(planted.shares, abs=1e-4)
    (caveat,) = [c for c in run.caveats if c.code == "trace-damaged"]
    assert "0 events that cannot be read and 5 mended" in caveat.text


def test_numbers_written_as_text_are_numbers(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": str(i), "dur": "0.5", "args": {"device": "0"}} for i in (1, 2)
    ]
    (tmp_path / "t.json").write_text(json.dumps(events))
    assert partitions(read_kineto(tmp_path / "t.json"))[0].window_s == pytest.approx(1.5e-6)


HOSTILE = {
    "empty.json": b"",
    "blank.json": b"  \n ",
    "word.json": b"hello there\n",
    "brace.json": b"{",
    "other.json": b'{"a": [1, 2, 3]}',
    "no_events.json": b'{"traceEvents": []}',
    "useless.json": b'{"traceEvents": [{"ph": "M", "name": "process_name", "ts": 0}]}',
    "numbers.json": b"[1, 2, 3]",
    "nested.json": b"[" * 100_000,
    "binary.json": bytes(range(256)) * 40,
    "trace.pftrace": b"\x0a\x9d\x01\x00" * 999,
    "bad.json.gz": b"\x1f\x8b\x08\x00garbage that is no deflate stream at all",
    "nothing.sqlite": b"SQLite format 3\x00" + b"\x00" * 200,
    "zero.json": b'[{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":0,"args":{"device":0}}]',
    "endless.json": b'[{"ph":"X","cat":"kernel","name":"k","ts":1e999,"dur":1,"args":{"device":0}}]',
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_file_gets_one_clear_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name])
    with pytest.raises(RunFileError) as caught:
        profile([tmp_path / name])
    assert str(tmp_path / name) in caught.value.message
    assert "\n" not in caught.value.message + caught.value.hint
    assert caught.value.hint


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=r"cannot read recording '.*gone\.json': No such file"):
        profile([tmp_path / "gone.json"])
    with pytest.raises(RunFileError, match="holds no recording"):
        profile([tmp_path])


def test_kinds_are_told_by_content_not_by_name(generate: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(generate.kineto_text(generate.plan(1)))
    generate.write_nsys(tmp_path / "b.json", [generate.plan(1)])
    (tmp_path / "c.json").write_text("main (train.py:1) 5\n")
    assert [recording_kind(tmp_path / n) for n in ("a.txt", "b.json", "c.json")] == ["kineto", "nsys", "stacks"]
