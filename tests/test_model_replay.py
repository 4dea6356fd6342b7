"""The replay against PyTorch itself: given the order in which batches get done, both hand them out alike."""

from __future__ import annotations

import inspect
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.context import ForkContext
from multiprocessing.reduction import ForkingPickler
from queue import Empty
from typing import Any

import pytest

from ioprobe.model.simulate import Event, System, simulate

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info  # noqa: E402

MS = 1e-3
PATIENCE_S = 60.0


class Turnstile:
    """Lets batches pass in a given order: each waits until those before it lie in the result pipe."""

    def __init__(self, context: Any) -> None:
        self.passed = context.Value("q", 0)

    def wait_for(self, rank: int) -> None:
        """Block until it is rank's turn."""
        began = time.monotonic()
        while self.passed.value < rank:
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"rank {rank} never had its turn")
            time.sleep(0.0005)


class ResultPipe:
    """A result queue without a feeder thread: what was put lies in the pipe when ``put`` returns."""

    def __init__(self, context: Any, turnstile: Turnstile) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)
        self._lock = context.Lock()
        self._turnstile = turnstile

    def put(self, item: Any) -> None:
        """Write an item; a batch (not the workers' hello or their end of data) moves the turnstile."""
        data = ForkingPickler.dumps(item)
        with self._lock:
            self._writer.send_bytes(data)
        if isinstance(item, tuple) and isinstance(item[1], torch.Tensor):
            with self._turnstile.passed.get_lock():
                self._turnstile.passed.value += 1

    def get(self, timeout: float | None = None) -> Any:
        """Read an item."""
        if not self._reader.poll(timeout):
            raise Empty
        return ForkingPickler.loads(self._reader.recv_bytes())

    def cancel_join_thread(self) -> None:
        """There is no thread."""

    def close(self) -> None:
        """The pipe closes with its process."""


class Context(ForkContext):
    """PyTorch's fork context, but for the first queue that is asked for: the result queue."""

    def __init__(self, turnstile: Turnstile) -> None:
        super().__init__()
        self._turnstile = turnstile
        self._first = True

    def Queue(self, maxsize: int = 0) -> Any:
        """Return the pipe first, plain queues later."""
        if self._first:
            self._first = False
            return ResultPipe(multiprocessing.get_context("fork"), self._turnstile)
        return multiprocessing.get_context("fork").Queue(maxsize)


class Scripted(Dataset[Any]):
    """Sample i gets done when its turn comes; it names itself and its worker."""

    def __init__(self, ranks: dict[int, int], turnstile: Turnstile, length: int) -> None:
        self.ranks, self.turnstile, self.length = ranks, turnstile, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        self.turnstile.wait_for(self.ranks[i])
        return torch.tensor([get_worker_info().id, i])


class ScriptedStream(IterableDataset[Any]):
    """Worker w yields so many samples; each names its worker and its place."""

    def __init__(self, counts: tuple[int, ...], ranks: dict[tuple[int, int], int], turnstile: Turnstile) -> None:
        self.counts, self.ranks, self.turnstile = counts, ranks, turnstile

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info().id
        for k in range(self.counts[worker]):
            self.turnstile.wait_for(self.ranks[worker, k])
            yield torch.tensor([worker, k])


ROWS = tuple((0.0, t * MS, 0.0) for t in (31.0, 7.0, 12.0, 53.0, 3.0, 19.0, 41.0, 5.0, 23.0, 2.0, 29.0, 11.0, 17.0))


def owners(order: tuple[Event, ...]) -> dict[int, int]:
    return {e.task: e.worker for e in order if e.kind == "send"}


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("workers", "prefetch"), [(2, 2), (3, 1), (4, 3)])
def test_tasks_go_to_the_same_workers_and_batches_come_in_the_same_order_as_in_pytorch(
    workers: int, prefetch: int, in_order: bool
) -> None:
    if not in_order and "in_order" not in inspect.signature(DataLoader).parameters:
        pytest.skip("this torch delivers in order only")
    count = 40
    given = System(workers, (ROWS,), prefetch_factor=prefetch, in_order=in_order, batches_per_epoch=count)
    trace = simulate(given, count, record=True)
    made = [e.task for e in trace.order if e.kind == "made"]
    turnstile = Turnstile(multiprocessing.get_context("fork"))
    dataset = Scripted({task: rank for rank, task in enumerate(made)}, turnstile, count)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=prefetch,
        multiprocessing_context=Context(turnstile),
        **({} if in_order else {"in_order": False}),
    )
    real = [tuple(batch.tolist()) for batch in loader]
    owner = owners(trace.order)
    assert [task for _, task in real] == trace.index.tolist()
    assert [worker for worker, _ in real] == [owner[task] for task in trace.index.tolist()]


@pytest.mark.parametrize("counts", [(7, 2, 4), (0, 9, 0), (5, 5, 5), (1, 0, 12)])
def test_uneven_shards_come_in_the_same_order_as_in_pytorch(counts: tuple[int, ...]) -> None:
    workers, total = len(counts), sum(counts)
    rows = tuple(ROWS[w:] + ROWS[:w] for w in range(workers))
    trace = simulate(System(workers, rows, worker_batches=counts), total, record=True)
    owner = owners(trace.order)
    place: dict[int, tuple[int, int]] = {}
    ranks: dict[tuple[int, int], int] = {}
    done = [0] * workers
    for task in [e.task for e in trace.order if e.kind == "made"]:
        worker = owner[task]
        place[task] = (worker, done[worker])
        ranks[worker, done[worker]] = len(ranks)
        done[worker] += 1
    turnstile = Turnstile(multiprocessing.get_context("fork"))
    loader = DataLoader(
        ScriptedStream(counts, ranks, turnstile),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=Context(turnstile),
    )
    real = [tuple(batch.tolist()) for batch in loader]
    assert real == [place[task] for task in trace.index.tolist()]
