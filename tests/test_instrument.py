"""The clocks inside a DataLoader process: what they see, and that they change nothing."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ioprobe.instrument import worker
from ioprobe.instrument.batches import count_samples, fingerprint, size_of
from ioprobe.instrument.facts import loader_facts, rebuild
from ioprobe.instrument.hooks import Recorder, install
from ioprobe.instrument.ring import FIELDS, Ring
from ioprobe.instrument.stacks import StackSampler, named_rows
from ioprobe.instrument.worker import BatchClock, WorkerEntry
from ioprobe.probe.failures import failure_of
from ioprobe.probe.loader_source import shut_down
from ioprobe.probe.loop import LoopMeter


class Squares(Dataset[torch.Tensor]):
    """Known samples; two milliseconds each."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.tensor([index, index * index])


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([k]) for k in range(32))


def slow_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    time.sleep(0.01)
    return torch.stack(samples)


def observed(loader: Any) -> tuple[list[torch.Tensor], Recorder]:
    recorder = Recorder()
    uninstall = install(recorder)
    try:
        return [b.clone() for b in loader], recorder
    finally:
        uninstall()
        shut_down(loader)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_write_a_row_per_batch_and_the_batches_stay_what_they_are(method: str) -> None:
    loader = DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context=method, collate_fn=slow_collate)
    plain = [b.clone() for b in loader]
    seen, recorder = observed(loader)
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    (trace,) = recorder.traces
    rows = trace.worker_rows()
    assert sorted(row["index"] for row in rows) == list(range(8))
    assert {row["worker"] for row in rows} == {0.0, 1.0}
    assert all(0.015 <= row["fetch_wall_s"] < 2 for row in rows)
    assert all(row["collate_wall_s"] >= 0.01 for row in rows)
    # Asleep is neither CPU nor standing in line.
    assert all(row["fetch_cpu_s"] < 0.6 * row["fetch_wall_s"] for row in rows)
    assert all(row["nbytes"] == 8 * 2 * 8 for row in rows)
    assert len(trace.call_s) == 8
    assert len(trace.pids) == 2


def test_a_loader_without_workers_gets_rows_from_the_main_process() -> None:
    seen, recorder = observed(DataLoader(Squares(), batch_size=8, collate_fn=slow_collate))
    assert len(seen) == 8
    rows = recorder.traces[0].worker_rows()
    assert [row["index"] for row in rows] == list(range(8))
    assert all(row["collate_wall_s"] >= 0.01 for row in rows)


def test_the_hooks_come_off_without_a_trace() -> None:
    from torch.utils.data import dataloader

    classes: list[Any] = [dataloader._BaseDataLoaderIter, dataloader._MultiProcessingDataLoaderIter]
    before = [(c.__init__, c.__next__, c._next_index) for c in classes]
    install(Recorder())()
    assert [(c.__init__, c.__next__, c._next_index) for c in classes] == before


@pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")
def test_a_stateful_dataloader_is_seen_too() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(Squares(), batch_size=8, num_workers=2, collate_fn=slow_collate)
    seen, recorder = observed(loader)
    assert len(seen) == 8
    assert len(recorder.traces[0].worker_rows()) == 8


def test_an_exception_in_a_worker_arrives_as_pytorch_raises_it() -> None:
    class Bad(Squares):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise ValueError(f"no sample {index}")

    with pytest.raises(ValueError, match="no sample 0"):
        observed(DataLoader(Bad(), batch_size=8, num_workers=1))


def test_a_worker_s_exception_is_named_by_its_first_line() -> None:
    class Bad(Squares):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise ValueError("bad sample\nsee there")

    with pytest.raises(ValueError, match="see there") as caught:
        observed(DataLoader(Bad(), batch_size=8, num_workers=1))
    assert failure_of(caught.value, "loader").message == "in worker 0: ValueError: bad sample"


