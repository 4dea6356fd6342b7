"""Counted stacks of a job, told apart by process and thread, as shares of stages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ioprobe.instrument.stages import Classified, Frame, Rule, classify, module_of, role_frames
from ioprobe.live.stacks.recordings import Stack
from ioprobe.run import HotFrame, StackShares, Stage

_MOST_HOT = 20
ROLES = ("main", "worker", "thread")


class Explained(NamedTuple):
    """Why stacks were put in a stage, for ``--explain``."""

    role: str
    stage: Stage
    rule: str
    frame: Frame
    """The user's innermost frame, or the one that decided."""
    innermost: Frame
    samples: int


class Job(NamedTuple):
    """One rank of a job: a training process with its DataLoader workers."""

    pid: int | None
    """None where the recording does not tell processes apart."""
    shares: list[StackShares]
    workers: int
    """Worker processes seen."""
    explained: list[Explained]
    busy_workers: int = 0
    """Workers that did anything but wait."""


def jobs(stacks: Iterable[Stack], extra_rules: Sequence[Rule] = ()) -> list[Job]:
    """Return one job for each training process among the stacks, in order of its pid.

    DataLoader workers are known by their ``_worker_loop`` and belong to the training process above them. Processes that
    neither load nor train (launchers, resource trackers, a dataset's own helpers) are left out.
    """
    by_pid: dict[int | None, list[Stack]] = defaultdict(list)
    for stack in stacks:
        by_pid[stack.pids[-1] if stack.pids else None].append(stack)
    workers = {pid for pid, found in by_pid.items() if pid is not None and any(_is_worker(s) for s in found)}
    mains = [pid for pid in by_pid if pid not in workers]
    training = [pid for pid in mains if any(_trains(s, extra_rules) for s in by_pid[pid])]
    # A loop that was never seen inside loader or step is still the only one there.
    chosen = training or ([p for p in mains if not any(_is_launcher(s) for s in by_pid[p])] or mains)[:1]
    if not chosen:
        chosen = [None]
    owner = {pid: _owner(by_pid[pid], chosen) for pid in workers}
    return [
        _job(pid, by_pid.get(pid, []), {w: by_pid[w] for w in workers if owner[w] == pid}, extra_rules)
        for pid in sorted(chosen, key=lambda p: p or 0)
    ]


def _is_worker(stack: Stack) -> bool:
    return role_frames(stack.frames)[1]


def _is_launcher(stack: Stack) -> bool:
    return any(module_of(f.file).startswith("torch.distributed.elastic") for f in stack.frames)


def _trains(stack: Stack, extra_rules: Sequence[Rule]) -> bool:
    """Return whether a stack of a main thread is that of a training loop."""
    if stack.is_main_thread is False or _is_launcher(stack):
        return False
    if any(module_of(f.file) == "torch.utils.data.dataloader" for f in stack.frames):
        return True
    found = classify(stack.frames, "main", extra_rules)
    return found.stage in (Stage.STEP, Stage.COMMUNICATION) and found.rule != "main thread outside the loader"


def _owner(stacks: list[Stack], mains: Sequence[int | None]) -> int | None:
    """Return the training process nearest above a worker; the first one where the recording does not tell."""
    for stack in stacks:
        for pid in reversed(stack.pids[:-1]):
            if pid in mains:
                return pid
    return mains[0]


def _job(pid: int | None, own: list[Stack], workers: dict[int | None, list[Stack]], extra_rules: Sequence[Rule]) -> Job:
    seen: dict[str, list[tuple[Stack, Classified]]] = {role: [] for role in ROLES}
    for stack in own:
        role = "worker" if _is_worker(stack) else "thread" if stack.is_main_thread is False else "main"
        seen[role].append((stack, classify(stack.frames, role, extra_rules)))
    busy = 0
    for stacks in workers.values():
        working = False
        for stack in stacks:
            # Feeder and sharer threads of a worker carry its batches; they count as threads of the job.
            role = "thread" if stack.is_main_thread is False or not _is_worker(stack) else "worker"
            found = classify(stack.frames, role, extra_rules)
            working |= role == "worker" and found.stage not in (Stage.WAIT, Stage.OTHER)
            seen[role].append((stack, found))
        busy += working
    shares = [s for role in ROLES if (s := _shares(role, seen[role])) is not None]
    explained = [e for role in ROLES for e in _explained(role, seen[role])]
    return Job(pid, shares, len(workers), explained, busy)


def _shares(role: str, rows: list[tuple[Stack, Classified]]) -> StackShares | None:
    stages: Counter[Stage] = Counter()
    places: Counter[tuple[Stage, str, str, int, str]] = Counter()
    for stack, found in rows:
        stages[found.stage] += stack.samples
        frame = found.frame
        places[found.stage, frame.function, frame.file, frame.line, found.rule] += stack.samples
    if not stages:
        return None
    first: dict[Stage, HotFrame] = {}
    others: list[HotFrame] = []
    for (stage, function, file, line, rule), count in places.most_common():
        hot = HotFrame(stage=stage, function=function, file=file, line=line, samples=count, rule=rule)
        if stage in first:
            others.append(hot)
        else:
            first[stage] = hot
    hottest = [*first.values(), *others][:_MOST_HOT]
    return StackShares(role=role, samples=sum(stages.values()), stages=dict(stages), hottest=hottest)


def _explained(role: str, rows: list[tuple[Stack, Classified]]) -> list[Explained]:
    counts: Counter[tuple[Stage, str, Frame, Frame]] = Counter()
    for stack, found in rows:
        plain = (found.frame._replace(call=""), stack.frames[0]._replace(call=""))
        counts[found.stage, found.rule, plain[0], plain[1]] += stack.samples
    return [Explained(role, stage, rule, frame, inner, n) for (stage, rule, frame, inner), n in counts.most_common()]
