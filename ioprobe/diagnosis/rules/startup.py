"""IO4xx: start-up and processes."""

from __future__ import annotations

from ioprobe.diagnosis.rules.base import Abstain, Finding, rule, unknown
from ioprobe.diagnosis.rules.facts import PipelineFacts
from ioprobe.units import format_bytes, format_seconds

# Pickling, a pipe and unpickling together, for Python objects [bytes/s].
PICKLE_BYTES_PER_S = 100e6
LARGE_PICKLE_BYTES = 4 << 20


@rule("IO401", "fork-with-threads", level="error", needs="num_workers", key="multiprocessing_context")
def fork_with_threads(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Workers are forked from a process with live threads or CUDA.

    What it sees: The start method fork with threads alive in the main process, or CUDA touched before.
    Why it matters: fork copies locks as they are held but not the threads that would release them: workers hang for
        ever, now and then. CUDA cannot be used again in a forked child at all.
    When it is wrong: Threads that never hold a lock that a worker needs.
    Example:
        multiprocessing_context = "fork"
        parent_threads = 9                           # an OpenMP pool, a logger, a metrics client
        multiprocessing_context = "forkserver"       # fixed
    """
    if not facts.num_workers:
        return []
    method = facts.multiprocessing_context
    if method in {"spawn", "forkserver"}:
        return []
    if facts.cuda_before_fork:
        return [
            Finding(
                text="CUDA is initialised before the workers fork; a worker that touches it fails",
                fix='set multiprocessing_context = "forkserver" (or "spawn"), or start the workers before CUDA',
            )
        ]
    if facts.parent_threads is None:
        return unknown(facts, "parent_threads", how="threads alive when workers start")
    if facts.parent_threads <= 1:
        return []
    return [
        Finding(
            text=f"workers are forked while {facts.parent_threads} threads run in the main process; a lock held at "
            f"that "
            "moment hangs a worker",
            fix='set multiprocessing_context = "forkserver", or start threads after the workers',
        )
    ]


@rule("IO402", "spawn-pickles-dataset", needs="num_workers", key="multiprocessing_context")
def spawn_pickles_dataset(facts: PipelineFacts) -> list[Finding] | Abstain:
    """The dataset is pickled to every worker.

    What it sees: spawn or forkserver with a dataset that pickles to more than 4 MiB, once or in every epoch.
    Why it matters: The main process pickles it for one worker after the other, and each unpickles it, before the
        first batch; without persistent_workers again in every epoch.
    When it is wrong: One start in a job of days.
    Example:
        multiprocessing_context = "spawn"
        dataset_pickle_bytes = "400MiB"    # a list of paths
        dataset_pickle_bytes = "1KiB"      # fixed: keep the index in a file or array that workers open
    """
    method = facts.multiprocessing_context
    if not facts.num_workers or method not in {"spawn", "forkserver"}:
        return []
    size = facts.dataset_pickle_bytes
    if size is None:
        return unknown(facts, "dataset_pickle_bytes")
    if size < LARGE_PICKLE_BYTES:
        return []
    again = facts.persistent_workers is False and facts.epochs != 1
    cost_s = facts.num_workers * size / PICKLE_BYTES_PER_S
    if not again and cost_s < 5:
        return []
    when = "in every epoch" if again else "before the first batch"
    return [
        Finding(
            text=f"{method} pickles {format_bytes(size)} of dataset to each of {facts.num_workers} workers {when}: "
            f"about "
            f"{format_seconds(cost_s)}",
            fix=("set persistent_workers = true and " if again else "")
            + "keep the index outside the pickled object (a file, a memory map, shared memory)",
        )
    ]