def test_the_loop_meter_counts_waiting_and_stepping_apart() -> None:
    loader = DataLoader(Squares(), batch_size=8, num_workers=1, persistent_workers=True)
    facts = loader_facts(loader)
    run = LoopMeter(
        loader, lambda batch: time.sleep(0.03), settings=facts.settings, seconds=1.5, least_s=1.0, precision=0.0
    ).run()
    main = run.main
    assert run.failure is None
    assert run.coupled
    assert len(main.call_s) == len(main.wait_s) == len(main.step_s) == len(main.samples)
    assert np.median(main.step_s) == pytest.approx(0.03, rel=0.3)
    # The worker needs 16 ms a batch and the step takes 30 ms: in steady state there is nothing to wait for.
    assert np.median(main.wait_s[4:]) < 0.01
    assert main.epoch[-1] >= 1
    assert len(run.epoch_edges_s) == main.epoch[-1]
    assert run.workers is not None
    assert run.time_to_first_batch_s is not None
    assert {s.role for s in run.stacks} >= {"worker", "main"}


def test_workers_of_a_measurement_are_gone_when_it_ends() -> None:
    loader = DataLoader(Squares(), batch_size=8, num_workers=2, persistent_workers=True)
    LoopMeter(loader, None, settings=loader_facts(loader).settings, seconds=0.8, least_s=0.5).run()
    import psutil

    gc.collect()
    workers = [c for c in psutil.Process().children() if "pt_data_worker" in c.name()]
    assert not workers


def test_a_stream_is_fingerprinted_round_by_round() -> None:
    loader = DataLoader(Stream(), batch_size=4, num_workers=2)
    run = LoopMeter(loader, None, settings=loader_facts(loader).settings, seconds=1.0, least_s=0.5, repeats=True).run()
    assert run.repeats is not None
    assert run.repeats.equal_rounds == run.repeats.rounds


@pytest.mark.parametrize(
    ("batch", "batch_size", "samples"),
    [
        (torch.zeros(8, 3), None, 8),
        ((torch.zeros(8, 3), torch.zeros(8)), None, 8),
        ({"x": torch.zeros(8, 3), "y": ["a"] * 8}, None, 8),
        (["a", "b", "c"], None, 3),
        ([[1, 2, 3]] * 32, 32, 32),
        ([torch.zeros(5), torch.zeros(7)], 2, 2),
        ([{"x": torch.zeros(3)}] * 4, None, 4),
        (np.zeros((6, 2)), None, 6),
        (None, None, 1),
    ],
)
def test_samples_of_a_batch_are_counted(batch: Any, batch_size: int | None, samples: int) -> None:
    assert count_samples(batch, batch_size) == samples


def test_bytes_and_fingerprints_of_a_batch() -> None:
    batch = {"x": torch.zeros(4, 8), "y": np.zeros(4, dtype=np.int64)}
    assert size_of(batch) == (4 * 8 * 4 + 4 * 8, 1)
    assert fingerprint(batch) == fingerprint({"x": torch.zeros(4, 8), "y": np.zeros(4, dtype=np.int64)})
    assert fingerprint(batch) != fingerprint({"x": torch.ones(4, 8), "y": np.zeros(4, dtype=np.int64)})


def test_a_batch_of_very_many_objects_is_sized_from_a_few_of_them() -> None:
    box = {"x": 0.5, "y": 0.5, "w": 0.1, "h": 0.1}
    batch = [[box] * 8000 for _ in range(16)]
    begin = time.thread_time()
    assert size_of(batch) == (16 * 8000 * 4 * 28, 0)
    assert fingerprint(batch) == fingerprint([[dict(box)] * 8000 for _ in range(16)])
    assert time.thread_time() - begin < 0.5  # all of them would take seconds
    assert size_of([torch.zeros(k % 7) for k in range(1000)])[1] == 1000


def test_what_a_batch_holds_deep_inside_is_counted() -> None:
    assert size_of({"a": [{"b": torch.zeros(3)}, {"b": torch.zeros(5)}], "c": "abc", "d": []}) == (35, 2)


def test_a_loader_is_rebuilt_around_its_dataset_sampler_and_collate_function() -> None:
    loader = DataLoader(Squares(), batch_size=8, shuffle=True, collate_fn=slow_collate, drop_last=True)
    other = rebuild(loader, num_workers=2, prefetch_factor=4)
    assert other.dataset is loader.dataset
    assert other.sampler is loader.sampler
    assert other.collate_fn is slow_collate
    assert (other.num_workers, other.prefetch_factor, other.batch_size, other.drop_last) == (2, 4, 8, True)
    assert rebuild(other, num_workers=0).num_workers == 0


