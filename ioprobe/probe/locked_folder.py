"""Temporary folders that are locked while their process lives; what a killed one left, the next start removes.

The kernel gives the lock back however a process ends. A process number would not do: it is given out again, and where
containers or hosts share the folder it is another process or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ioprobe.errors import OutputError

LOCK = "lock"
"""Name of the file within that is locked."""


class LockedFolder(NamedTuple):
    """A folder that only this user can read."""

    path: Path
    lock: int
    """Descriptor; not handed to other programs."""

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make_folder(place: Path, prefix: str) -> LockedFolder:
    """Make a folder whose name is a prefix and eight hex digits.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        # Under its final name it is locked from the first moment on: nobody's sweep comes in between.
        made = Path(tempfile.mkdtemp(prefix=".ioprobe-", dir=place))
        lock = os.open(made / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return LockedFolder(made.rename(place / f"{prefix}{secrets.token_hex(4)}"), lock)
    except OSError as error:
        raise OutputError(
            f"cannot make a temporary folder in '{place}': {error.strerror}", hint="set TMPDIR to a folder with room"
        ) from None


def sweep(place: Path, prefix: str, *, in_use: Callable[[Path], bool] = lambda folder: False) -> None:
    """Remove this user's folders with such names whose process is gone.

    Args:
        place: Where to look.
        prefix: As it was given to :func:`make_folder`.
        in_use: Whether somebody else still needs a folder.
    """
    ours = re.compile(re.escape(prefix) + "[0-9a-f]{8}")
    try:
        folders = [path for path in place.iterdir() if ours.fullmatch(path.name)]
    except OSError:
        return
    for folder in folders:
        with contextlib.suppress(OSError):  # another start was faster, or it is in use
            _remove_if_left(folder, in_use)


def _remove_if_left(folder: Path, in_use: Callable[[Path], bool]) -> None:
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or in_use(folder):
        return
    lock = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
