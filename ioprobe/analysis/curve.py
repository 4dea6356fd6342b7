"""How storage scales with ranks: 1, 2, 4, ... of them read the dataset at once, no decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ioprobe.analysis.request import Request
from ioprobe.errors import IoprobeError
from ioprobe.run import Failure, Run, StorageJob

if TYPE_CHECKING:
    from ioprobe.analysis.team import Team

_LEAST_S = 0.5
_BLOCK_BYTES = 1 << 20


def counts(size: int) -> list[int]:
    """Return how many ranks read at once, in turn.

    >>> counts(6), counts(4)
    ([1, 2, 4, 6], [1, 2, 4])
    """
    found = [1]
    while 2 * found[-1] < size:
        found.append(2 * found[-1])
    return found + [size] * (size > 1)


def measure_curve(team: Team, run: Run, request: Request, seconds: float) -> list[StorageJob]:
    """Return what this rank read while 1, 2, 4, ... ranks did, lowest ranks first; the pattern is ``ranks-N``.

    Each rank reads a file of its own where there are enough, past the page cache where that is possible: the ranks of
    a host would only feed each other from it.
    """
    stages = counts(team.size)
    each = max(_LEAST_S, seconds / len(stages))
    settings = run.facts.settings if run.facts else None
    depth = max(1, settings.num_workers if settings else 1)
    jobs = []
    for count in stages:
        team.meet(f"storage-{count}")
        if team.rank < count:
            jobs.append(_read(request.target, team.rank, depth, each, count))
    team.meet("storage-read")
    return jobs


def _read(url: str, rank: int, depth: int, seconds: float, count: int) -> StorageJob:
    try:
        job = _job(url, rank, depth, seconds)
    except IoprobeError as error:
        failure = Failure(phase="storage", kind="exception", message=error.message, hint=error.hint)
        job = StorageJob(name="", url=url, pattern="", failure=failure)
    job.name = f"{count} rank{'s' if count > 1 else ''} at once"
    job.pattern = f"ranks-{count}"
    job.samples = None  # a rung of its own, not one of the dataset's patterns
    return job


def _job(url: str, rank: int, depth: int, seconds: float) -> StorageJob:
    from ioprobe.data.shards import local_path

    if local_path(url) is None:
        from ioprobe.probe.storage import measure_dataset

        found = measure_dataset(url, seconds=seconds, concurrency=depth)
        return max(found, key=lambda job: job.bytes_read / job.window_s if job.window_s > 0 else 0.0)
    from ioprobe.probe.storage_block import measure_block
    from ioprobe.probe.storage_plan import list_files

    files = sorted((size, path) for path, size in list_files(url)[0] if size > 0)[::-1]
    path = files[rank % len(files)][1]
    size = files[rank % len(files)][0]
    return measure_block(
        path,
        pattern="sequential",
        block_bytes=max(4096, min(_BLOCK_BYTES, size // 4096 * 4096)),
        depth=depth,
        direct=True,
        seconds=seconds,
    )
