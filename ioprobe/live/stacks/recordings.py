"""py-spy's files (``raw``, ``speedscope``, ``chrometrace``) as counted stacks."""

from __future__ import annotations

import ast
import linecache
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ioprobe.errors import RunFileError
from ioprobe.instrument.stages import Frame, known_call
from ioprobe.live.traces.events import open_text

_EXPECTED = "pass py-spy's raw, speedscope or chrometrace output, a Kineto trace, or a Nsight Systems SQLite export"
_MOST_BYTES = 512 << 20
_MOST_FRAMES = 1000
_MOST_HEADS = 64
"""Process frames of one stack."""
_PROCESS = re.compile(r'^process (\d+)(?::"(.*)")?$', re.DOTALL)
_THREAD = re.compile(r"^thread \((?:0x)?([0-9A-Fa-f]+)\)(?:: ?\"?(.*?)\"?)?$")
_FRAME = re.compile(r"^(.*) \((.*?)(?::(\d+))?\)$", re.DOTALL)
_PROFILE = re.compile(r'^Process (\d+) Thread (\w+)(?: "(.*)")?')
# A process frame of a raw line holds a command, which may hold any character, line ends too (python -c): it ends at a
# quote that is followed by what can only be the next frame.
_HEAD_BEGINS = re.compile(r'process \d+:"')
_HEAD_ENDS = re.compile(
    r'"(?=;(?:thread \(|process \d+:"|[^;\n(]{1,300} \([^;\n]{0,1000}\)(?:;| \d+(?:\n|\Z))))', re.DOTALL
)
CHROME_UNIT_S = 0.01
"""Chrome traces hold times, not counts: each hundredth of a second counts as one stack."""


class Stack(NamedTuple):
    """Equal stacks of one thread, counted."""

    pids: tuple[int, ...]
    """Process, with its parents before it as far as the recording tells; empty where it does not."""
    thread: str
    """Name of the thread; empty where the recording does not tell."""
    is_main_thread: bool | None
    """None where threads were not kept apart."""
    frames: tuple[Frame, ...]
    """Innermost first."""
    samples: int
    command: str = ""
    """Command line of the process."""


