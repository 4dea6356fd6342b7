"""Recordings that somebody else wrote: read, or refused in one line; in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hostile import WORDS, changed, command, damaged, fuzz, refused_or_read, within_bounds
from hypothesis import given
from hypothesis import strategies as st

from ioprobe.errors import RunFileError
from ioprobe.live.profile import profile
from ioprobe.live.stacks.recordings import parse_raw, read_stacks
from ioprobe.run import dumps, loads

FIXTURES = Path(__file__).parents[1] / "fixtures"


def _json(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def _few(document: Any, events: int) -> Any:
    """Return the first events of a recording, so that changes meet what matters."""
    if isinstance(document, list):
        return document[:events]
    if "traceEvents" in document:
        kept = [e for e in document["traceEvents"] if e.get("ph") == "X"]
        marks = [e for e in kept if "ProfilerStep" in e["name"] or "DataLoader" in e["name"] or "gloo" in e["name"]]
        return {**document, "traceEvents": marks[:20] + kept[:events]}
    return {**document, "profiles": document["profiles"][:2]}


KINETO = _few(_json(FIXTURES / "traces" / "gloo_rank0.json.gz"), 20)
DEVICE = {
    "distributedInfo": {"rank": 1, "world_size": 2},
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1.0, "dur": 90.0, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2.0, "dur": 1.0,
         "args": {"correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 3.0, "dur": 9.0, "pid": 0,
         "args": {"device": 0, "correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 13.0, "dur": 9.0, "pid": 0,
         "args": {"device": 0, "correlation": 8, "Collective name": "allreduce", "Process Group Name": "0"}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ts": 30.0, "dur": 5.0, "pid": 0,
         "args": {"device": 0, "correlation": 9, "bytes": 4096}},
        {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
         "ts": 40.0, "dur": 30.0, "pid": 1, "tid": 1},
    ],
}  # fmt: skip
SPEEDSCOPE = _few(_json(FIXTURES / "profiles" / "decode.speedscope.json"), 0)
for _one in SPEEDSCOPE["profiles"]:
    _one["samples"], _one["weights"] = _one["samples"][:6], _one["weights"][:6]
CHROME = _few(_json(FIXTURES / "profiles" / "decode.chrometrace.json.gz"), 40)
RAW = b"\n".join((FIXTURES / "profiles" / "decode.raw.txt").read_bytes().split(b"\n")[:12])


def _profiled(path: Path, data: bytes) -> None:
    """Read a recording, and write and render what it gave."""
    path.write_bytes(data)

    def read() -> None:
        found = profile([path])
        loads(dumps(found.run))

    refused_or_read(read)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@pytest.mark.parametrize(
    "recording", [KINETO, DEVICE, SPEEDSCOPE, CHROME], ids=["host", "device", "speedscope", "chrome"]
)
def test_a_changed_recording_is_read_or_refused_in_one_line(place: Path, recording: Any) -> None:
    @fuzz(60)
    @given(changed(recording))
    def holds(tree: Any) -> None:
        _profiled(place / "r.json", json.dumps(tree).encode())

    holds()


@pytest.mark.parametrize("data", [json.dumps(DEVICE).encode(), json.dumps(CHROME).encode(), RAW, gzip.compress(RAW)],
                         ids=["device", "chrome", "raw", "gzip"])  # fmt: skip
def test_a_damaged_recording_is_read_or_refused_in_one_line(place: Path, data: bytes) -> None:
    @fuzz(60)
    @given(damaged(data))
    def holds(found: bytes) -> None:
        _profiled(place / "d.json", found)

    holds()


@fuzz(60)
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.one_of(
                    st.sampled_from(['process 1:"python train.py"', "thread (0x1F): MainThread", "f (a.py:3)", *WORDS]),
                    st.text(max_size=20),
                ),
                max_size=5,
            ),
            st.sampled_from(["1", "0", "-1", "9" * 5000, "²", "٣", "x", ""]),
        ),
        max_size=6,
    )
)
def test_lines_of_any_stacks_are_read_or_refused_in_one_line(lines: list[tuple[list[str], str]]) -> None:
    refused_or_read(lambda: parse_raw("\n".join(f"{';'.join(frames)} {count}" for frames, count in lines)))


HOSTILE_NAME = "</script><img src=x onerror=alert(1)>\x1b[2J[red]r[/red]\u202e"


def test_names_of_a_recording_stay_text_in_every_format(tmp_path: Path) -> None:
    events = json.loads(json.dumps(DEVICE))
    for event in events["traceEvents"][2:5]:
        event["name"] += HOSTILE_NAME
    (tmp_path / "t.json").write_text(json.dumps(events))
    raw = f'process 5:"{HOSTILE_NAME}";thread (0x5): MainThread;{HOSTILE_NAME} ({HOSTILE_NAME}.py:3) 500\n'
    (tmp_path / "s.txt").write_text(raw)
    for format_ in ("text", "md", "html", "json"):
        code, out, _ = command("profile", str(tmp_path / "t.json"), str(tmp_path / "s.txt"), "--format", format_)
        assert code == 0
        assert "\x1b" not in out
        if format_ in ("html", "md"):
            assert "<img src=x" not in out
        if format_ == "html":
            assert "</script><" not in out


def _refused(path: Path, says: str) -> None:
    with pytest.raises(RunFileError, match=says):
        profile([path])


def test_a_damaged_gzip_stream_is_refused_wherever_the_damage_lies(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(b"".join(b"main (train.py:%d) %d\n" % (i, i) for i in range(200_000)), 1))
    for at in (len(whole) // 2, len(whole) - 6):
        data = whole.copy()
        data[at] ^= 0xFF
        data[at + 1] ^= 0xFF
        (tmp_path / "r.gz").write_bytes(data)
        with pytest.raises(RunFileError, match="cannot read recording"):
            read_stacks(tmp_path / "r.gz")


def test_an_export_whose_tables_hold_something_else_is_refused(tmp_path: Path) -> None:
    for number, value in enumerate(["'word'", "x'00ff'", "1e300", "-9223372036854775808"]):
        path = tmp_path / f"{number}.sqlite"
        with sqlite3.connect(path) as base:
            base.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, correlationId, globalPid, shortName)"
            )
            base.execute("CREATE TABLE StringIds (id, value)")
            base.execute("CREATE TABLE NVTX_EVENTS (start, end, text, textId, globalTid)")
            base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({value}, {value}, {value}, 1, 1, 1)")
            base.execute(f"INSERT INTO NVTX_EVENTS VALUES ({value}, {value}, {value}, {value}, {value})")
            base.execute(f"INSERT INTO StringIds VALUES ({value}, {value})")
        base.close()
        refused_or_read(lambda path=path: profile([path]))


BOMBS = {
    "a view without end": """
