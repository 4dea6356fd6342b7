"""``ioprobe storage``: what scripts and people get, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ioprobe import run as runs
from ioprobe.errors import StoreError
from ioprobe.probe import storage_command, storage_scratch
from ioprobe.report.storage import render_text
from ioprobe.run import Caveat, Failure, StorageJob
from ioprobe_cli.main import run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(4 << 20))
    return path


def invoke(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run(["storage", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_keeps_the_contract_for_scripts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = invoke(
        capsys, file, "--pattern", "random", "--block-size", "16k", "--depth", 8,
        "--buffered", "--seconds", "200ms", "--format", "json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    (job,) = json.loads(out)["jobs"]
    assert set(job["iops"]) == set(job["bytes_per_s"]) == {"value", "low", "high", "n"}
    assert job["iops"]["low"] <= job["iops"]["value"] <= job["iops"]["high"]
    assert job["bytes_per_s"]["value"] == pytest.approx(job["iops"]["value"] * 16384)
    assert list(job["latency_s"]) == ["p50", "p95", "p99", "p999", "max"]
    assert set(job["cache"]) == {"state", "resident_before", "resident_after", "device_bytes"}
    assert job["engine"] in ("io_uring", "preadv")
    assert (job["block_bytes"], job["depth"]) == (16384, 8)


def test_direct_reads_are_the_default_for_blocks(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = invoke(capsys, file, "--block-size", "64k", "--seconds", "200ms", "--format", "json")
    (job,) = json.loads(out)["jobs"]
    assert code == 0
    assert job["pattern"] == "random"
    assert job["direct"] or "direct-refused" in {c["code"] for c in job["caveats"]}


def test_a_dataset_is_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(20):
        (tmp_path / f"{number}.jpg").write_bytes(os.urandom(2000))
    code, out, err = invoke(capsys, tmp_path, "--seconds", "300ms")
    assert (code, err) == (0, "")
    assert "samples/s" in out
    assert "whole files, warm" in out
    assert "imagefolder, 20 shards, 39.1 KiB, 20 samples" in out


def test_describe_reads_headers_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(100))
    code, out, _ = invoke(capsys, tmp_path, "--describe")
    assert code == 0
    assert "samples:        3\n" in out
    code, out, _ = invoke(capsys, tmp_path, "--describe", "--format", "json")
    assert json.loads(out)["num_samples"] == 3


def test_the_run_file_is_kept_where_asked(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = invoke(capsys, file, "--buffered", "--seconds", "100ms", "--output", tmp_path / "kept")
    assert code == 0
    kept = runs.load(tmp_path / "kept")
    assert (kept.kind, len(kept.storage)) == ("storage", 1)


def test_a_scratch_file_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = invoke(
        capsys, "--scratch", tmp_path, "--scratch-size", "4MiB", "--seconds", "100ms", "--buffered", "--format", "json"
    )
    assert code == 0
    assert json.loads(out)["jobs"][0]["ops"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_file_has_no_name_even_while_it_is_used(tmp_path: Path) -> None:
    with storage_scratch.scratch_file(tmp_path, 1 << 20) as path:
        assert list(tmp_path.iterdir()) == []
        assert Path(path).stat().st_size == 1 << 20
    assert not Path(path).exists()


def test_a_full_scratch_folder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = invoke(capsys, "--scratch", tmp_path, "--scratch-size", "900PB")
    assert code == 2
    assert err.startswith("Error: no room for a scratch file of 799.4 PiB in ")

    def full(fd: int, data: object, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage_scratch.os, "pwrite", full)
    code, _, err = invoke(capsys, "--scratch", tmp_path, "--scratch-size", "1MB")
    assert code == 2
    assert err.startswith("Error: cannot write the scratch file in ")
    assert "No space left on device" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "URL or --scratch DIR is needed, neither given"),
        (["x", "--scratch", "."], "URL or --scratch DIR is needed, both given"),
        (["x", "--pattern", "dataset", "--depth", "4"], "--depth has no meaning for the dataset's own pattern"),
        (["x", "--direct", "--cache", "warm"], "--cache has no meaning past the page cache"),
        (["x", "--engine", "mmap"], "a mapping is always read through the page cache"),
        (["x", "--seconds", "0"], "cannot measure for '0'"),
        (["x", "--seconds", "soon"], "cannot read duration 'soon'"),
        (["x", "--block-size", "huge"], "cannot read block size 'huge'"),
        (["s3://b/x", "--block-size", "4k"], "blocks of 's3://b/x' cannot be read: it is no local file"),
        (["/no/such/file", "--block-size", "4k"], "'/no/such/file' does not exist"),
        (["s3://b/x", "--storage-option", "hunter2"], "a --storage-option is not of the form KEY=VALUE"),
    ],
)
def test_what_cannot_be_meant_ends_with_code_2_and_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = invoke(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {message}") or message in err.splitlines()[0]
    assert len(err.splitlines()) == 2
    assert "hunter2" not in err


def test_a_job_that_failed_is_shown_and_ends_with_code_2(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ioprobe.probe import storage_block

    monkeypatch.setattr(storage_block, "engine_ceiling", lambda *a: os.truncate(file, 8192))
    code, out, _ = invoke(capsys, file, "--buffered", "--cache", "warm", "--seconds", "100ms")
    assert code == 2
    assert "Failed: cannot read " in out


def test_blocks_of_several_files_come_from_the_largest_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(1 << 16))
    (tmp_path / "b.bin").write_bytes(os.urandom(1 << 20))
    _, out, _ = invoke(capsys, tmp_path, "--buffered", "--block-size", "4k", "--seconds", "100ms", "--format", "json")
    (caveat,) = [c for c in json.loads(out)["caveats"] if c["code"] == "one-file"]
    assert "the largest of 2 files" in caveat["text"]
    assert "b.bin" in caveat["text"]


def test_the_table_shows_figures_caveats_and_failures_exactly() -> None:
    job = StorageJob(
        name="random 4.0 KiB x8 direct",
        url="/data/[x]",
        pattern="random",
        depth=8,
        ops=20_000,
        bytes_read=20_000 * 4096,
        window_s=2.0,
        latency_s={"p50": 4e-4, "p95": 6e-4, "p99": 9e-4, "p999": 2e-3, "max": 5e-3},
        cache_state="direct",
        engine="io_uring",
        engine_ceiling_ops_per_s=500_000.0,
        caveats=[Caveat("x", "something [odd]", "do this")],
        failure=Failure(phase="storage", kind="exception", message="cannot read 'f'", hint="look"),
    )
    assert [line.rstrip() for line in render_text("/data/[x]", [job], width=90).splitlines()] == [
        "Storage  /data/[x]",
        "",
        " what                       samples/s   reads/s   bandwidth      p50      p99   cache",
        " " + "─" * 85,
        " random 4.0 KiB x8 direct           -    10,000     41 MB/s   400 us   900 us   direct",
        "",
        "  random 4.0 KiB x8 direct: io_uring engine; 1 × 8 in flight; own ceiling here 500,000 reads/s; "
        "slowest 5.00 ms; 2.00 s measured.",
        "Failed: cannot read 'f'. look",
        "! something [odd]. → do this",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_keeps_what_was_measured(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ioprobe.probe import storage

    for name in range(20):
        (tmp_path / f"{name}.jpg").write_bytes(os.urandom(2000))
    real = storage._Phase.run

    def interrupted(self: object) -> object:
        if self.state == "warm":  # type: ignore[attr-defined]
            os.kill(os.getpid(), number)
        return real(self)  # type: ignore[arg-type]

    monkeypatch.setattr(storage._Phase, "run", interrupted)
    monkeypatch.setattr(storage, "place_of", lambda path: storage.Place("ext4", "x", "/"))
    code, out, err = invoke(capsys, tmp_path, "--seconds", "200ms", "--format", "json")
    assert code == 130
    assert "Interrupted" in err
    assert [job["name"] for job in json.loads(out)["jobs"]] == ["whole files, cold"]


def test_progress_moves_while_it_measures(tmp_path: Path) -> None:
    from ioprobe.probe.storage import measure_dataset

    (tmp_path / "a.bin").write_bytes(os.urandom(1 << 20))
    seen: list[float] = []
    measure_dataset(
        str(tmp_path / "a.bin"), seconds=0.3, concurrency=1, progress=lambda text, share: seen.append(share)
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize(
    ("url", "arguments", "installed", "clients"),
    [
        ("s3://b/x", [], True, ["fsspec", "obstore"]),
        ("s3://b/x", [], False, ["fsspec"]),
        ("http://h/x", [], True, ["fsspec"]),
        ("s3://b/x", ["--client", "obstore"], True, ["obstore"]),
    ],
)
def test_the_fastest_client_stands_beside_the_users_own_where_it_is_installed(
    url: str,
    arguments: list[str],
    installed: bool,
    clients: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []

    def measured(url: str, *, client: str, into: list[StorageJob], **more: object) -> None:
        asked.append(client)
        into.append(
            StorageJob(name="whole", url=url, pattern="objects", client=client, ops=10, bytes_read=100, window_s=1.0)
        )

    monkeypatch.setattr(storage_command, "measure_objects", measured)
    monkeypatch.setattr(storage_command, "_installed", lambda name: installed)
    code, out, _ = invoke(capsys, url, "--format", "json", *arguments)
    assert (code, asked) == (0, clients)
    assert [job["client"] for job in json.loads(out)["jobs"]] == clients


def test_a_fast_client_that_finds_no_credentials_does_not_cost_the_users_own_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(url: str, *, client: str, into: list[StorageJob], **more: object) -> None:
        if client == "obstore":
            raise StoreError("cannot read 's3://b/x': access was denied", hint="check the credentials")
        into.append(
            StorageJob(name="whole", url=url, pattern="objects", client="s3fs 1", ops=10, bytes_read=100, window_s=1.0)
        )

    monkeypatch.setattr(storage_command, "measure_objects", measured)
    monkeypatch.setattr(storage_command, "_installed", lambda name: True)
    code, out, _ = invoke(capsys, "s3://b/x", "--format", "json")
    assert code == 0
    assert "obstore could not be set beside it: cannot read 's3://b/x': access was denied" in out
    assert invoke(capsys, "s3://b/x", "--client", "both")[0] == 2


def test_two_runs_at_once_on_one_dataset_both_measure_it(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(os.urandom(4 << 20))
    code = "import sys; from ioprobe_cli.main import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "storage", str(tmp_path), "--seconds", "0.4", "--format", "json"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in running:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        jobs = json.loads(out)["jobs"]
        assert all(job["bytes_per_s"]["value"] > 0 and job["failure"] is None for job in jobs)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
