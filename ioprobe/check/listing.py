"""Headers and listings of a dataset, read in a process of their own: a store that hangs costs its time-out, no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec

from ioprobe.errors import IoprobeError, TargetError
from ioprobe.run import DatasetFacts

# Counting opens every shard; beyond this it is left out, and sizes and row groups carry the rules.
COUNTED_SHARDS = 64


class _Answer(msgspec.Struct):
    facts: DatasetFacts | None = None
    message: str = ""
    hint: str = ""


def list_dataset(url: str, *, timeout_s: float) -> DatasetFacts:
    """Return what headers and listings say of the dataset at a URL.

    Raises:
        TargetError: it is missing, damaged or unreachable, or did not answer in time.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "ioprobe.check.listing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # interrupted, communicate() leaves the pipes of a child that has just ended open
        try:
            # The URL goes through a pipe: it may hold credentials, and command lines can be read by all.
            out, _ = process.communicate(url.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TargetError(
                f"listing '{_shown(url)}' did not end within {timeout_s:g} s",
                hint="check that the store can be reached, or raise --load-timeout",
            ) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    try:
        answer = msgspec.json.decode(out, type=_Answer)
    except msgspec.DecodeError:
        raise TargetError(f"listing '{_shown(url)}' ended with code {process.returncode}") from None
    if answer.facts is None:
        raise TargetError(answer.message, hint=answer.hint)
    return answer.facts


def describe_quickly(url: str) -> DatasetFacts:
    """Return the facts of a dataset from one listing and few headers."""
    from dataclasses import replace

    from ioprobe.data import describe
    from ioprobe.data.urls import list_shards

    found = list_shards(url)
    return DatasetFacts(
        url=found.name,
        format=found.format,
        num_shards=len(found.shards),
        num_samples=describe.count_samples(found)
        if len(found.shards) <= COUNTED_SHARDS or found.format == "imagefolder"
        else None,
        total_bytes=found.total_bytes,
        shard_bytes=[s.size_bytes for s in found.shards[: describe.MAX_LISTED] if s.size_bytes is not None],
        compression=describe.compression(found),
        row_group_rows=describe.row_group_rows(replace(found, shards=found.shards[:COUNTED_SHARDS])),
        filesystem=found.filesystem,
    )


def _shown(url: str) -> str:
    from ioprobe.secrets import redact_url

    return redact_url(url)


def _serve() -> None:
    url = sys.stdin.buffer.read().decode()
    try:
        answer = _Answer(facts=describe_quickly(url))
    except IoprobeError as error:
        answer = _Answer(message=error.message, hint=error.hint)
    except Exception as error:
        answer = _Answer(message=f"cannot list '{_shown(url)}': {type(error).__name__}: {str(error).splitlines()[:1]}")
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    _serve()
