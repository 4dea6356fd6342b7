"""IO1xx: workers and queue."""

from __future__ import annotations

from math import ceil, floor

from ioprobe.diagnosis.rules.base import Abstain, Finding, rule, unknown
from ioprobe.diagnosis.rules.facts import PipelineFacts
from ioprobe.units import format_count, format_seconds, format_share

# Beyond this many workers per core, switching and memory cost more than any latency that they could hide.
MOST_PER_CORE = 8
# A worker's start: fork and first imports, or a new interpreter with torch.
START_S = {"fork": 0.05, "forkserver": 1.0, "spawn": 2.5}


@rule("IO101", "workers-over-cores", needs="num_workers cores", key="num_workers")
def workers_over_cores(facts: PipelineFacts) -> list[Finding] | Abstain:
    """More worker processes than cores, without latency to hide.

    What it sees: num_workers of one rank against the usable cores (after affinity, cgroup quota and the batch
        system's grant) divided by the ranks on the host; from a run also how much of their time workers are blocked.
    Why it matters: Workers that decode take turns on the cores; each further one costs memory, start-up and
        switching, and takes time from the training process.
    When it is wrong: Workers that wait for storage sleep, so many more than cores can be right: say
        `blocks_on_io = true`, name a remote `storage`, or let a run show it. The rule abstains when it cannot tell,
        up to 8 workers a core.
    Example:
        num_workers = 16   # 8 ranks on a host with 64 cores: 8 cores each
        num_workers = 8    # fixed
    """
    assert facts.num_workers is not None
    cores = facts.cores_per_rank
    assert cores is not None
    workers = facts.num_workers
    if workers <= max(1.0, cores):
        return []
    blocked = facts.blocked_share
    if blocked is not None:
        most = ceil(cores / max(0.05, 1 - blocked)) + 1
        evidence = f"; workers are blocked {format_share(blocked)} of their time, so {most} can be useful"
    elif facts.blocks_on_io or (facts.blocks_on_io is None and facts.remote):
        most, evidence = floor(cores * MOST_PER_CORE), f"; {MOST_PER_CORE} per core are the most even to hide latency"
    elif facts.blocks_on_io is False or facts.remote is False:
        most, evidence = max(1, floor(cores)), ""
    else:
        most, evidence = floor(cores * MOST_PER_CORE), f"; {MOST_PER_CORE} per core are the most even to hide latency"
        if workers <= most:
            return Abstain(
                f"{workers} workers on {format_count(cores)} cores are right only if they wait for storage: "
                "say blocks_on_io, name the storage, or measure"
            )
    if workers <= most:
        return []
    share = (
        f" ({format_count(facts.cores)} cores over {facts.local_ranks} ranks)" if (facts.local_ranks or 1) > 1 else ""
    )
    return [
        Finding(
            text=f"{workers} workers for {format_count(cores)} usable cores per rank{share}{evidence}",
            fix=f"set num_workers = {max(1, min(most, floor(cores))) if blocked is None else most}",
        )
    ]


