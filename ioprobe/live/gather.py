"""From the journals of a launched job to one run: a rank per training process, its loaders told apart and named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ioprobe import __version__
from ioprobe.instrument.stacks import named_rows
from ioprobe.live.hooks.phases import OBSERVE
from ioprobe.live.journals import Iterated, JobProcess, Known
from ioprobe.live.loops import Loop, Rows, cached_steps, drained, loop_of, rows_of
from ioprobe.live.profile import profile
from ioprobe.probe.rows import init_times, worker_batches
from ioprobe.probe.stacks import stack_shares
from ioprobe.run import (
    Caveat,
    Host,
    LoaderFacts,
    LoaderRun,
    LoaderSettings,
    MainBatches,
    Partition,
    Run,
    StepRun,
    Workload,
)

_FEWEST = 3
_WARM_STEPS = 3


@dataclass
class Lead:
    """A loader of a process with all that was seen of it."""

    known: Known
    iterators: list[Iterated]
    rows: Rows

    backward: bool = False
    """Whether a backward pass of the process is known."""

    @property
    def training(self) -> int:
        """Batches under gradient; 0 where others' batches are followed by backward passes, and this loader's never."""
        counts = [c for i in self.iterators if len(c := i.rows.get("backwards", [])) > 1]
        if self.backward and counts and all(c[-1] == c[0] for c in counts):
            return 0
        return int(sum(sum(i.rows.get("training", [])) for i in self.iterators))

    @property
    def in_main_thread(self) -> bool:
        """Whether the job's main thread reads it."""
        return all(i.in_main_thread for i in self.iterators)


def gather(processes: list[JobProcess], folder: Path, host: Host, workload: Workload, created_at: str) -> Run:
    """Return the run of a job, rank 0 with the other ranks in it.

    Args:
        processes: The job's processes, in order of their start.
        folder: Where traces lie.
        host: This machine.
        workload: What was asked.
        created_at: UTC, ISO 8601.
    """
    chosen, caveats = _training(processes)
    runs = []
    for process in chosen:
        run = Run(kind="run", created_at=created_at, version=__version__, host=_host(host, process), workload=workload)
        run.rank = int(process.head.get("rank", 0))
        run.world_size = max(int(process.head.get("world_size", 1)), len(chosen))
        _fill(run, process, folder)
        runs.append(run)
    if not runs:
        run = Run(kind="run", created_at=created_at, version=__version__, host=host, workload=workload)
        run.caveats.append(_nothing(processes))
        return run
    runs.sort(key=lambda r: r.rank)
    first = runs[0]
    first.ranks = runs[1:]
    first.caveats += caveats
    return first


def _host(host: Host, process: JobProcess) -> Host:
    torch = process.head.get("torch")
    python = str(process.head.get("python") or host.python)
    return msgspec.structs.replace(host, torch=str(torch) if torch else host.torch, python=python)


def _training(processes: list[JobProcess]) -> tuple[list[JobProcess], list[Caveat]]:
    """Return the processes that train, one for each rank; without any, those whose stacks were seen."""
    loading = [p for p in processes if p.batches >= _FEWEST]
    if not loading:
        workers = {pid for p in processes for i in p.iterators.values() for pid in i.pids}
        others = [p for p in processes if p.stacks and not p.is_launcher and p.pid not in workers]
        ranked = _by_rank(others)
        return (list(ranked.values()) if len(ranked) > 1 else others[-1:]), []
    ranked = _by_rank(loading)
    if len(ranked) > 1:
        return list(ranked.values()), []
    best = max(loading, key=lambda p: p.batches)
    if len(loading) == 1:
        return [best], []
    text = f"{len(loading)} processes, one rank each or none, used a DataLoader; this is the one with the most batches"
    return [best], [Caveat("several-processes", text, "launch them one by one to see each")]


def _by_rank(processes: list[JobProcess]) -> dict[int, JobProcess]:
    """Return the process of each rank; the one with the most batches where a rank was started again."""
    found: dict[int, JobProcess] = {}
    for process in processes:
        rank = process.head.get("rank")
        if rank is None or int(process.head.get("world_size", 1)) < 2:
            continue
        if int(rank) not in found or process.batches > found[int(rank)].batches:
            found[int(rank)] = process
    return found


def _nothing(processes: list[JobProcess]) -> Caveat:
    if processes:
        text = "no process of the job used a DataLoader or lived long enough to be sampled"
    else:
        text = "no Python process of the job imported torch under the probe (python -I, -E and -S ignore PYTHONPATH)"
    return Caveat("nothing-seen", text, "look at the live job from outside with 'ioprobe attach PID'")


