"""Looks at processes that may end meanwhile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil


def measuring_child(pid: int, *, workers: int = 1) -> int | None:
    """Return the pid of a command's measuring process, once that has at least so many workers."""
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):
            if "ioprobe.probe.child" in " ".join(child.cmdline()) and len(child.children()) >= workers:
                return child.pid
    return None


def left_behind(folder: Path) -> list[str]:
    """Return the command lines of the processes that run in a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if Path(process.cwd()) == folder:
                found.append(" ".join(process.cmdline()))
    return found