@rule("IO102", "no-workers", needs="num_workers", key="num_workers")
def no_workers(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Without a worker, loading and training take turns.

    What it sees: num_workers = 0; with the times of sample and step also what it costs.
    Why it matters: The step waits for all of read, decode and collate of every batch; one worker would hide them.
    When it is wrong: Data that lies in memory as tensors (TensorDataset) costs less than passing it between
        processes; so does a step that dwarfs the loading. Give sample_ms and step_ms, or measure.
    Example:
        num_workers = 0
        num_workers = 2    # fixed
    """
    if facts.num_workers != 0:
        return []
    if facts.dataset_type.rsplit(".", 1)[-1] in {"TensorDataset", "FakeData"}:
        return []
    cost = _serial_share(facts)
    if cost is not None and cost < 0.05:
        return []
    if facts.kind == "opaque" and cost is None:
        return Abstain("not a DataLoader: it may well overlap by itself")
    seen = f": {format_share(cost)} of the loop is spent on it" if cost is not None else ""
    return [
        Finding(
            text=f"num_workers = 0: nothing overlaps, every step waits for its whole batch{seen}",
            fix="set num_workers = 1 or more, with persistent_workers = true",
        )
    ]


def _serial_share(facts: PipelineFacts) -> float | None:
    if facts.stall_share is not None:
        return facts.stall_share
    if facts.sample_s is not None and facts.step_s is not None and facts.batch_size is not None:
        loading_s = facts.sample_s * facts.batch_size
        return loading_s / (loading_s + facts.step_s)
    return None


@rule("IO103", "workers-restart", needs="num_workers", key="persistent_workers")
def workers_restart(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Workers start again for every epoch.

    What it sees: persistent_workers off, against the length of an epoch, the start method and, where known, the
        time that a worker needs to start and the step's time.
    Why it matters: At each epoch's edge the queue is empty and every worker starts, imports, unpickles the dataset
        and opens its files again; short epochs and spawn pay most.
    When it is wrong: One epoch only (say `epochs = 1`), or long epochs. A dataset that must be rebuilt in the
        workers every epoch (set_epoch on a copy) needs the restart.
    Example:
        num_workers = 8
        epoch_batches = 50
        persistent_workers = true    # fixed
    """
    if not facts.num_workers:
        return []
    if facts.persistent_workers is None:
        return unknown(facts, "persistent_workers")
    if facts.persistent_workers or facts.epochs == 1:
        return []
    method = facts.multiprocessing_context or "fork"
    if facts.edge_share is not None:
        if facts.edge_share < 0.03:
            return []
        cost = f"{format_share(facts.edge_share)} of the loop goes by at epoch edges"
    else:
        if facts.epoch_batches is None:
            return unknown(facts, "epoch_batches", how="length of an epoch")
        start_s = facts.worker_start_s
        known = start_s is not None
        if start_s is None:
            start_s = START_S[method]
        # torch starts workers one after the other; what they do by themselves after that overlaps.
        restart_s = start_s + (facts.num_workers - 1) * (0.01 if method == "fork" else 0.1)
        step_s = facts.step_s if facts.step_s is not None else 0.05
        share = restart_s / (restart_s + facts.epoch_batches * step_s)
        if share < 0.02:
            return []
        basis = "" if known and facts.step_s is not None else ", estimated"
        cost = (
            f"restarting {facts.num_workers} workers ({method}) takes about {format_seconds(restart_s)} of every "
            f"epoch of "
            f"{facts.epoch_batches} batches ({format_share(share)}{basis})"
        )
    return [Finding(text=f"persistent_workers is off: {cost}", fix="set persistent_workers = true")]


@rule("IO105", "settings-without-workers", level="error", needs="num_workers", key="num_workers")
def settings_without_workers(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Settings that only workers can obey.

    What it sees: prefetch_factor, persistent_workers, multiprocessing_context or timeout with num_workers = 0.
    Why it matters: torch refuses the first three with a ValueError where the loader is built, and a timeout with an
        AssertionError where it is iterated.
    When it is wrong: A wrapper that drops them when there are no workers.
    Example:
        num_workers = 0
        prefetch_factor = 4      # ValueError in torch
    """
    if facts.num_workers != 0:
        return []
    given = [
        name
        for name, there in (
            ("prefetch_factor", facts.prefetch_given),
            ("persistent_workers", facts.persistent_workers),
            ("multiprocessing_context", facts.multiprocessing_context),
            ("timeout", facts.timeout_s),
        )
        if there
    ]
    unsaid = " by default" if facts.is_default("num_workers") else ""
    return [
        Finding(
            text=f"{name} needs workers, but num_workers = 0{unsaid}: torch raises "
            f"{'AssertionError' if name == 'timeout' else 'ValueError'}",
            fix=f"set num_workers = 1 or more, or drop {name}",
            key=name,
        )
        for name in given
    ]


@rule("IO107", "threads-over-cores", needs="num_workers cores", key="thread_pools")
def threads_over_cores(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Thread pools times workers exceed the cores.

    What it sees: Width of the pools of torch, OpenMP, OpenCV, pyarrow, Polars and tokenizers in each worker times
        workers; in a run how many threads compute in a worker, and how long it waits for a core.
    Why it matters: Each library sizes its pool for the whole machine; in every worker again, they fight for cores
        and spin at barriers. One thread per worker is nearly always fastest.
    When it is wrong: Few workers on many cores that were sized together with their pools.
    Example:
        num_workers = 8
        thread_pools = { opencv = 16 }
        thread_pools = { opencv = 1 }    # fixed: cv2.setNumThreads(1) in worker_init_fn
    """
    workers, cores = facts.num_workers, facts.cores_per_rank
    assert workers is not None
    assert cores is not None
    if workers == 0:
        return []
    if facts.threads_per_worker is not None and facts.runq_share is not None:
        threads = facts.threads_per_worker
        # The thread that feeds the queue counts as one, too, but hardly takes a core. Where others use the host, the
        # wait for a core is theirs as well, so more threads of our own are asked for.
        least = 3 if (facts.other_load or 0.0) > 0.3 else 2
        computing = threads >= least and (facts.helper_cores or 0.0) >= 0.2
        wanted = workers * (facts.wanted_cores or 0.0)
        if computing and facts.runq_share >= 0.15 and wanted > 1.2 * cores:
            text = (
                f"each worker computes in {format_count(round(threads, 1))} threads and waits for a core "
                f"{format_share(facts.runq_share)} of its time: {workers} workers on {format_count(cores)} cores"
            )
            return [Finding(text=text, fix=_one_thread(["torch", "openmp"]))]
        if not facts.thread_pools:
            return []
    wide = {name: width for name, width in facts.thread_pools.items() if width > 1}
    if not facts.thread_pools:
        return unknown(facts, "thread_pools", how="width of the pools in a worker")
    widest = max(facts.thread_pools.values())
    if not wide or workers * widest <= max(cores, workers):
        return []
    pools = ", ".join(f"{name} {width}" for name, width in sorted(wide.items()))
    return [
        Finding(
            text=f"{workers} workers x {widest} threads ({pools}) on {format_count(cores)} cores per rank",
            fix=_one_thread(sorted(wide)),
        )
    ]


def _one_thread(libraries: list[str]) -> str:
    calls = {
        "torch": "torch.set_num_threads(1)",
        "openmp": "OMP_NUM_THREADS=1",
        "opencv": "cv2.setNumThreads(1)",
        "pyarrow": "pyarrow.set_cpu_count(1)",
        "polars": "POLARS_MAX_THREADS=1",
        "tokenizers": "TOKENIZERS_PARALLELISM=false",
    }
    return "give each worker one thread: " + ", ".join(calls.get(name, f"{name} to 1") for name in libraries)
