"""Fixed blocks at a fixed depth, as fio reads them: IOPS, bandwidth, tail latencies."""

from __future__ import annotations

import errno
import math
import os
import stat
from typing import Any

import numpy as np

from ioprobe.errors import StoreError, TargetError, UsageError
from ioprobe.probe.engines import aio, uring
from ioprobe.probe.engines.common import SLICE_NS
from ioprobe.probe.storage_block_rounds import Ask, Measurement, Progress
from ioprobe.probe.storage_ceiling import engine_ceiling
from ioprobe.probe.storage_crew import Crew
from ioprobe.probe.storage_place import Place, direct_alignment, memory_caveat, place_of
from ioprobe.run import Caveat, StorageJob
from ioprobe.units import format_bytes

ENGINES = ("auto", "preadv", "io_uring", "libaio", "mmap")
_LARGE_BYTES = 256 << 10
MOST_THREADS = 32
"""More threads than this in one process spend their time on the interpreter lock."""
_MODULES = {"preadv": "preadv", "io_uring": "uring", "libaio": "aio", "mmap": "mapped"}


def measure_block(
    path: str,
    *,
    pattern: str,
    block_bytes: int,
    depth: int,
    processes: int = 1,
    direct: bool,
    seconds: float,
    cache: str = "cold",
    engine: str = "auto",
    name: str | None = None,
    progress: Progress | None = None,
) -> StorageJob:
    """Read fixed blocks of one file or device, and return what that gave.

    Args:
        path: A file or a block device; it is only read.
        pattern: ``random`` (each block at most once a pass) or ``sequential``.
        block_bytes: Bytes of one read.
        depth: Reads in flight in each process.
        processes: Processes that read at the same time.
        direct: Past the page cache (O_DIRECT); where that is refused, cold through the cache, with a caveat.
        seconds: Most time to measure, ramp apart [s]; less where the 95% interval is within 2%.
        cache: For reads through the page cache: ``cold`` (dropped before) or ``warm`` (read before).
        engine: ``auto``, or one of :data:`ENGINES`.
        name: Shown instead of the path.
        progress: Told what is measured now.

    Raises:
        UsageError: the arguments cannot be meant, such as a block larger than the file.
        TargetError: there is nothing at path.
        StoreError: it cannot be opened.
        MeasureError: the device does not answer, or a measuring process died.
    """
    ask = Ask(path, pattern, block_bytes, depth, processes, direct, seconds, cache)
    _check(ask, engine)
    size = file_bytes(path)
    if size < block_bytes:
        what = "has zero bytes" if size == 0 else f"has {format_bytes(size)}"
        raise UsageError(
            f"cannot read blocks of {format_bytes(block_bytes)} from '{path}': it {what}",
            hint="choose a larger file or a smaller --block-size",
        )
    place = place_of(path)
    direct, caveats = _direct_or_not(ask, place)
    used = choose_engine(engine, depth, direct, block_bytes)
    say = progress or (lambda text, share: None)
    with Crew(_MODULES[used], _children(used, depth, processes), slots=depth * processes) as crew:
        say("storage: own ceiling", 0.0)
        ceiling = engine_ceiling(crew, path, size, min(block_bytes, 4096) if direct else block_bytes, SLICE_NS)
        return Measurement(ask, size, place, direct, used, ceiling, crew, caveats, name or path).run(say)


def _check(ask: Ask, engine: str) -> None:
    if ask.pattern not in ("random", "sequential"):
        raise UsageError(f"unknown pattern '{ask.pattern}'", hint="use random or sequential")
    if ask.cache not in ("cold", "warm"):
        raise UsageError(f"unknown cache state '{ask.cache}'", hint="use cold or warm")
    if engine not in ENGINES:
        raise UsageError(f"unknown engine '{engine}'", hint=f"use one of {', '.join(ENGINES)}")
    for text, value, most in (
        ("block size", ask.block_bytes, 1 << 30),
        ("depth", ask.depth, 1024),
        ("number of processes", ask.processes, 64),
    ):
        if not 1 <= value <= most:
            raise UsageError(f"a {text} of {value} cannot be measured", hint=f"choose one from 1 to {most}")
    if not (math.isfinite(ask.seconds) and ask.seconds > 0):
        raise UsageError(f"cannot measure for {ask.seconds} seconds", hint="give a positive number of seconds")
    if ask.block_bytes * ask.depth * ask.processes > 8 << 30:
        need = format_bytes(ask.block_bytes * ask.depth * ask.processes)
        raise UsageError(f"buffers of {need} are too much", hint="choose a smaller depth or block size")