def _fill(run: Run, process: JobProcess, folder: Path) -> None:
    """Put what was seen of a process into its run."""
    leads = _leads(process)
    order = sorted(range(len(leads)), key=lambda k: (-leads[k].training, -len(leads[k].rows.call_s), k))
    leads = [leads[k] for k in order]
    usable = [lead for lead in leads if lead.in_main_thread and len(lead.rows.call_s) >= _FEWEST]
    main_stacks = _main_stacks(process)
    if not usable:
        shares = stack_shares([], main_stacks)
        run.loaders = [LoaderRun(coupled=True, settings=None, main=MainBatches(), stacks=shares)]
        run.caveats.append(_without_loader(leads, sum(s.samples for s in shares if s.role == "main")))
        return
    names: Counter[str] = Counter()
    for lead in usable[1:]:
        others = [i for other in leads if other is not lead for i in other.iterators]
        loop = loop_of(lead.rows, others, process.idle_s, meetings=False)
        if len(loop.main.call_s) >= _FEWEST:
            run.loaders.append(_loader_run(lead, loop, [], _name(lead, names), "other"))
    _train(run, usable[0], [i for other in leads if other is not usable[0] for i in other.iterators], process)
    if process.full:
        text = "the job made more batches than are kept; what came after was not observed"
        run.caveats.append(Caveat("observed-enough", text))
    run.partitions = _partitions(process, folder, run)


def _main_stacks(process: JobProcess) -> list[Any]:
    """Return the stacks of the training process, named."""
    try:
        return named_rows(process.stacks.encode())
    except ValueError:  # not ours, or damaged
        return []


def _leads(process: JobProcess) -> list[Lead]:
    leads = []
    backward = any(count for i in process.iterators.values() for count in i.rows.get("backwards", [])[-1:])
    for number, known in enumerate(process.loaders):
        iterators = sorted((i for i in process.iterators.values() if i.loader == number), key=lambda i: i.begin_s)
        rows = rows_of([i for i in iterators if i.rows or i.ends])
        if rows.call_s:
            leads.append(Lead(known, iterators, rows, backward))
    return leads


def _name(lead: Lead, names: Counter[str]) -> str:
    role = "train" if lead.training > len(lead.rows.call_s) / 2 else "validation"
    names[role] += 1
    number = names[role] + (role == "train")
    return role if number == 1 else f"{role}-{number}"


def _without_loader(leads: list[Lead], stacks: int) -> Caveat:
    if leads and not leads[0].in_main_thread:
        text = (
            "the DataLoader is read by a thread of the job, not by its main thread: its waits are not the loop's; "
            f"the verdict rests on {stacks} stacks of the main process"
        )
        return Caveat("read-by-thread", text, "give it more time: stacks come ten times a second")
    text = f"the job made no batches with a DataLoader; the verdict rests on {stacks} stacks of the main process"
    return Caveat("no-dataloader", text, "move reading and decoding into a Dataset to see its stages")


def _facts(lead: Lead) -> LoaderFacts:
    if lead.known.facts is not None:
        return msgspec.convert(lead.known.facts, LoaderFacts)
    head = lead.known.head
    settings = LoaderSettings(
        num_workers=int(head.get("num_workers") or 0),
        prefetch_factor=head.get("prefetch_factor"),
        batch_size=head.get("batch_size"),
    )
    return LoaderFacts(kind="map", settings=settings)


