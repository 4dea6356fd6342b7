"""A sampler of Python stacks inside a process, cheap enough to leave on.

A thread wakes ten times a second, looks where the others stand, and counts.
Which call a frame is in comes from the bytecode position (Python 3.11 and
newer), so that a call into C (``zlib.decompress``, ``lock.acquire``) has a name
although it has no Python frame.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import linecache
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

DEFAULT_HZ = 10.0
"""A sample costs the threads it looks at some 0.1 to 0.2 ms: their caches, and a hand-over of the interpreter."""
_DEEPEST = 48
_NAMED = 28
"""Innermost frames of a stack that are named."""

Spot = tuple[Any, ...]
Place = tuple[str, str, int, Spot | None]
"""Function, file, line, and the position of the instruction in the source."""
Key = tuple[tuple[int, int], ...]
"""Frames, innermost first: the identity of the code object, and the instruction."""


class StackSampler:
    """Counts the stacks of this process's threads, its own and those in ``skip`` left out, until it is stopped.

    Args:
        hz: Samples per second.
        on_flush: Called about once a second, and at the end, with :meth:`encode`'s bytes.
        room_bytes: The most that :meth:`encode` returns; rare stacks go without a name first.
        in_loader: Tells whether the main thread is in its loader now; without it that is not known.
    """

    def __init__(
        self,
        hz: float = DEFAULT_HZ,
        on_flush: Any = None,
        *,
        room_bytes: int = 1 << 20,
        in_loader: Callable[[], bool] | None = None,
    ) -> None:
        self._period_s, self._room = 1.0 / hz, room_bytes
        self._on_flush = on_flush
        self._in_loader = in_loader or (lambda: False)
        self._main_thread = threading.main_thread().ident
        self._counts: dict[tuple[int, int, Key], int] = {}
        # Hashing a code object walks through all its bytecode: keys hold identities, and this keeps them valid.
        self._codes: dict[int, CodeType] = {}
        self._places: dict[tuple[int, int], Place] = {}
        # Held until the end: to wait for it is a sleep that stop() cuts short. An Event or a Condition would not do, as
        # they have locks within, which the sampled threads may hold at fork.
        self._end = threading.Lock()
        self._end.acquire()
        self._ended = False
        self._flushing = threading.Lock()
        self.skip: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="ioprobe-stacks", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which takes it no longer than a sample, and flush once more.

        A thread that was left behind can abort the process at the interpreter's end: it holds the frames that it looks
        at, so it may be the one to free a tensor of theirs, and that lets the interpreter's lock go and takes it back,
        which ends a thread then in the middle of C++ ("terminate called without an active exception").
        """
        if not self._ended:
            self._ended = True
            self._end.release()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)
        self._flush()

    def _flush(self) -> None:
        if self._on_flush:
            with self._flushing:
                self._on_flush(self.encode())

    def reset(self) -> None:
        """Forget what was counted so far (the end of a warm-up)."""
        self._counts = {}

    def _run(self) -> None:
        me = threading.get_ident()
        last_flush, pause_s = time.monotonic(), 1.0
        while not self._end.acquire(timeout=self._period_s):
            self._look(me)
            if self._on_flush and time.monotonic() - last_flush > pause_s:
                begin = time.monotonic()
                self._flush()
                last_flush = time.monotonic()
                # It takes the interpreter's lock: less often, the longer it takes.
                pause_s = max(1.0, 1000 * (last_flush - begin))

    def _look(self, me: int) -> None:
        """Count every thread's stack once; no frame outlives the call, nor do the batches in it."""
        in_main = 2 if self._in_loader() else 1
        for ident, frame in sys._current_frames().items():
            if ident != me and ident not in self.skip:
                key = (ident, in_main if ident == self._main_thread else 0, self._key(frame))
                self._counts[key] = self._counts.get(key, 0) + 1

    def _key(self, frame: FrameType | None) -> Key:
        found: list[tuple[int, int]] = []
        while frame is not None and len(found) < _DEEPEST:
            code = frame.f_code
            self._codes.setdefault(id(code), code)
            found.append((id(code), frame.f_lasti))
            frame = frame.f_back
        return tuple(found)

    def encode(self, most: int = 2000) -> bytes:
        """Return the counts as JSON for :func:`named_rows`, which does the costly naming in another process."""
        numbers: dict[tuple[int, int], int] = {}
        every = sorted(self._counts.copy().items(), key=lambda item: -item[1])
        stacks: list[list[Any]] = [
            [main, count, [numbers.setdefault(item, len(numbers)) for item in key[:_NAMED]]]
            for (_, main, key), count in every[:most]
        ]
        rest = sum(count for (_, main, _), count in every[most:] if main)
        if rest:
            stacks.append([1, rest, []])
        data = json.dumps({"frames": [self._place(*item) for item in numbers], "stacks": stacks}).encode()
        return data if len(data) <= self._room or most <= 4 else self.encode(min(most, len(stacks)) // 2)

    def _place(self, identity: int, lasti: int) -> Place:
        found = self._places.get((identity, lasti))
        if found is None:
            code = self._codes[identity]
            name = getattr(code, "co_qualname", code.co_name)
            found = (name, code.co_filename, line_of(code, lasti), position_of(code, lasti))
            self._places[identity, lasti] = found
        return found


def named_rows(data: bytes) -> list[list[Any]]:
    """Return what :meth:`StackSampler.encode` gave as ``[[main, count, [[function, file, line, module, call], ...]]]``.

    Innermost frame first; ``main`` is 1 for the process's main thread, 2 for it where it was known to be in the loader,
    and 0 for the other threads.

    Raises:
        ValueError: it is no such thing; the process was ended while it wrote.
    """
    if not data:
        return []
    found = json.loads(data)
    try:
        named = [
            [name, file, line, _module_of(file), call_in(file, line, tuple(spot) if spot else None)]
            for name, file, line, spot in found["frames"]
        ]
        return [[main, count, [named[k] for k in numbers]] for main, count, numbers in found["stacks"]]
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not the stacks of a process: {error}") from error


def line_of(code: CodeType, lasti: int) -> int:
    """Return the line of an instruction, 0 where it has none."""
    return next((line or 0 for start, end, line in code.co_lines() if start <= lasti < end), 0)


def _module_of(filename: str) -> str:
    """Return the dotted module of a file below site-packages or the standard library, else its stem."""
    for marker in ("site-packages/", "dist-packages/", f"python{sys.version_info[0]}.{sys.version_info[1]}/"):
        at = filename.rfind(marker)
        if at >= 0:
            path = filename[at + len(marker) :]
            return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return filename.rsplit("/", 1)[-1].removesuffix(".py")


def position_of(code: CodeType, lasti: int) -> Spot | None:
    """Return (first line, last line, first column, last column) of an instruction; None on Python 3.10."""
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return None
    try:
        found: Spot | None = next(itertools.islice(positions(), lasti // 2, None), None)
    except ValueError:
        return None
    return found


@functools.lru_cache(4096)
def call_in(file: str, line: int, spot: Spot | None) -> str:
    """Return the dotted name of the call at a position in a source file, or '' where it cannot be told."""
    if spot is None or None in spot:
        return _only_call(linecache.getline(file, line))
    first, last, start, end = spot
    lines = [linecache.getline(file, k) for k in range(first, min(last, first + 40) + 1)]
    if not lines or not lines[0]:
        return ""
    raw = [x.encode() for x in lines]
    raw[-1] = raw[-1][:end]
    raw[0] = raw[0][start:]
    return _dotted(b"".join(raw).decode(errors="replace"))


def _only_call(text: str) -> str:
    """Return the name of the one call on a line, '' where there are none or several."""
    try:
        tree = ast.parse(text.strip())
    except SyntaxError:
        return ""
    calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return calls.pop() if len(calls) == 1 else ""


def _dotted(source: str) -> str:
    try:
        node = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return source.strip()[:80] if source.strip().isidentifier() else ""
    if isinstance(node, ast.Await):
        node = node.value
    if isinstance(node, ast.Call):
        return ast.unparse(node.func)[:120]
    # ``with lock:`` and ``for x in f:`` point at the expression itself.
    return ast.unparse(node)[:120] if isinstance(node, (ast.Name, ast.Attribute)) else ""
