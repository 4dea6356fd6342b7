"""A peer's own virtual environment, made where it is missing, and results that are measured once and kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


class Skipped(Exception):
    """A peer cannot be measured here; the message says why."""


class OutOfTime(Exception):
    """The time of this call is over; a later call with the same --state goes on."""


class Kept:
    """A folder with one JSON file for each thing measured."""

    def __init__(self, folder: Path, seconds: float) -> None:
        """Keep results in a folder, and begin none after so many seconds."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._until = time.monotonic() + seconds

    def once(self, key: str, measure: Callable[..., Any], *arguments: Any) -> Any:
        """Return what an earlier call measured under this key, or ``measure(*arguments)`` now.

        Raises:
            OutOfTime: it is not there yet, and the time is over.
        """
        place = self.folder / f"{key}.json"
        if place.exists():
            return json.loads(place.read_text())
        if time.monotonic() > self._until:
            raise OutOfTime
        value = measure(*arguments)
        part = place.with_suffix(".part")
        part.write_text(json.dumps(value))
        part.replace(place)
        return value


def environment(folder: Path, steps: Sequence[Sequence[str]]) -> Path:
    """Return the ``bin`` folder of a virtual environment, installing what is missing.

    Args:
        folder: Where it is or goes.
        steps: Arguments of ``pip install``, one call each. torch comes from this repository's constraints.txt.

    Raises:
        Skipped: pip failed; with its last error.
    """
    stamp, wanted = folder / "installed.json", [list(step) for step in steps]
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return folder / "bin"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    for step in steps:
        command = [folder / "bin" / "python", "-m", "pip", "install", "-q", "-c", CONSTRAINTS, *step]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = re.findall(r"^ERROR: (.*)", done.stderr, re.MULTILINE) or ["pip failed"]
            raise Skipped(f"'pip install {' '.join(step)}' failed: {errors[-1]}")
    stamp.write_text(json.dumps(wanted))
    return folder / "bin"


def run(command: Sequence[Any], seconds: float, **more: Any) -> tuple[str, float]:
    """Run a command; returns its standard output and how long it took [s].

    Raises:
        Skipped: it failed, or took longer than ``seconds``.
    """
    words = [str(word) for word in command]
    name = Path(words[0]).name
    began = time.monotonic()
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Skipped(f"{name} took longer than {seconds:.0f} s") from None
    finally:
        _end(process)
    if process.returncode:
        last = (errors.strip() or out.strip() or "no output").splitlines()[-1]
        raise Skipped(f"{name} ended with exit code {process.returncode}: {last[:200]}")
    return out, time.monotonic() - began


def _end(process: subprocess.Popen[str]) -> None:
    """End a command that still runs, with all that it started: asked first, so that it removes its files."""
    if process.poll() is not None:
        return
    for how in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
