"""A private file to measure where no dataset lies: it never has a name, so nothing can stay behind."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ioprobe.errors import StoreError, UsageError
from ioprobe.units import format_bytes

_CHUNK_BYTES = 4 << 20
_SPARE_BYTES = 64 << 20


@contextlib.contextmanager
def scratch_file(folder: Path, size_bytes: int, progress: Callable[[str, float], None] | None = None) -> Iterator[str]:
    """Give the path of a file of random bytes in folder; the kernel frees it with the process, kill -9 included.

    Args:
        folder: Where; must exist.
        size_bytes: How much is written.
        progress: Told how far the writing is.

    Raises:
        UsageError: the size is no size.
        StoreError: the folder is missing, not writable or full.
    """
    if size_bytes < 4096:
        raise UsageError(f"a scratch file of {size_bytes} bytes is too small", hint="use at least 4kB")
    try:
        free = os.statvfs(folder)
        room = free.f_bavail * free.f_frsize
        if room < size_bytes + _SPARE_BYTES:
            raise StoreError(
                f"no room for a scratch file of {format_bytes(size_bytes)} in '{folder}': {format_bytes(room)} free",
                hint="choose a smaller --scratch-size or another folder",
            )
        fd = _nameless(folder)
    except OSError as error:
        raise StoreError(
            f"cannot make a scratch file in '{folder}': {error.strerror}", hint="choose a folder that you may write"
        ) from None
    try:
        _fill(fd, size_bytes, folder, progress)
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        os.close(fd)


def _nameless(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            raise
        if error.errno == errno.ENOENT and not folder.is_dir():
            raise
    # NFS and old overlays have no O_TMPFILE: unlinked at once, which leaves a window of microseconds.
    fd, name = tempfile.mkstemp(prefix=".ioprobe-scratch-", dir=folder)
    os.unlink(name)  # noqa: PTH108
    return fd


def _fill(fd: int, size_bytes: int, folder: Path, progress: Callable[[str, float], None] | None) -> None:
    chunk = bytearray(os.urandom(_CHUNK_BYTES))
    try:
        for number, offset in enumerate(range(0, size_bytes, _CHUNK_BYTES)):
            chunk[:8] = number.to_bytes(8, "little")  # no two chunks alike: storage may fold equal blocks
            os.pwrite(fd, memoryview(chunk)[: min(_CHUNK_BYTES, size_bytes - offset)], offset)
            if progress is not None:
                progress("storage: writing the scratch file", 0.0)
        os.fsync(fd)
    except OSError as error:
        raise StoreError(
            f"cannot write the scratch file in '{folder}': {error.strerror}",
            hint="choose a smaller --scratch-size or another folder",
        ) from None
