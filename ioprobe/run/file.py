"""The run file: written, read and checked."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ioprobe.errors import OutputError, RunFileError
from ioprobe.plausible import complaint
from ioprobe.run.loading import MainBatches, WorkerBatches
from ioprobe.run.whole import SCHEMA, Run


def dumps(run: Run) -> bytes:
    """Return the run file's bytes."""
    return msgspec.json.encode(run)


def loads(data: bytes, name: str = "run file") -> Run:
    """Return the run in a file's bytes.

    Raises:
        RunFileError: it is no run file, is damaged, or is of a newer schema.
    """
    if not data:
        raise RunFileError(f"run file '{name}' is empty", hint="measure again")
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "truncated" in str(error):
            raise RunFileError(f"run file '{name}' is cut off: its end is missing", hint="measure again") from None
        raise RunFileError(
            f"cannot read run file '{name}': {error}", hint="pass a run.json that ioprobe wrote"
        ) from None
    if head.schema is None:
        raise RunFileError(f"'{name}' is no ioprobe run file: it has no 'schema'", hint="pass a run.json")
    if not 1 <= head.schema <= SCHEMA:
        raise RunFileError(
            f"run file '{name}' has schema {head.schema}; this ioprobe reads up to {SCHEMA}",
            hint="upgrade ioprobe, or measure again with this version",
        )
    try:
        run = msgspec.json.decode(data, type=Run)
        wrong = complaint(run, _TABLES)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFileError(f"run file '{name}' is damaged: {error}", hint="measure again") from None
    if wrong is not None:
        raise RunFileError(f"run file '{name}' is damaged: {wrong}", hint="measure again")
    return run


_TABLES: dict[type, frozenset[str]] = {
    # A step or a loader that fails leaves its last row unfinished.
    MainBatches: frozenset(
        {"wait_cpu_s", "sampler_s", "transport_s", "release_s", "step_s", "device_idle_s", "ready", "meeting_s"}
    ),
    WorkerBatches: frozenset({"child_cpu_s"}),  # files written before it was counted
}


class _Head(msgspec.Struct):
    schema: int | None = None


def load(path: str | os.PathLike[str]) -> Run:
    """Return the run stored at path (a file, or a folder that holds ``run.json``).

    Raises:
        RunFileError: it cannot be read.
    """
    place = Path(path)
    if place.is_dir():
        place = place / "run.json"
    try:
        return loads(place.read_bytes(), str(place))
    except OSError as error:
        raise RunFileError(
            f"cannot read run file '{place}': {error.strerror}", hint="pass a run.json or the folder that holds it"
        ) from None


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a whole file or nothing: temporary name, fsync, rename.

    Raises:
        OutputError: the folder is read-only, full or missing; nothing is left behind.
    """
    place = Path(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write '{place}': {error.strerror}", hint="choose another place with --output"
        ) from None
    except BaseException:  # Ctrl-C
        temporary.unlink(missing_ok=True)
        raise
