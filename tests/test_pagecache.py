"""Residency, dropping, and mincore's white lie."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ioprobe.probe import pagecache
from ioprobe.probe.storage_place import place_of

PAGE = pagecache.PAGE_BYTES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    with open(path, "wb") as out:
        out.write(os.urandom(64 * PAGE))
        out.flush()
        os.fsync(out.fileno())
    return path


@pytest.fixture
def on_disk(file: Path) -> Path:
    if place_of(file).in_memory or place_of(file).filesystem == "overlay":
        pytest.skip("the folder for tests has no page cache of its own to empty")
    return file


def test_a_file_just_written_is_resident(file: Path) -> None:
    found = pagecache.residency([file])
    assert (found.pages, found.cached_pages, found.share, found.unreadable) == (64, 64, 1.0, 0)
    assert found.cached_bytes == 64 * PAGE


def test_dropping_empties_the_cache_and_says_so(on_disk: Path) -> None:
    dropped = pagecache.drop([on_disk])
    assert (dropped.before, dropped.after, dropped.refused) == (1.0, 0.0, 0)


def test_dirty_pages_are_written_back_before_they_are_dropped(on_disk: Path) -> None:
    with open(on_disk, "r+b") as out:
        out.write(os.urandom(8 * PAGE))
        out.flush()
        assert pagecache.drop([on_disk]).after == 0.0


def test_mincore_and_cachestat_agree(on_disk: Path) -> None:
    pagecache.drop([on_disk])
    fd = os.open(on_disk, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: exactly one page comes in
        os.pread(fd, 1, 10 * PAGE)
        resident = pagecache.mincore(fd, 64 * PAGE)
        assert resident == 1
        if pagecache.residency([on_disk]).method == "cachestat":
            assert pagecache.cachestat(fd) == (1, 0)
    finally:
        os.close(fd)


def test_a_span_is_asked_alone(on_disk: Path) -> None:
    pagecache.drop([on_disk])
    fd = os.open(on_disk, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 4 * PAGE, 0)
    os.close(fd)
    assert pagecache.span_residency([(str(on_disk), 0, 4 * PAGE)]).share == 1.0
    assert pagecache.span_residency([(str(on_disk), 8 * PAGE, 4 * PAGE)]).share == 0.0


def test_without_cachestat_mincore_answers(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(fd: int, offset: int = 0, length: int = 0) -> tuple[int, int]:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(pagecache, "cachestat", missing)
    found = pagecache.residency([file])
    assert (found.method, found.share) == ("mincore", 1.0)


def test_mincore_is_not_believed_for_files_of_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(fd: int, offset: int = 0, length: int = 0) -> tuple[int, int]:
        raise OSError(errno.EPERM, "not yours")

    monkeypatch.setattr(pagecache, "cachestat", refused)
    monkeypatch.setattr(pagecache, "mincore_tells_truth", lambda fd: False)
    monkeypatch.setattr(pagecache, "mincore", lambda *a: pytest.fail("mincore was asked"))
    found = pagecache.residency([file])
    assert found.method in ("nowait", "")
    assert found.share in (1.0, None)


def test_the_owner_is_told_the_truth_by_mincore(file: Path) -> None:
    with open(file, "rb") as source:
        assert pagecache.mincore_tells_truth(source.fileno())


def test_what_cannot_be_asked_is_counted_and_not_taken_for_zero(tmp_path: Path) -> None:
    found = pagecache.residency([tmp_path / "none", tmp_path])
    assert (found.files, found.unreadable, found.share) == (2, 2, None)


def test_an_empty_file_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    found = pagecache.residency([tmp_path / "empty"])
    assert (found.pages, found.unreadable, found.share) == (0, 0, None)


def test_dropping_a_missing_file_counts_as_refused(tmp_path: Path) -> None:
    dropped = pagecache.drop([tmp_path / "none"])
    assert (dropped.refused, dropped.reason) == (1, "No such file or directory")


def test_device_bytes_are_none_where_the_kernel_does_not_tell() -> None:
    assert pagecache.process_device_bytes("no-such-process") is None
    assert pagecache.disk_read_bytes("/no/such/path") is None
    assert pagecache.cgroup_read_bytes("/no/such/folder") is None
