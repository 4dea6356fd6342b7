"""The loader under test at other settings: a dataset that the main process read goes to no worker."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ioprobe.errors import TargetError  # noqa: E402
from ioprobe.probe import protocol  # noqa: E402
from ioprobe.probe.loader_source import LoaderSource, Spoiled, shut_down  # noqa: E402
from ioprobe.probe.loop import LoopMeter  # noqa: E402
from ioprobe.probe.supervise import Supervisor  # noqa: E402

MADE = """
import torch
from concurrent.futures import ThreadPoolExecutor
from torch.utils.data import DataLoader, Dataset

made = []


class Pooled(Dataset):
    pool = None

    def __len__(self):
        return 64

    def __getitem__(self, i):
        if self.pool is None:
            self.pool = ThreadPoolExecutor(2)
        return self.pool.submit(torch.full, (4,), i).result(timeout=20)


def make_loader(**options):
    made.append(options)
    return DataLoader(Pooled(), **{"batch_size": 8, **options})


def without_keywords():
    made.append({})
    return DataLoader(Pooled(), batch_size=8)


def drops_keywords(**options):
    return DataLoader(Pooled(), batch_size=8)


def by_name():
    return {"train": DataLoader(Pooled()), "val": DataLoader(Pooled())}


def pair():
    return DataLoader(Pooled()), DataLoader(Pooled())


shared = Pooled()


def one_dataset(**options):
    return DataLoader(shared, **{"batch_size": 8, **options})


def a_list_later():
    return [torch.zeros(2)] if made else make_loader()


def only_once():
    if made:
        raise RuntimeError("the port is taken")
    return make_loader()
"""

WRAPPED = """

class Wrapper:
    def __init__(self, loader):
        self.loader, self.made = loader, made

    def __iter__(self):
        return iter(self.loader)


def wrapped(num_workers=0):
    return Wrapper(make_loader(num_workers=num_workers))
"""


def source(folder: Path, name: str = "make_loader", **options: object) -> LoaderSource:
    (folder / "pooled.py").write_text(MADE)
    return LoaderSource(f"{folder / 'pooled.py'}:{name}", options)


def drained(given: LoaderSource, **changes: object) -> int:
    loader, settings = given.at(changes)
    run = LoopMeter(loader, None, settings=settings, seconds=0.3, least_s=0.1).run()
    assert run.failure is None, run.failure
    return len(run.main.wait_s)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["make_loader", "without_keywords"])
def test_workers_get_a_dataset_that_the_main_process_did_not_open(tmp_path: Path, workers: int, name: str) -> None:
    given = source(tmp_path, name, num_workers=workers)
    for turn in (0, 1):
        assert drained(given, num_workers=turn) >= 8
    loader, settings = given.at({})
    assert settings is not None
    assert (settings.num_workers, loader.num_workers, settings.batch_size) == (workers, workers, 8)


def test_nothing_is_made_anew_without_need(tmp_path: Path) -> None:
    given = source(tmp_path, num_workers=2)
    first = given.at({})[0].dataset
    assert given.at({"num_workers": 1})[0].dataset is first
    assert given.at({"num_workers": 0})[0].dataset is first
    assert given.at({"num_workers": 0})[0].dataset is first
    assert given.at({})[0].dataset is not first


def test_two_datasets_never_lie_in_memory_at_once(tmp_path: Path) -> None:
    given = source(tmp_path)
    first = weakref.ref(given.at({})[0].dataset)
    gc.collect()
    assert first() is not None
    later, _ = given.at({"num_workers": 1})
    assert first() is None
    shut_down(later)


def test_a_dataset_that_the_factory_keeps_needs_a_new_process(tmp_path: Path) -> None:
    given = source(tmp_path, "one_dataset", num_workers=1)
    given.at({})
    first = given.at({"num_workers": 0})[0].dataset
    with pytest.raises(Spoiled):
        given.at({})
    assert given.at({})[0].dataset is first  # asked again, where no process may be started


def test_a_factory_that_makes_something_else_later_is_named(tmp_path: Path) -> None:
    given = source(tmp_path, "a_list_later")
    given.at({})
    for _ in range(2):
        with pytest.raises(TargetError, match=r"called a second time, .* no DataLoader, but an object of type list"):
            given.at({"num_workers": 2})


def test_a_supervisor_goes_on_in_a_new_process(tmp_path: Path) -> None:
    (tmp_path / "pooled.py").write_text(MADE)
    with Supervisor() as supervisor:
        supervisor.load(protocol.Load(target=f"{tmp_path / 'pooled.py'}:one_dataset", step_s=0.001))
        for changes in ({}, {"num_workers": 1}, {"num_workers": 0}, {"num_workers": 1}):
            found = supervisor.measure(protocol.Measure(coupled=True, seconds=0.3, least_s=0.1, changes=changes))
            assert found.failure is None, found.failure
            assert len(found.main.wait_s) >= 8


def test_settings_that_a_factory_takes_and_drops_are_set_all_the_same(tmp_path: Path) -> None:
    settings = source(tmp_path, "drops_keywords", num_workers=2, batch_size=4, prefetch_factor=3).facts.settings
    assert settings is not None
    assert (settings.num_workers, settings.batch_size, settings.prefetch_factor) == (2, 4, 3)


@pytest.mark.parametrize(
    ("name", "what"),
    [("by_name", "a dict of DataLoaders"), ("pair", "a tuple of DataLoaders"), ("Pooled", "a dataset of type Pooled")],
)
def test_what_holds_loaders_or_samples_is_no_loader_of_batches(tmp_path: Path, name: str, what: str) -> None:
    with pytest.raises(TargetError, match=f"{what}.*expected (one|a) DataLoader or an iterable of batches"):
        source(tmp_path, name)


def test_a_factory_that_works_only_once_says_so(tmp_path: Path) -> None:
    given = source(tmp_path, "only_once")
    given.at({})
    with pytest.raises(TargetError, match=r"called a second time, the factory .* raised: RuntimeError: the port"):
        given.at({"num_workers": 2})


def test_a_wrapper_s_factory_is_called_once_for_each_setting(tmp_path: Path) -> None:
    (tmp_path / "pooled.py").write_text(MADE + WRAPPED)
    given = LoaderSource(f"{tmp_path / 'pooled.py'}:wrapped", {})
    made = given.at({})[0].made
    before = len(made)
    given.at({"num_workers": 1})
    assert len(made) == before + 1
