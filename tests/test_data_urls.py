"""A dataset URL to its shards."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from ioprobe.data.braces import expand_braces
from ioprobe.data.shards import Shard
from ioprobe.data.urls import filesystem_of, list_shards, suffix_of
from ioprobe.errors import DataError, TargetError, UsageError
from ioprobe.secrets import redact_url


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("plain.tar", ["plain.tar"]),
        ("{a,b}", ["a", "b"]),
        ("x{000..003}", ["x000", "x001", "x002", "x003"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{0..10..5}", ["0", "5", "10"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{a,b{1..2},}c", ["ac", "b1c", "b2c", "c"]),
        ("{a,b}{1,2}", ["a1", "a2", "b1", "b2"]),
        ("{one}", ["{one}"]),
        ("{x{1,2}}", ["{x1}", "{x2}"]),
        ("{}", ["{}"]),
        ("{5..5}", ["5"]),
    ],
)
def test_braces_expand_as_in_a_shell(pattern: str, expected: list[str]) -> None:
    assert expand_braces(pattern) == expected


def test_a_brace_that_is_not_closed_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"a brace is not closed in 'x-\{0\.\.3'"):
        expand_braces("x-{0..3")


def test_a_range_too_large_for_memory_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="more than 1,000 names"):
        expand_braces("{0..999999999999}{0..999999999999}", limit=1000)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://AKIA:se/cr/et@bucket/x.tar", "s3://bucket/x.tar"),
        ("https://h/x.tar?X-Amz-Signature=abc&y=1", "https://h/x.tar"),
        ("https://user@h:8080/x.tar#token=1", "https://h:8080/x.tar"),
        ("simplecache::s3://a:b@c/x-?.tar", "simplecache::s3://c/x-?.tar"),
        ("zip://in.csv::https://u:p@h/a.zip?sig=1", "zip://in.csv::https://h/a.zip"),
        ("data/me@home/x.tar", "data/me@home/x.tar"),
        ("s3://bucket/user@x/a.tar", "s3://bucket/user@x/a.tar"),
    ],
)
def test_no_credential_of_a_url_is_shown(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_a_missing_object_is_named_without_its_credentials(tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        Shard(f"memory://KEY:SECRET@host/{tmp_path.name}/x.tar").open()
    assert "SECRET" not in caught.value.message
    assert "no such file" in caught.value.message


def fill(folder: Path, *names: str) -> None:
    for name in names:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"x" * 10)


def names(found: object) -> list[str]:
    return [Path(s.url).name for s in found.shards]  # type: ignore[attr-defined]


def test_a_folder_a_glob_braces_and_a_file_url_find_the_same_sorted_shards(tmp_path: Path) -> None:
    fill(tmp_path, "b-1.tar", "b-0.tar", ".hidden.tar", "index.json", "README.md")
    for url in (str(tmp_path), f"{tmp_path}/*.tar", f"{tmp_path}/b-{{0..1}}.tar", f"file://{tmp_path}/b-*.tar"):
        found = list_shards(url)
        assert (found.format, names(found), found.total_bytes) == ("webdataset", ["b-0.tar", "b-1.tar"], 20), url


def test_a_shard_that_braces_name_but_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    fill(tmp_path, "b-0.tar")
    with pytest.raises(TargetError, match=r"cannot read '.*b-1.tar': no such file"):
        list_shards(f"{tmp_path}/b-{{0..1}}.tar")


def test_a_glob_without_match_and_an_empty_folder_are_errors(tmp_path: Path) -> None:
    for url in (f"{tmp_path}/*.tar", str(tmp_path)):
        with pytest.raises(TargetError, match="no file matches"):
            list_shards(url)


def test_an_unknown_layout_lists_what_was_found_and_what_is_supported(tmp_path: Path) -> None:
    fill(tmp_path, "a.xyz", "b.xyz", "c.log")
    with pytest.raises(DataError) as caught:
        list_shards(str(tmp_path))
    assert "2 x .xyz, 1 x .log" in caught.value.message
    for name in ("webdataset (.tar", "parquet (.parquet", "litdata"):
        assert name in caught.value.hint


def test_several_formats_at_once_are_refused_unless_one_is_named(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar", "b.parquet")
    with pytest.raises(DataError, match=r"several formats: 1 x \.tar, 1 x \.parquet"):
        list_shards(str(tmp_path))
    assert names(list_shards(str(tmp_path), format="parquet")) == ["b.parquet"]


def test_an_unknown_format_name_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown format 'zarr'"):
        list_shards(str(tmp_path), format="zarr")


def test_a_file_without_suffix_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(b"PAR1....")
    assert list_shards(f"{tmp_path}/part-0").format == "parquet"


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.TAR", "a.tar.zst"])
def test_compressed_and_shouting_suffixes_are_known(name: str) -> None:
    assert suffix_of(f"dir.d/{name}")[0] == ".tar"


def test_a_folder_whose_index_lists_shards_is_mds_and_chunks_litdata(tmp_path: Path) -> None:
    fill(tmp_path / "m", "shard.00000.mds")
    (tmp_path / "m" / "index.json").write_text('{"version": 2, "shards": []}')
    fill(tmp_path / "l", "chunk-0-0.bin")
    (tmp_path / "l" / "index.json").write_text('{"chunks": [], "config": {}}')
    assert list_shards(str(tmp_path / "m")).format == "mds"
    assert list_shards(str(tmp_path / "l")).format == "litdata"


def test_a_store_is_listed_through_fsspec() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/urls-bucket/t/x-0.tar": b"1", "/urls-bucket/t/x-1.tar": b"22", "/urls-bucket/t/y.txt": b""})
    try:
        for url in ("memory://urls-bucket/t/x-*.tar", "memory://urls-bucket/t/x-{0..1}.tar", "memory://urls-bucket/t"):
            found = list_shards(url)
            assert ([s.size_bytes for s in found.shards], found.filesystem) == ([1, 2], "memory")
    finally:
        memory.rm("/urls-bucket", recursive=True)


def test_an_unknown_scheme_is_one_clear_line() -> None:
    with pytest.raises(TargetError) as caught:
        list_shards("nosuch://bucket/x.tar")
    assert "\n" not in caught.value.message
    assert "nosuch" in caught.value.message


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_the_file_system_is_named_as_the_kernel_names_it() -> None:
    assert filesystem_of("/dev/shm") == "tmpfs"
    assert filesystem_of("/proc/self/stat") == "proc"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_rights_is_named(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar")
    (tmp_path / "a.tar").chmod(0)
    with pytest.raises(TargetError, match=r"a\.tar': Permission denied"):
        list_shards(f"{tmp_path}/a.tar").shards[0].open()


def test_many_named_objects_cost_one_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/named-bucket/x-{i:03d}.tar": b"1" * i for i in range(100)})
    asked: list[str] = []
    info = type(memory).info
    monkeypatch.setattr(type(memory), "info", lambda self, path, **k: (asked.append(path), info(self, path, **k))[1])
    try:
        found = list_shards("memory://named-bucket/x-{000..099}.tar")
        assert [s.size_bytes for s in found.shards] == list(range(100))
        assert len(asked) < 5
        with pytest.raises(TargetError, match=r"cannot read 'memory://named-bucket/x-100\.tar': no such file"):
            list_shards("memory://named-bucket/x-{000..100}.tar")
    finally:
        memory.rm("/named-bucket", recursive=True)
