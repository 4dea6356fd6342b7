"""The writer processes of ``synthesize``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from ioprobe.data.spec import Spec
from ioprobe.data.store import Store, open_store
from ioprobe.data.synth import write_one
from ioprobe.errors import IoprobeError, OutputError

Finished = Callable[[int, int], None]


def write_shards(
    spec: Spec,
    url: str,
    storage_options: dict[str, Any],
    numbers: list[int],
    finished: Finished,
    workers: int | None,
    store: Store,
) -> None:
    """Write shards, several at a time; call ``finished(number, size_bytes)`` here after each.

    Raises:
        OutputError: one could not be written; the others in flight are given up, nothing half is left.
    """
    count = usable_cores() if workers is None else workers
    count = min(count, len(numbers))
    # One shard, one process, or a store that lives in this process: no other process helps.
    if count < 1 or (count == 1 and workers is None) or not store.shared:
        for number in numbers:
            finished(number, write_one(spec, store, number))
        return
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool: list[tuple[Any, Connection]] = []
    try:
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(spec, url, storage_options, there, os.getpid()), daemon=True)
            process.start()
            there.close()
            pool.append((process, here))
        _hand_out(pool, numbers, finished)
    finally:
        _stop(pool)
        store.clean()


def usable_cores() -> int:
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _hand_out(pool: list[tuple[Any, Connection]], numbers: list[int], finished: Finished) -> None:
    todo = iter(numbers)
    busy: dict[Connection, int] = {}
    for _, pipe in pool:
        _next(pipe, todo, busy)
    while busy:
        for ready in wait(list(busy)):
            pipe = cast(Connection, ready)
            number = busy.pop(pipe)
            try:
                result = pipe.recv()
            except (EOFError, ConnectionError):
                raise OutputError(
                    f"a writer process died while it wrote shard {number}",
                    hint="it may have been killed for want of memory; run again with fewer --workers",
                ) from None
            if isinstance(result, BaseException):
                raise result
            finished(number, result)
            _next(pipe, todo, busy)


def _next(pipe: Connection, todo: Any, busy: dict[Connection, int]) -> None:
    number = next(todo, None)
    if number is not None:
        busy[pipe] = number
        pipe.send(number)


def _stop(pool: list[tuple[Any, Connection]]) -> None:
    for process, pipe in pool:
        pipe.close()
        process.terminate()
    for process, _ in pool:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _work(spec: Spec, url: str, storage_options: dict[str, Any], pipe: Connection, parent: int) -> None:
    """Write the shards whose numbers come through the pipe. Ends with its parent."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when Ctrl-C was pressed or the terminal is gone
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with_parent()
    if os.getppid() != parent:
        return
    store = open_store(url, storage_options)
    while True:
        try:
            number = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            result: Any = write_one(spec, store, number)
        except IoprobeError as error:
            result = error
        except Exception as error:
            result = OutputError(f"cannot write shard {number}: {type(error).__name__}: {error}")
        pipe.send(result)


def _die_with_parent() -> None:
    """Ask the kernel to end this process with its parent, even after kill -9 (Linux)."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)
