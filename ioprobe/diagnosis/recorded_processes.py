"""A verdict from the kernel's view of a job alone: CPU time and what the processes sleep in. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ioprobe.diagnosis.recorded_stacks import oversubscribed, reads_large_blocks, verdict_of
from ioprobe.diagnosis.types import Diagnosis, Verdict
from ioprobe.run import Limit, ProcessLoad, Run
from ioprobe.units import format_share

_POLLS = ("poll", "select", "ep_", "epoll")


def diagnose_processes(run: Run) -> Diagnosis:
    """Return the verdict that CPU time and wait channels of main and workers allow, without any stack.

    Raises:
        ValueError: the run has no processes.
    """
    seen = [p for loader in run.loaders for p in loader.processes]
    mains, workers = [p for p in seen if p.role == "main"], [p for p in seen if p.role == "worker"]
    if not seen:
        raise ValueError("the run has no processes")
    hint = "stacks (without --no-stacks) tell more"
    if not mains or not workers:
        text = f"{len(mains)} main processes and {len(workers)} workers were seen, too few to tell; {hint}"
        return verdict_of(Verdict.UNDECIDED, None, text, [], None)
    cpu = sum(p.cpu_s for p in workers) / sum(p.window_s for p in workers)
    main_cpu = sum(p.cpu_s for p in mains) / sum(p.window_s for p in mains)
    idle, waiting = _polling(workers), _polling(mains)
    reasons = [
        f"each worker uses {cpu:.2f} cores, the main process {main_cpu:.2f}",
        "from /proc alone: which stage of the CPU work it is, stacks would tell",
    ]
    if idle is None or waiting is None:
        text = f"the kernel does not show what the processes sleep in; each worker uses {cpu:.2f} cores; {hint}"
        return verdict_of(Verdict.UNDECIDED, None, text, reasons, None)
    evidence = f"the main process sleeps in a poll {format_share(waiting)} of the time, "
    evidence += f"its workers {format_share(idle)} of theirs"
    if idle < 0.3 and waiting >= 0.2:
        blocked = 1 - idle - cpu
        limit = Limit.TRANSFORM if cpu >= blocked else Limit.STORAGE_LATENCY
        if limit is Limit.STORAGE_LATENCY and reads_large_blocks(run):
            limit = Limit.STORAGE_BANDWIDTH
        if limit is Limit.TRANSFORM and (text := oversubscribed(run)):
            limit, evidence = Limit.OVERSUBSCRIPTION, f"{evidence}; {text}"
        return verdict_of(Verdict.DATA_BOUND, limit, evidence, reasons, None)
    if idle >= 0.3 and waiting < 0.1:
        return verdict_of(Verdict.COMPUTE_BOUND, Limit.STEP, evidence, reasons, None)
    return verdict_of(Verdict.UNDECIDED, None, f"{evidence}: no clear sign; {hint}", reasons, None)


def _polling(processes: Sequence[ProcessLoad]) -> float | None:
    """Return the share of looks at which the main threads slept in poll or select; None where channels are hidden."""
    total, polls, named = 0, 0, 0
    for process in processes:
        for state, count in process.states.items():
            total += count
            named += count if state not in ("sleeping",) else 0
            polls += count if any(word in state for word in _POLLS) else 0
    return None if not total or named < 0.5 * total else polls / total