def test_facts_of_a_loader_come_without_iterating_it() -> None:
    class Untouched(Squares):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise AssertionError("iterated")

    facts = loader_facts(DataLoader(Untouched(), batch_size=8, num_workers=2, timeout=5))
    assert facts.settings is not None
    assert (facts.kind, facts.num_samples, facts.num_batches) == ("map", 64, 8)
    assert (facts.settings.num_workers, facts.settings.prefetch_factor, facts.settings.timeout_s) == (2, 2, 5.0)


def test_the_ring_keeps_the_newest_rows_and_leaves_no_file() -> None:
    ring = Ring(2, capacity=4)
    for k in range(6):
        ring.append(1, tuple(float(k) for _ in FIELDS))
    assert [row[0] for row in ring.drain(1)] == [2.0, 3.0, 4.0, 5.0]
    assert ring.drain(1) == []
    assert ring.drain(0) == []
    ring.append(1, tuple(9.0 for _ in FIELDS))
    assert [row[0] for row in ring.drain(1)] == [9.0]
    ring.close()


@pytest.mark.parametrize("columns", [2, 3, 4, 6, 8, 10, 1024])
def test_a_fingerprint_sees_every_column_of_even_rows(columns: int) -> None:
    same = torch.zeros(64 * 1024, columns, dtype=torch.uint8)
    prints = [fingerprint(same)]
    for column in range(min(columns, 8)):
        other = same.clone()
        other[:, column] = 7
        prints += [fingerprint(other)]
        assert fingerprint(other) != fingerprint(same)
        assert fingerprint(other.numpy()) != fingerprint(same.numpy())
    assert len(set(prints)) == len(prints)


def test_the_sampler_names_the_c_call_that_a_frame_is_in() -> None:
    import sys

    if sys.version_info < (3, 11):
        pytest.skip("positions in bytecode came with Python 3.11")
    sampler = StackSampler(hz=100)
    sampler.start()
    time.sleep(0.3)
    sampler.stop()
    calls = [frame[4] for _, _, frames in named_rows(sampler.encode()) for frame in frames]
    assert "time.sleep" in calls


def test_a_sampler_that_sleeps_ends_at_once_and_twice() -> None:
    sampler = StackSampler(hz=0.05)
    sampler.start()
    begin = time.monotonic()
    sampler.stop()
    sampler.stop()
    assert time.monotonic() - begin < 2.0
    assert "ioprobe-stacks" not in [thread.name for thread in threading.enumerate()]


def test_between_two_looks_the_sampler_keeps_nothing_of_the_job_alive() -> None:
    class Batch:
        """As large as a batch of the job's may be."""

    sampler = StackSampler(hz=4)

    def loop_body() -> weakref.ref[Batch]:
        batch = Batch()
        deadline = time.monotonic() + 10
        while not sampler._counts and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)  # past the look itself, well before the next
        return weakref.ref(batch)

    sampler.start()
    batch = loop_body()
    gone = batch() is None
    sampler.stop()
    assert sampler._counts
    assert gone


def test_a_forked_child_may_stop_the_sampler_of_its_parent() -> None:
    sampler = StackSampler(hz=100)
    sampler.start()
    child = multiprocessing.get_context("fork").Process(target=sampler.stop)
    child.start()
    child.join(10)
    sampler.stop()
    assert child.exitcode == 0


def test_stacks_that_do_not_fit_are_counted_without_a_name() -> None:
    sampler = StackSampler(hz=100, room_bytes=1200)
    code = open_descriptors.__code__
    sampler._codes[id(code)] = code
    main = threading.main_thread().ident
    assert main is not None
    sampler._counts = {(main, 1, ((id(code), 2 * k),)): 40 - k for k in range(40)}
    data = sampler.encode()
    assert len(data) <= 1200
    assert sum(count for _, count, _ in named_rows(data)) == sum(range(1, 41))
    assert 0 < sum(bool(frames) for _, _, frames in named_rows(data)) < 40


