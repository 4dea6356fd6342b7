"""The run itself: all that was measured in one go, and what was asked."""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec

from ioprobe.run.host import Host
from ioprobe.run.loader import DatasetFacts, LoaderFacts
from ioprobe.run.loading import LoaderRun
from ioprobe.run.step import Partition, StepRun
from ioprobe.run.storage import StorageJob
from ioprobe.run.words import Caveat, Failure

# History of the schema, newest last. Older files convert on load.
# 1 (2026-11-28): first version.
SCHEMA = 1


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked."""

    target: str = ""
    command: str = ""
    """The command line with credentials removed."""
    step: str | None = None
    seconds: float | None = None
    unit: str = "samples"
    """What ``samples`` counts: ``samples`` or ``tokens``."""
    tokens_per_sample: int | None = None
    seed: int = 0
    dlio: dict[str, float] = {}
    """``batch_size``, ``record_bytes`` and ``computation_s`` of a DLIO workload; empty otherwise."""
    parallel: dict[str, int] = {}
    """How ranks divide the work: sizes of ``dp tp pp cp``; ranks count through tp first, then cp, dp and pp.
    Empty where all are data-parallel."""


class Run(msgspec.Struct, kw_only=True):
    """Everything measured in one go. See the module's docstring."""

    schema: int = SCHEMA
    kind: str
    """The command: ``analyze``, ``storage``, ``loader``, ``step``, ``tune``, ``run``, ``attach`` or ``profile``."""
    created_at: str
    """UTC, ISO 8601."""
    version: str
    """Of ioprobe."""
    complete: bool = True
    """False when it was interrupted or a phase is missing."""
    host: Host
    workload: Workload
    dataset: DatasetFacts | None = None
    facts: LoaderFacts | None = None
    storage: list[StorageJob] = []
    loaders: list[LoaderRun] = []
    step: StepRun | None = None
    partitions: list[Partition] = []
    caveats: list[Caveat] = []
    failures: list[Failure] = []
    rank: int = 0
    world_size: int = 1
    local_ranks: int = 1
    """Ranks that share this rank's host; ``host.usable_cores`` is what is left for one of them."""
    ranks: list[Run] = []
    """The other ranks' runs, on rank 0."""

    def loop(self, purpose: str = "baseline") -> LoaderRun | None:
        """Return the coupled loop measured for a purpose, the last one where there are several."""
        found = [m for m in self.loaders if m.coupled and m.purpose == purpose]
        return found[-1] if found else None

    def loader_alone(self, purpose: str = "baseline") -> LoaderRun | None:
        """Return the loader drained alone, measured for a purpose."""
        found = [m for m in self.loaders if not m.coupled and m.purpose == purpose]
        return found[-1] if found else None


def now_utc() -> str:
    """Return the time for ``created_at``: UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
