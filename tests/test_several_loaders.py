"""A loader made of several DataLoaders is measured by the one that it waits for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from ioprobe.instrument.facts import loader_facts
from ioprobe.probe.loop import LoopMeter


class Sleeps(Dataset[torch.Tensor]):
    """Samples that take a known time each [s]."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tensor([index])


class Several:
    """Zipped or chained; a validation loader is held and not read."""

    def __init__(self, join: Any, *loaders: Any) -> None:
        self.join, self.loaders = join, list(loaders)
        self.val = DataLoader(Sleeps(0.05), batch_size=7)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.join(*self.loaders))


@pytest.mark.parametrize("join", [zip, itertools.chain])
@pytest.mark.parametrize("slow_first", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_dataloader_whose_workers_idle_least_is_the_one_measured(join: Any, slow_first: bool, workers: int) -> None:
    slow = DataLoader(Sleeps(0.004), batch_size=8, num_workers=workers)
    quick = DataLoader(Sleeps(0.0002), batch_size=4, num_workers=workers)
    loader = Several(join, *((slow, quick) if slow_first else (quick, slow)))
    run = LoopMeter(loader, None, settings=loader_facts(loader).settings, seconds=1.0, least_s=0.8).run()
    assert run.settings is not None
    assert run.settings.batch_size == 8
    assert run.workers is not None
    assert sum(run.workers.fetch_wall_s) / len(run.workers.fetch_wall_s) == pytest.approx(0.033, rel=0.3)