def read_stacks(path: str | Path) -> list[Stack]:
    """Return the counted stacks of a py-spy recording, whichever of its formats it has.

    Raises:
        RunFileError: it cannot be read or holds no stacks.
    """
    with open_text(path) as file:
        try:
            data = file.read(_MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise RunFileError(f"cannot read recording '{path}': {error}", hint="copy the file again") from None
    if len(data) > _MOST_BYTES:
        raise RunFileError(
            f"recording '{path}' holds more than {_MOST_BYTES >> 20} MiB",
            hint="record for a shorter time, or less often",
        )
    head = data[:64].lstrip()
    if head[:1] in (b"{", b"["):
        stacks = _from_json(path, data)
    else:
        stacks = parse_raw(data.decode("utf-8", "replace"), str(path))
    if not stacks:
        raise RunFileError(f"recording '{path}' holds no stacks", hint="record longer, with py-spy record --idle -s")
    return stacks


def _from_json(path: str | Path, data: bytes) -> list[Stack]:
    try:
        found: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFileError(f"cannot read recording '{path}': {error}", hint="record again") from None
    try:
        return parse_speedscope(found) if isinstance(found, dict) else parse_chrome(found)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise RunFileError(f"recording '{path}' is not as py-spy writes it: {detail}", hint="record again") from None


def parse_raw(text: str, name: str = "recording") -> list[Stack]:
    """Return the stacks of ``py-spy record --format raw``: one line a stack, outermost frame first, then its count.

    Raises:
        RunFileError: the first lines are nothing of the kind.
    """
    found: list[Stack] = []
    bad = 0
    text = _heads_on_one_line(text)
    for line in text.split("\n"):
        if not line.strip():
            continue
        body, _, count = line.rpartition(" ")
        if not (count.isascii() and count.isdigit() and len(count) < 16):
            bad += 1
            if bad > 3 and bad > len(found):
                raise RunFileError(
                    f"'{name}' is no recording that ioprobe reads: a line ends with no count",
                    hint=_EXPECTED,
                )
            continue
        heads: list[str] = []
        while len(heads) < _MOST_HEADS and (begins := _HEAD_BEGINS.match(body)) is not None:
            ends = _HEAD_ENDS.search(f"{body} 1", begins.end())
            if ends is None:
                break
            heads.append(body[: ends.end()])
            body = body[ends.end() :].removeprefix(";")
        stack = _stack([*heads, *(part for part in body.split(";") if part)], int(count))
        if stack is not None:
            found.append(stack)
    if bad and not found:
        raise RunFileError(
            f"'{name}' is no recording that ioprobe reads",
            hint=_EXPECTED,
        )
    return found


def _heads_on_one_line(text: str) -> str:
    """Return the text with no line end inside a process frame; one pass, however many frames have no end."""
    parts, at = [], 0
    while (begins := _HEAD_BEGINS.search(text, at)) and (ends := _HEAD_ENDS.search(text, begins.end())):
        parts += [text[at : begins.start()], text[begins.start() : ends.end()].replace("\n", " ")]
        at = ends.end()
    return "".join([*parts, text[at:]])


def parse_speedscope(document: Mapping[str, Any]) -> list[Stack]:
    """Return the stacks of a speedscope document with sampled profiles."""
    frames = [(str(f["name"]), str(f.get("file") or ""), int(f.get("line") or 0)) for f in document["shared"]["frames"]]
    found: list[Stack] = []
    for profile in document["profiles"]:
        if profile.get("type") != "sampled":
            raise ValueError(f"a profile of type '{profile.get('type')}', expected 'sampled'")
        named = _PROFILE.match(str(profile.get("name", "")))
        counts = Counter(tuple(sample) for sample in profile["samples"])
        for indices, count in counts.items():
            stack = _stack([frames[i] for i in indices], count)
            if stack is None:
                continue
            if named:
                pid, thread, name = int(named.group(1)), named.group(2), named.group(3) or ""
                main = name == "MainThread" or thread == str(pid)
                stack = stack._replace(pids=stack.pids or (pid,), thread=name or stack.thread, is_main_thread=main)
            found.append(stack)
    return found


def parse_chrome(events: Sequence[Mapping[str, Any]]) -> list[Stack]:
    """Return the stacks of ``py-spy record --format chrometrace``: begin and end of frames, by thread."""
    open_frames: dict[tuple[int, int], list[tuple[str, str, int]]] = {}
    since: dict[tuple[int, int], float] = {}
    spent: dict[tuple[int, tuple[tuple[str, str, int], ...]], float] = {}
    for event in events:
        if event.get("ph") not in ("B", "E"):
            continue
        key = (int(event["pid"]), int(event["tid"]))
        stack, now = open_frames.setdefault(key, []), float(event["ts"])
        if stack and now > since[key]:
            place = (key[0], tuple(stack))
            spent[place] = spent.get(place, 0.0) + (now - since[key]) * 1e-6
        since[key] = now
        if event["ph"] == "B":
            # Each stack is kept whole, so without a bound frames that are never left would fill memory.
            if len(stack) >= _MOST_FRAMES:
                raise ValueError(f"frames lie more than {_MOST_FRAMES} deep")
            args = event.get("args") or {}
            stack.append((str(event["name"]), str(args.get("filename") or ""), int(args.get("line") or 0)))
        elif stack:
            stack.pop()
    found = []
    for (pid, frames), seconds in spent.items():
        stack_ = _stack(list(frames), round(seconds / CHROME_UNIT_S))
        if stack_ is not None and stack_.samples:
            found.append(stack_._replace(pids=stack_.pids or (pid,)))
    return found


def _stack(parts: Iterable[str | tuple[str, str, int]], count: int) -> Stack | None:
    """Return a stack from its parts, outermost first; None where it has no Python frame."""
    pids: list[int] = []
    thread, command, main = "", "", None
    frames: list[Frame] = []
    for part in parts:
        text = part if isinstance(part, str) else part[0]
        if (process := _PROCESS.match(text)) is not None:
            pids.append(int(process.group(1)))
            command = process.group(2) or ""
        elif (head := _THREAD.match(text)) is not None:
            thread = head.group(2) or ""
            main = thread == "MainThread" or bool(pids and head.group(1) == str(pids[-1]))
        elif isinstance(part, tuple):
            frames.append(Frame(*part))
        elif (frame := _FRAME.match(text)) is not None:
            frames.append(Frame(frame.group(1), frame.group(2), int(frame.group(3) or 0)))
        else:
            frames.append(Frame(text, "", 0))
    if not frames:
        return None
    frames.reverse()
    if main is None and _is_thread_start(frames[-1]):
        main = False
    return Stack(tuple(pids), thread, main, tuple(frames), count, command)


def _is_thread_start(frame: Frame) -> bool:
    return frame.function.endswith("_bootstrap") and frame.file.endswith("threading.py")


def with_calls(stack: Stack) -> Stack:
    """Return the stack with the calls that its source lines tell, where the sources lie on this machine.

    Only the innermost frame's call matters (C code has no frame of its own), and the DataLoader's fetcher's, which
    tells dataset from collate function.
    """
    frames = list(stack.frames)
    for i, frame in enumerate(frames):
        if i == 0 or frame.file.endswith("torch/utils/data/_utils/fetch.py"):
            frames[i] = frame._replace(call=call_on_line(frame.file, frame.line))
    return stack._replace(frames=tuple(frames))


@lru_cache(maxsize=8192)
def call_on_line(file: str, line: int) -> str:
    """Return the call that a source line most likely waits in: the one that a rule knows, or the only one; else ''."""
    if line < 1 or not file.endswith(".py"):
        return ""
    text = linecache.getline(file, line).strip()
    calls = _calls(text)
    known = [call for call in calls if known_call(call)]
    if known:
        return known[0]
    return calls[0] if len(calls) == 1 else ""


def _calls(text: str) -> list[str]:
    for attempt in (text, f"{text} pass", f"{text})", f"({text}", f"try: pass\n{text} pass"):
        try:
            tree = ast.parse(attempt)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        found = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for node in ast.walk(tree):
            if isinstance(node, ast.With) and not isinstance(node.items[0].context_expr, ast.Call):
                found.append(ast.unparse(node.items[0].context_expr))
        return found
    return []
