"""The page cache: what of a file is resident, how to drop it without root, what came from the device.

Three ways to see residency, best first: ``cachestat(2)`` (Linux 6.5, one call a
file), ``mincore(2)`` over a mapping, and ``preadv2(RWF_NOWAIT)`` on a few
random pages. Since Linux 5.2 mincore answers "resident" for every page of a
file that the caller neither owns nor may write; it is not asked there.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = mmap.PAGESIZE
_NR_CACHESTAT = 451  # the same on every architecture
_SAMPLED_PAGES = 64

_RANGE, _CACHESTAT = ctypes.c_uint64 * 2, ctypes.c_uint64 * 5
_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


@dataclass(frozen=True)
class Residency:
    """How much of a set of files lies in the page cache."""

    pages: int
    """Pages of all files that could be asked."""
    cached_pages: int
    dirty_pages: int
    """0 where only mincore or sampling could be asked."""
    files: int
    unreadable: int
    """Files that could not be opened or asked."""
    method: str
    """``cachestat``, ``mincore``, ``nowait`` (sampled pages), or several joined by ``+``; empty if none worked."""

    @property
    def share(self) -> float | None:
        """Resident share [fraction]; None where nothing could be asked."""
        return self.cached_pages / self.pages if self.pages else None

    @property
    def cached_bytes(self) -> int:
        """Bytes in the cache, in whole pages."""
        return self.cached_pages * PAGE_BYTES


def pages_of(size_bytes: int) -> int:
    """Return how many pages a file of that size [bytes] has."""
    return -(-size_bytes // PAGE_BYTES)


Span = tuple[str, int, int]
"""Path, offset [bytes], length [bytes]; a length of 0 means to the end."""


def cachestat(fd: int, offset: int = 0, length: int = 0) -> tuple[int, int]:
    """Return (cached, dirty) pages of a span of an open file; length 0 means to the end.

    Raises:
        OSError: ENOSYS before Linux 6.5, EPERM where the caller neither owns nor may write the file (6.14 on).
    """
    span, out = _RANGE(offset, length), _CACHESTAT()
    if _syscall(_NR_CACHESTAT, fd, span, out, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(out[0]), int(out[1])


def mincore_tells_truth(fd: int) -> bool:
    """Whether mincore answers for this file, or says "resident" for every page out of caution."""
    info = os.fstat(fd)
    if os.geteuid() in (0, info.st_uid):
        return True
    try:
        return os.access(f"/proc/self/fd/{fd}", os.W_OK, effective_ids=True)
    except (OSError, NotImplementedError):
        return False


def mincore(fd: int, size_bytes: int, offset: int = 0) -> int:
    """Return how many pages of an open file are resident, from a (page-aligned) offset to size_bytes.

    Raises:
        OSError: the file cannot be mapped.
    """
    if size_bytes == 0:
        return 0
    resident = 0
    span = 1 << 30  # map a GiB at a time: address space and the vector stay small
    libc = _libc
    for start in range(offset, size_bytes, span):
        length = min(span, size_bytes - start)
        address = _map(fd, start, length)
        try:
            vector = bytearray(pages_of(length))
            if libc.mincore(address, length, ctypes.byref(ctypes.c_char.from_buffer(vector))) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            resident += sum(v & 1 for v in vector)
        finally:
            libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
    return resident


def _map(fd: int, start: int, length: int) -> int:
    # Python's mmap refuses to give the address of a read-only mapping, so libc is asked.
    call = _libc.mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    address = call(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
    if address in (None, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(address)


def sampled(fd: int, size_bytes: int, offset: int = 0, pages: int = _SAMPLED_PAGES) -> int:
    """Return an estimate of the resident pages from random pages read without waiting.

    Raises:
        OSError: the file system does not support RWF_NOWAIT.
    """
    total = pages_of(size_bytes - offset)
    if total == 0:
        return 0
    chosen = random.sample(range(total), min(pages, total))
    byte = [bytearray(1)]
    hits = 0
    for page in chosen:
        try:
            hits += os.preadv(fd, byte, offset + page * PAGE_BYTES, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            pass
    return round(total * hits / len(chosen))


def residency(paths: Iterable[str | os.PathLike[str]]) -> Residency:
    """Return the residency of whole files; what cannot be read is counted, not raised."""
    return span_residency((os.fspath(path), 0, 0) for path in paths)


def span_residency(spans: Iterable[Span]) -> Residency:
    """Return the residency of parts of files; what cannot be read is counted, not raised."""
    pages = cached = dirty = files = unreadable = 0
    methods: dict[str, None] = {}
    for path, offset, length in spans:
        files += 1
        found = _ask(path, offset - offset % PAGE_BYTES, length)
        if found is None:
            unreadable += 1
            continue
        pages += found[0]
        cached += min(found[1], found[0])
        dirty += found[2]
        if found[3]:
            methods[found[3]] = None
    return Residency(pages, cached, dirty, files, unreadable, "+".join(methods))


def _ask(path: str, offset: int, length: int) -> tuple[int, int, int, str] | None:
    """Return (pages, cached, dirty, method) of a span, or None where it cannot be asked."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return None
        end = min(info.st_size, offset + length) if length else info.st_size
        if end <= offset:
            return 0, 0, 0, ""
        cached, dirty, method = _ask_open(fd, offset, end)
        return pages_of(end - offset), cached, dirty, method
    except OSError:
        return None
    finally:
        os.close(fd)