def _train(run: Run, lead: Lead, others: list[Iterated], process: JobProcess) -> None:
    loop = loop_of(lead.rows, others, process.idle_s, meetings=run.world_size > 1)
    run.facts = _facts(lead)
    steps = cached_steps(lead.rows)
    alone = drained(lead.rows)
    if len(alone.call_s) >= _FEWEST:
        run.loaders.append(_alone(lead, alone, process))
    run.loaders.append(_loader_run(lead, loop, _main_stacks(process), "train", "baseline"))
    samples = int(np.median(loop.main.samples)) if loop.main.samples else 1
    device = str(process.head.get("device", "cpu"))
    if len(steps) > 2 * _WARM_STEPS:
        # While the queue fills up, workers still use cores beside the step.
        warm = max(_WARM_STEPS, min(_depth(lead), len(steps) // 2))
        run.step = StepRun(
            durations_s=steps[warm:],
            warmup_s=steps[:warm],
            samples_per_step=samples,
            device=device,
            source="the job's own loop on a resident batch",
        )
    else:
        run.step = _step_of(loop, run.loaders[-1].warmup_batches, samples, device)
    run.caveats += _loop_caveats(loop)


def _step_of(loop: Loop, warmup: int, samples: int, device: str) -> StepRun | None:
    """Return the step as the loop shows it: what is left of each cycle once the exposed wait is taken off."""
    main = loop.main
    step, wait = np.asarray(main.step_s), np.asarray(main.wait_s)
    if main.device_idle_s and any(main.device_idle_s):
        exposed = np.minimum(wait, np.append(main.device_idle_s[1:], main.device_idle_s[-1:]))
        step = step + wait - exposed
    kept = step[min(warmup, len(step) // 2) :]
    if not len(kept):
        return None
    return StepRun(
        durations_s=[float(s) for s in kept],
        samples_per_step=samples,
        device=device,
        coupled=True,
        source="the job's own loop",
    )


def _loop_caveats(loop: Loop) -> list[Caveat]:
    found = []
    total = float(np.sum(loop.main.wait_s) + np.sum(loop.main.step_s))
    if loop.lockstep_s > 0.01 * total:
        text = "the loop reads other loaders in step with this one; waiting for them counts as waiting"
        found.append(Caveat("lockstep-loaders", text))
    return found


def _depth(lead: Lead) -> int:
    settings = _facts(lead).settings
    return settings.depth if settings is not None else 0


def _loader_run(lead: Lead, loop: Loop, main_stacks: list[Any], name: str, purpose: str) -> LoaderRun:
    main = loop.main
    until = max((lead.rows.return_s[k] for k in lead.rows.of_phase(OBSERVE)), default=float("inf"))
    raw = [row for i in lead.iterators for row in i.workers if row["put_s"] <= until]
    workers = worker_batches(raw, 0.0)
    workers.start_s, workers.put_s = loop.on_clock(workers.start_s), loop.on_clock(workers.put_s)
    sizes = sorted(size for i in lead.iterators for size in i.sizes) or [(0, 0)]
    settings = _facts(lead).settings
    starts = [i.init_s / len(i.pids) for i in lead.iterators for _ in i.pids]
    inits: list[float] = []
    for one in lead.iterators:
        ready = [one.times[k][1] if k in one.times else 0.0 for k in range(len(one.pids))]
        inits += init_times(one.begin_s, one.init_s, ready)
    return LoaderRun(
        name=name,
        variable=lead.known.name,
        coupled=True,
        purpose=purpose,
        settings=settings,
        main=main,
        workers=workers if workers.worker else None,
        warmup_batches=min(len(main.call_s), max(1, _depth(lead))),
        stopped_because="exhausted",
        wall_s=float(main.call_s[-1] + main.wait_s[-1] + main.step_s[-1]) if main.call_s else 0.0,
        time_to_first_batch_s=main.wait_s[0] if main.wait_s else None,
        epoch_edges_s=loop.edges_s,
        worker_start_s=starts,
        worker_init_s=inits,
        batch_bytes=sizes[len(sizes) // 2][0] or None,
        batch_tensors=sizes[len(sizes) // 2][1],
        stacks=stack_shares(_worker_stacks(lead), main_stacks),
    )


def _alone(lead: Lead, main: MainBatches, process: JobProcess) -> LoaderRun:
    whole = _loader_run(lead, loop_of(lead.rows, [], {}, meetings=False), _main_stacks(process), "train", "baseline")
    use = [k for k in range(len(lead.rows.call_s)) if lead.rows.columns["phase"][k] == 2]
    begin, end = lead.rows.call_s[use[0]], lead.rows.return_s[use[-1]]
    raw = [row for i in lead.iterators for row in i.workers if begin <= row["put_s"] <= end]
    workers = worker_batches(raw, begin)
    whole.coupled, whole.main = False, main
    whole.workers = workers if workers.worker else None
    whole.warmup_batches = min(len(main.call_s) // 2, _depth(lead) + 1)
    whole.wall_s, whole.time_to_first_batch_s, whole.epoch_edges_s = end - begin, None, []
    return whole


def _worker_stacks(lead: Lead) -> list[Any]:
    found: list[Any] = []
    for iterator in lead.iterators:
        if not iterator.pids:
            continue
        for text in iterator.stacks.values():
            try:
                found += named_rows(text.encode())
            except ValueError:  # the worker was ended while it wrote
                continue
    return found


def _partitions(process: JobProcess, folder: Path, run: Run) -> list[Partition]:
    """Return the traces' divisions; a trace that cannot be read becomes a caveat."""
    from ioprobe.errors import IoprobeError

    found: list[Partition] = []
    for name in process.traces:
        try:
            parts = profile([folder / Path(name).name]).run
        except IoprobeError as error:
            run.caveats.append(Caveat("trace-unread", f"the trace of rank {run.rank} was not read: {error.message}"))
            continue
        found += [msgspec.structs.replace(p, rank=run.rank, source="torch.profiler") for p in parts.partitions]
        run.caveats += parts.caveats
    if found and run.step is not None:
        steps = max(1, sum(p.steps for p in found))
        run.step.parts_s = {
            "compute": sum(p.compute_s for p in found) / steps,
            "communication": sum(p.communication_s for p in found) / steps,
            "transfer": sum(p.transfer_s for p in found) / steps,
        }
        run.step.parts_steps = steps
    return found
