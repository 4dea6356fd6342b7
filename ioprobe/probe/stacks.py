"""From counted stacks to shares of stages."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ioprobe.instrument.stages import Frame, classify
from ioprobe.run import HotFrame, StackShares, Stage


def stack_shares(worker: list[Any], main: list[Any]) -> list[StackShares]:
    """Return the shares of workers and of the main process, main threads and further threads apart.

    Args:
        worker: Rows ``[is main thread, count, frames]`` from worker processes.
        main: The main process's rows; 2 instead of 1 for its main thread where that was in the loader.
    """
    groups = {
        "worker": [row for row in worker if row[0]],
        "worker-thread": [row for row in worker if not row[0]],
        "main": [row for row in main if row[0]],
        "thread": [row for row in main if not row[0]],
    }
    return [shares for role, found in groups.items() if (shares := _shares(role, found)) is not None]


def _shares(role: str, rows: list[Any]) -> StackShares | None:
    stages: Counter[Stage] = Counter()
    hot: Counter[tuple[Stage, str, str, int, str]] = Counter()
    for main, count, raw in rows:
        frames = [Frame(*frame) for frame in raw]
        if not frames:
            stages[Stage.OTHER] += count
            continue
        found = classify(frames, "worker" if role == "worker-thread" else role, in_loader=main == 2)
        stage = found.stage
        if (
            role.endswith("thread")
            and frames[0].function.rpartition(".")[2] == "wait"
            and frames[0].module == "threading"
        ):
            stage = Stage.WAIT  # a queue's feeder or a pool's thread with nothing to do
        stages[stage] += count
        hot[stage, found.frame.function, found.frame.file, found.frame.line, found.rule] += count
    total = sum(stages.values())
    if not total:
        return None
    hottest = [
        HotFrame(stage=stage, function=function, file=file, line=line, samples=count, rule=rule)
        for (stage, function, file, line, rule), count in hot.most_common(20)
    ]
    return StackShares(role=role, samples=total, stages=dict(stages), hottest=hottest)
