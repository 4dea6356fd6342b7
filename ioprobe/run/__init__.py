"""What was measured: the one file on disk.

A :class:`Run` holds raw series in the order in which they were seen, the facts
of the machine, and what was asked. Nothing derived is stored: ladder, verdict
and advice are computed again from the run, so old files gain from new rules,
and a run recorded on a cluster is analysed on a laptop.

None means *not measured*; 0 means zero. Every time is in seconds, every size in
bytes, every share a fraction of 1; times within one measurement count from its
start on the monotonic clock.
"""

from ioprobe.run.file import dumps, load, loads, write_atomic
from ioprobe.run.host import Host, HostLoad, ProcessLoad, Surroundings
from ioprobe.run.loader import TORCH_KNOBS, DatasetFacts, LoaderFacts, LoaderSettings
from ioprobe.run.loading import HotFrame, LoaderRun, MainBatches, SampleRepeats, StackShares, WorkerBatches
from ioprobe.run.schemas import json_schema, schema
from ioprobe.run.step import Partition, StepRun, SyncDifference
from ioprobe.run.storage import StorageJob
from ioprobe.run.whole import Run, Workload, now_utc
from ioprobe.run.words import Caveat, Failure, Limit, Stage

__all__ = [
    "TORCH_KNOBS",
    "Caveat",
    "DatasetFacts",
    "Failure",
    "Host",
    "HostLoad",
    "HotFrame",
    "Limit",
    "LoaderFacts",
    "LoaderRun",
    "LoaderSettings",
    "MainBatches",
    "Partition",
    "ProcessLoad",
    "Run",
    "SampleRepeats",
    "StackShares",
    "Stage",
    "StepRun",
    "StorageJob",
    "Surroundings",
    "SyncDifference",
    "WorkerBatches",
    "Workload",
    "dumps",
    "json_schema",
    "load",
    "loads",
    "now_utc",
    "schema",
    "write_atomic",
]
