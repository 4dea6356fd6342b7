"""What the main thread and a pool's threads do for a loader that is no DataLoader, stack by stack."""

from __future__ import annotations

import threading
import time

import pytest
from written_stacks import GETITEM, IMPL, POLL, SITE, STD, WORKER, stack

from ioprobe.instrument.stacks import StackSampler, named_rows
from ioprobe.instrument.stages import Frame, classify
from ioprobe.probe.stacks import stack_shares
from ioprobe.run import Stage

GENERATOR = "batches /home/me/data.py:7"
DRIVEN = f"LoopMeter._drive {SITE}ioprobe/probe/loop.py:150 [next]"
WAITS = f"Condition.wait {STD}threading.py:327 [waiter.acquire]"

LOADING = [
    # (what the stack shows, stage in the loader, frames below the generator)
    ("arithmetic", Stage.TRANSFORM, [f"zoom {SITE}scipy/ndimage/_interpolation.py:800"]),
    ("code of the user's own", Stage.TRANSFORM, []),
    ("a decoder", Stage.DECODE, [f"ImageFile.load {SITE}PIL/ImageFile.py:425"]),
    ("a file", Stage.READ, [f"Path.read_bytes {STD}pathlib.py:1050"]),
    ("a module that augments", Stage.TRANSFORM, [f"interpolate {SITE}torch/nn/functional.py:4000", *IMPL]),
    ("a pool of processes", Stage.WAIT, [WAITS, f"IMapIterator.next {STD}multiprocessing/pool.py:861"]),
    ("a future", Stage.WAIT, [WAITS, f"Future.result {STD}concurrent/futures/_base.py:451"]),
    ("a thread's queue", Stage.WAIT, [WAITS, f"Queue.get {STD}queue.py:171"]),
]


@pytest.mark.parametrize(("what", "stage", "frames"), LOADING, ids=[case[0] for case in LOADING])
def test_a_generator_s_work_is_the_loader_s_where_the_thread_is_known_to_be_in_it(
    what: str, stage: Stage, frames: list[str]
) -> None:
    assert classify(stack(frames, GENERATOR, DRIVEN), "main", in_loader=True).stage is stage


def test_the_same_code_outside_the_loader_is_the_step() -> None:
    frames = stack(f"zoom {SITE}scipy/ndimage/_interpolation.py:800", GENERATOR, DRIVEN)
    assert classify(frames, "main").stage is Stage.STEP


def test_a_copy_to_the_device_in_the_loader_is_a_transfer() -> None:
    assert classify(stack(f"{GENERATOR} [batch.to]", DRIVEN), "main", in_loader=True).stage is Stage.TRANSFER


def test_our_own_clock_innermost_is_nobody_s_work() -> None:
    assert classify(stack(DRIVEN, "main /home/me/t.py:3"), "main", in_loader=True).stage is not Stage.TRANSFORM


RESULTS = f"Pool._handle_results {STD}multiprocessing/pool.py:579"
TASKS = f"Pool._handle_tasks {STD}multiprocessing/pool.py:540"
RECV = f"Connection.recv {STD}multiprocessing/connection.py:250"
EXECUTOR = f"_ExecutorManagerThread.run {STD}concurrent/futures/process.py:339"


@pytest.mark.parametrize(
    "frames",
    [
        stack(f"Connection._recv {STD}multiprocessing/connection.py:395", RECV, RESULTS),
        stack(f"Connection._send {STD}multiprocessing/connection.py:384", TASKS),
        stack(POLL[:2], f"Pool._wait_for_updates {STD}multiprocessing/pool.py:500", RESULTS),
        stack(
            f"Popen.poll {STD}multiprocessing/popen_fork.py:27", f"Pool._handle_workers {STD}multiprocessing/pool.py:5"
        ),
        stack(f"Connection._recv {STD}multiprocessing/connection.py:395", RECV, EXECUTOR),
    ],
)
def test_a_pool_s_thread_at_the_end_of_a_pipe_waits(frames: list[Frame]) -> None:
    assert classify(frames, "thread").stage is Stage.WAIT


@pytest.mark.parametrize(
    "frames",
    [
        stack(RECV, RESULTS),  # unpickles
        stack(f"Connection._recv {STD}multiprocessing/connection.py:395", RECV, "fill /home/me/data.py:9"),
    ],
)
def test_unpickling_and_receiving_in_a_thread_of_the_user_s_is_transport(frames: list[Frame]) -> None:
    assert classify(frames, "thread").stage is Stage.TRANSPORT


def test_dataset_code_is_a_transform_in_a_thread_as_it_is_in_a_worker() -> None:
    assert classify(stack(GETITEM, WORKER[0], "fill /home/me/t.py:9"), "thread").stage is Stage.TRANSFORM


def test_the_sampler_notes_whether_the_main_thread_is_in_its_loader() -> None:
    loading = threading.Event()
    sampler = StackSampler(hz=200, in_loader=loading.is_set)
    sampler.start()
    _stay_in_the_step()
    loading.set()
    _stay_in_the_loader()
    sampler.stop()
    rows = [row for row in named_rows(sampler.encode()) if row[0]]
    where = {
        main: {frame[0].rpartition(".")[2] for _, _, frames in _of(rows, main) for frame in frames} for main in (1, 2)
    }
    assert "_stay_in_the_step" in where[1] - where[2]
    assert "_stay_in_the_loader" in where[2]
    (main,) = stack_shares([], rows)
    assert main.role == "main"
    assert main.stages[Stage.STEP] > 10


def _of(rows: list[list[object]], main: int) -> list[list[object]]:
    return [row for row in rows if row[0] == main]


def _stay_in_the_step() -> None:
    time.sleep(0.3)


def _stay_in_the_loader() -> None:
    time.sleep(0.3)
