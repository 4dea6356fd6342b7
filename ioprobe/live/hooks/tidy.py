"""Tidying up where ``ioprobe run`` cannot any more."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ioprobe.live.hooks.journal import SUFFIX


def tidy(folder: Path) -> None:
    """Remove the folder if ``ioprobe run`` is gone (its lock is free) and no other process of the job writes there."""
    try:
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if any(_is_alive(int(p.name.partition("-")[0])) for p in folder.glob(f"*-*{SUFFIX}")):
            return
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
    except (OSError, ValueError):
        pass  # ioprobe lives, and tidies up itself
    finally:
        os.close(lock)


def _is_alive(pid: int) -> bool:
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()