@pytest.mark.parametrize("data", [b"{", b"[]", b"3", b'{"frames": [], "stacks": [[1, 2, [7]]]}', b'{"frames": 3}'])
def test_damaged_stacks_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        named_rows(data)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_descriptor_stays_open_after_measuring() -> None:
    loader = DataLoader(Squares(), batch_size=8, num_workers=1)
    settings = loader_facts(loader).settings
    LoopMeter(loader, None, settings=settings, seconds=0.6, least_s=0.3).run()
    gc.collect()
    before = open_descriptors()
    for _ in range(2):
        LoopMeter(loader, None, settings=settings, seconds=0.6, least_s=0.3).run()
    gc.collect()
    assert open_descriptors() <= before + 1


def test_no_room_for_a_semaphore_is_a_full_shared_memory() -> None:
    code = compile(
        "def make():\n    raise OSError(28, 'No space left on device')", "multiprocessing/synchronize.py", "exec"
    )
    names: dict[str, Any] = {}
    exec(code, names)
    with pytest.raises(OSError, match="No space left") as semaphore:
        names["make"]()
    assert failure_of(semaphore.value, "loop").kind == "shared-memory"
    assert failure_of(OSError(28, "No space left on device"), "loop").kind == "exception"


@pytest.mark.parametrize(("before", "now", "kind"), [(3, 4, "killed"), (3, 3, "sigkill"), (None, 3, "killed")])
def test_a_worker_ended_by_a_signal_is_named_whatever_the_main_process_saw(
    monkeypatch: pytest.MonkeyPatch, before: int | None, now: int, kind: str
) -> None:
    from ioprobe.probe import failures, sigkill
    from ioprobe.probe.failures import blame_signal
    from ioprobe.run import Failure

    monkeypatch.setattr(failures, "cause", lambda: sigkill.cause(before, now))
    seen = Failure(phase="loop", kind="exception", message="FileNotFoundError: no such socket")
    assert blame_signal(seen, [0, -9]).kind == kind
    assert blame_signal(seen, [-7]).kind == "shared-memory"
    assert blame_signal(seen, [0, -15]) is seen
    assert "SIGKILL" in blame_signal(seen, [-9]).message


@pytest.mark.parametrize("shared", [False, True])
def test_batches_between_two_looks_are_none_of_the_bytes_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    monkeypatch.setattr(worker, "_LOOK_EVERY_S", 0.01)
    file = tmp_path / "samples"
    file.write_bytes(bytes(8192))
    ring = Ring(1)
    clock = BatchClock(ring, 0, shared=shared)
    if not clock.counts_reads:
        pytest.skip("this kernel does not tell the bytes of a process")
    for index in range(60):
        clock.asked()
        file.read_bytes()  # someone else's, where the process is shared
        clock.got()
        file.read_bytes()
        clock.put(index, clock.collate(torch.stack, [torch.zeros(4)]))
        time.sleep(0.001)
    rows = [dict(zip(FIELDS, row, strict=True)) for row in ring.drain(0)]
    ring.close()
    assert [row["index"] for row in rows] == list(range(60))
    read = [row["read_bytes"] for row in rows]
    last = max(k for k in range(60) if read[k])
    # All but what the first batch could not know of.
    each = 8192 if shared else 2 * 8192
    assert each * last + 8192 <= sum(read) < 1.05 * each * (last + 1)
    assert shared == all(read)


def test_a_batch_without_looks_waits_for_a_core_as_those_with_them_did() -> None:
    shares = worker._Shares()
    assert shares.estimate(0.010, 0.010) == (0.0, 0.0)
    shares.add(0.003, 0.004, 0.0, 0.002)
    fetch_s, collate_s = shares.estimate(0.008, 0.010)
    assert fetch_s == pytest.approx(0.006)
    assert collate_s == 0.0
    assert shares.estimate(-0.001, 0.0) == (0.0, 0.0)


def test_a_worker_loop_of_someone_else_is_left_alone() -> None:
    seen: list[Any] = []
    ring = Ring(1)
    WorkerEntry("none", ring, 0.0, lambda *args, **kwargs: seen.append((args, kwargs)))(1, extra=2)
    ring.close()
    assert seen == [((1,), {"extra": 2})]