def file_bytes(path: str) -> int:
    """Return the size of a file or block device [bytes].

    Raises:
        TargetError: there is nothing, or it is neither file nor device.
        StoreError: it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise TargetError(f"cannot read '{path}': it does not exist", hint="check the path") from None
    except OSError as error:
        hint = "check its permissions, or run as its owner" if error.errno == errno.EACCES else "look at the device"
        raise StoreError(f"cannot read '{path}': {error.strerror}", hint=hint) from None
    try:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise TargetError(f"cannot read '{path}': it is neither a file nor a block device", hint="name a file")
        return os.lseek(fd, 0, os.SEEK_END)
    finally:
        os.close(fd)


def _direct_or_not(ask: Ask, place: Place) -> tuple[bool, list[Caveat]]:
    caveats = [memory_caveat(place)] if place.in_memory else []
    if not ask.direct:
        return False, caveats
    alignment = direct_alignment(ask.path)
    try:
        os.close(os.open(ask.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
        refused = alignment == 0
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise StoreError(f"cannot read '{ask.path}': {error.strerror}", hint="check its permissions") from None
        refused = True
    if refused:
        text = (
            f"{place.filesystem or 'the file system'} refuses O_DIRECT: read through the page cache, which was "
            "dropped before; the figure includes the cache's read-ahead and copying"
        )
        return False, [*caveats, Caveat("direct-refused", text, "measure on the file system below it")]
    if alignment and ask.block_bytes % alignment:
        raise UsageError(
            f"O_DIRECT needs blocks in multiples of {alignment} bytes here; {ask.block_bytes} is none",
            hint="choose another --block-size, or --buffered",
        )
    return True, caveats


def choose_engine(engine: str, depth: int, direct: bool, block_bytes: int = 4096) -> str:
    """Return the engine to use: what was asked, or the best that this process may use at that depth.

    Small direct reads go through Linux AIO where it is allowed: beside fio on a
    virtual disk it gave 0.95 of the IOPS at 4 KiB x16, io_uring from Python 0.8 at
    a fifth more CPU. Large ones go through io_uring, whose registered buffers save
    pinning pages, one at a time, too (50 us of CPU for 1 MiB against 75 to 100); so do
    reads through the cache, where Linux AIO waits for each.

    Raises:
        UsageError: the engine asked for is forbidden here.
    """
    if engine == "auto":
        large = direct and block_bytes >= _LARGE_BYTES
        if depth == 1 and not large:
            return "preadv"
        if direct and not large and aio.allowed():
            return "libaio"
        if uring.allowed():
            return "io_uring"
        return "libaio" if direct and depth > 1 and aio.allowed() else "preadv"
    if engine == "io_uring" and not uring.allowed():
        raise UsageError("io_uring is forbidden or missing here", hint="use --engine auto (containers often forbid it)")
    if engine == "libaio" and not aio.allowed():
        raise UsageError("Linux AIO is forbidden or missing here", hint="use --engine auto")
    return engine


def _children(engine: str, depth: int, processes: int) -> list[dict[str, Any]]:
    """Return one job for each process; many threads are spread over more processes."""
    threads = engine in ("preadv", "mmap")
    split = -(-depth // MOST_THREADS) if threads else 1
    depths = [depth // split + (i < depth % split) for i in range(split)] * processes
    slots = np.cumsum([0, *depths]).tolist()
    return [
        {"depth": d, "slot": slot, "stream": number, "streams": len(depths)}
        for number, (d, slot) in enumerate(zip(depths, slots, strict=False))
    ]