import sqlite3
with sqlite3.connect("f") as base:
    base.execute("CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
                 "SELECT x AS start, x AS end, 'a' AS text FROM c")
""",
    "frames that are never left": """
import json
json.dump([{"cat": "py-spy", "ph": "B", "pid": 1, "tid": 1, "ts": i * 20000, "name": "f%d" % i}
           for i in range(150_000)], open("f", "w"))
""",
    "a gigabyte of nothing": """
import gzip
with gzip.open("f", "wb", 1) as file:
    for _ in range(1 << 10):
        file.write(bytes(1 << 20).replace(b"\\0", b"a"))
""",
    "command lines that never end": """
open("f", "w").write('process 1:"a;thread x;' * 100_000 + "\\n" + 'process 1:"a";' * 50_000 + "f (a.py:1) 3\\n")
""",
    "command lines that have no end": """
open("f", "w").write('process 1:"a;' * 200_000 + "\\n" + 'process 1:"a (b);' * 50_000 + "f (a.py:1) 3\\n")
""",
    "one event of many names": """
open("f", "w").write('[{"ph":"X","cat":"kernel","ts":1e,' + '"name":"' * 400_000 + "x}]")
""",
    "braces and blanks": """
open("f", "w").write('{"traceEvents": [{"ph": "X"' + "}  ,  " * 600_000 + "]}")
""",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_a_recording_made_to_fill_memory_or_time_is_read_or_refused_within_bounds(tmp_path: Path, name: str) -> None:
    code = BOMBS[name] + """
from ioprobe.errors import IoprobeError
from ioprobe.live.profile import profile
try:
    profile(["f"])
    print("read")
except IoprobeError as error:
    print("refused:", error.message)
"""  # fmt: skip
    assert within_bounds(code, tmp_path).startswith(("read", "refused"))
