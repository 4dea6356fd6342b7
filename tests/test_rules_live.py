"""Rules over live DataLoader objects, built and not iterated: a variant of each kind of mistake, and its repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset  # noqa: E402

from ioprobe.config import Config, HostConfig, PipelineConfig  # noqa: E402
from ioprobe.diagnosis.rules import gather, judge_pipeline  # noqa: E402
from ioprobe.instrument.facts import loader_facts  # noqa: E402

HOST = HostConfig(cores=8, accelerators=0, memory_bytes=4 << 30, shm_bytes=2 << 30, storage="nvme")


class Files(Dataset[int]):
    """A map-style dataset with a list of Python objects."""

    def __init__(self, count: int) -> None:
        self.names = ["name"] * count

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        return index


class Shards(IterableDataset[int]):
    """A stream over so many shards."""

    def __init__(self, count: int) -> None:
        self.urls = [f"{n}.tar" for n in range(count)]

    def __iter__(self) -> Iterator[int]:
        yield from range(len(self.urls))


class Indexed(Dataset[int]):
    """A map-style dataset that carries an index of so many bytes."""

    def __init__(self, nbytes: int) -> None:
        self.index = bytes(nbytes)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return index


def codes(loader: Any, **table: Any) -> set[str]:
    facts = gather("t", config=PipelineConfig(**table), host=HOST, loader=loader_facts(loader))
    return {o.name for o in judge_pipeline(facts, Config()).outcomes if o.status == "failed"}


def keep(workers: int, **rest: Any) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": True, "batch_size": 8, **rest}


CASES: dict[str, tuple[str, Callable[[], Any], Callable[[], Any], dict[str, Any]]] = {
    "workers": ("IO101", lambda: DataLoader(Files(64), **keep(40)), lambda: DataLoader(Files(64), **keep(6)), {}),
    "serial": ("IO102", lambda: DataLoader(Files(64), batch_size=8), lambda: DataLoader(Files(64), **keep(2)), {}),
    "respawn": (
        "IO103",
        lambda: DataLoader(Files(96), batch_size=8, num_workers=4),
        lambda: DataLoader(Files(96), **keep(4)),
        {},
    ),
    "shallow": (
        "IO104",
        lambda: DataLoader(Files(64), **keep(3, prefetch_factor=1)),
        lambda: DataLoader(Files(64), **keep(3, prefetch_factor=4)),
        {},
    ),
    "queue over memory": (
        "IO201",
        lambda: DataLoader(Files(64), **keep(8, prefetch_factor=32)),
        lambda: DataLoader(Files(64), **keep(8)),
        {"batch_bytes": 32 << 20},
    ),
    "objects": (
        "IO204",
        lambda: DataLoader(Files(1_500_000), **keep(8)),
        lambda: DataLoader(Files(1_500), **keep(8)),
        {},
    ),
    "shards": ("IO301", lambda: DataLoader(Shards(3), **keep(6)), lambda: DataLoader(Shards(48), **keep(6)), {}),
    "remainder": ("IO302", lambda: DataLoader(Shards(7), **keep(6)), lambda: DataLoader(Shards(48), **keep(6)), {}),
    "not split": (
        "IO303",
        lambda: DataLoader(Shards(48), **keep(6)),
        lambda: DataLoader(Shards(48), **keep(1)),
        {"split_by_worker": False},
    ),
    "spawn": (
        "IO402",
        lambda: DataLoader(Indexed(8 << 20), batch_size=8, num_workers=2, multiprocessing_context="spawn"),
        lambda: DataLoader(Indexed(8), **keep(2, multiprocessing_context="spawn")),
        {},
    ),
    "hangs": (
        "IO501",
        lambda: DataLoader(Shards(48), **keep(6)),
        lambda: DataLoader(Shards(48), **keep(6, timeout=300)),
        {"target": "s3://bucket/{000..047}.tar"},
    ),
    "last batch": (
        "IO504",
        lambda: DataLoader(Files(65), **keep(2)),
        lambda: DataLoader(Files(65), **keep(2, drop_last=True)),
        {"compile": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loader_with_the_mistake_is_flagged_and_the_repaired_one_has_nothing_to_object_to(name: str) -> None:
    code, bad, good, table = CASES[name]
    assert code in codes(bad(), **table)
    assert codes(good(), **table) == set()


@pytest.mark.parametrize(("ranks", "found"), [(1, set()), (4, {"IO304", "IO501", "IO502"})])
def test_plain_samplers_are_a_mistake_only_with_several_ranks(ranks: int, found: set[str]) -> None:
    assert codes(DataLoader(Files(64), **keep(2, shuffle=True)), ranks=ranks) == found


def test_tensors_in_memory_need_no_worker() -> None:
    assert codes(DataLoader(TensorDataset(torch.zeros(64, 4)), batch_size=8)) == set()