def _ask_open(fd: int, offset: int, end: int) -> tuple[int, int, str]:
    try:
        return (*cachestat(fd, offset, end - offset), "cachestat")
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.EACCES):
            raise
    if mincore_tells_truth(fd):
        return mincore(fd, end, offset), 0, "mincore"
    return sampled(fd, end, offset), 0, "nowait"


@dataclass(frozen=True)
class Dropped:
    """What dropping achieved."""

    before: float | None
    """Resident share before [fraction]."""
    after: float | None
    """Resident share after [fraction]; pages that someone maps or that are dirty stay."""
    refused: int
    """Files for which the kernel refused."""
    reason: str = ""
    """Why, for the first of them."""


def drop(paths: Sequence[str | os.PathLike[str]]) -> Dropped:
    """Drop files from the page cache, without root, and look whether they went.

    Dirty pages are written back first (they are not dropped otherwise); the
    files themselves are only opened for reading.
    """
    before = residency(paths).share
    refused, reason = 0, ""
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            refused, reason = refused + 1, reason or (error.strerror or "")
            continue
        try:
            _drop_one(fd)
        except OSError as error:
            refused, reason = refused + 1, reason or (error.strerror or "")
        finally:
            os.close(fd)
    return Dropped(before, residency(paths).share, refused, reason)


def _drop_one(fd: int) -> None:
    try:
        clean = cachestat(fd)[1] == 0
    except OSError:
        clean = False
    if not clean:
        try:
            os.fdatasync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EROFS):  # file systems without write-back
                raise
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def process_device_bytes(pid: int | str = "self") -> int | None:
    """Return the bytes that a process made the devices read so far; None where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            for line in file:
                if line.startswith(b"read_bytes:"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


def disk_read_bytes(path: str | os.PathLike[str]) -> int | None:
    """Return the bytes that the block device under a path has read since boot, by everyone; None without a device."""
    try:
        device = Path(path).stat().st_dev
        with open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat", "rb") as file:
            return int(file.read().split()[2]) * 512
    except (OSError, ValueError, IndexError):
        return None


def cgroup_read_bytes(root: str = "/sys/fs/cgroup") -> int | None:
    """Return the bytes that this process's cgroup (v2) has read from devices; None without the io controller."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            own = next((line.strip().split("::", 1)[1] for line in file if line.startswith("0::")), None)
        if own is None:
            return None
        with open(f"{root}{own.rstrip('/')}/io.stat", encoding="utf-8") as file:
            return sum(int(w[7:]) for line in file for w in line.split() if w.startswith("rbytes="))
    except (OSError, ValueError):
        return None


class DeviceBytes:
    """Bytes read from the device since this was made, by others, too: the fallback where processes are not counted.

    The cgroup's own count comes first; the disk's includes everybody on the machine.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._cgroup = cgroup_read_bytes()
        self._disk = disk_read_bytes(path)

    def since(self) -> int | None:
        """Return the bytes, or None where nothing counts them."""
        now = cgroup_read_bytes()
        if now is not None and self._cgroup is not None:
            return now - self._cgroup
        now = disk_read_bytes(self._path)
        return None if now is None or self._disk is None else now - self._disk
