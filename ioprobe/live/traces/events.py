"""A Chrome-trace file as a stream of events, in bounded memory.

The file is read in chunks. A chunk is cut at the last place that looks like the seam between two events, wrapped in
brackets and decoded at once, with only the fields that matter. Where that fails (a damaged event, or a seam that was
none), the chunk is halved until the bad events are alone; those are mended where they can be, else counted.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from ioprobe.errors import RunFileError

CHUNK_BYTES = 4 << 20
_TRIES = 8
"""Seams that are tried where the last one was none."""
_SALVAGED_CHARS = 8192
"""Of an event that no decoder takes, only this much is searched: the search takes the square of it."""
HEADER_BYTES = 64 << 20
"""The list of events must begin within this; device properties and process groups come before it."""


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that matter."""

    device: int | str | None = None
    correlation: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    nbytes: float | str | None = msgspec.field(name="bytes", default=None)
    collective: str | None = msgspec.field(name="Collective name", default=None)
    group: str | None = msgspec.field(name="Process Group Name", default=None)


class Event(msgspec.Struct, gc=False):
    """One event; times as the file has them."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float | None = None
    pid: int | str | None = None
    args: Args | None = None


class _BareEvent(msgspec.Struct, gc=False):
    """An event whose fields have other types than expected: only what is needed to see whether it matters."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    ts: Any = 0.0
    dur: Any = None
    pid: Any = None
    args: Any = None


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)
_BARE = msgspec.json.Decoder(_BareEvent)
_KEYS = rb"ph|name|cat|pid|tid|ts|args|dur|id|bp|s|tts|tdur|cname"
_SEAM = re.compile(rb"\}\s*,\s*(?=\{\s*\"(?:" + _KEYS + rb")\"\s*:)")
_OPENING = re.compile(rb"\"traceEvents\"\s*:\s*\[")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TEXT_FIELD = re.compile(r'"(ph|cat|name)"\s*:\s*"(.*?)"\s*(?=,\s*"(?:' + _KEYS.decode() + r')"\s*:|\s*\}|\s*$)', re.S)
_NUMBER_FIELD = re.compile(r'"(ts|dur|correlation|device|bytes)"\s*:\s*"?(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')


def open_text(path: str | Path) -> IO[bytes]:
    """Open a file that may be gzipped (told by its first bytes, not by its name).

    Raises:
        RunFileError: it cannot be opened.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 (the caller closes it)
    except OSError as error:
        raise RunFileError(f"cannot read recording '{path}': {error.strerror}", hint="check the path") from None
    try:
        magic = file.read(2)
        file.seek(0)
    except OSError as error:
        file.close()
        raise RunFileError(f"cannot read recording '{path}': {error.strerror}", hint="check the path") from None
    if magic != b"\x1f\x8b":
        return file
    file.close()
    return gzip.open(path, "rb")  # type: ignore[return-value]


def read_some(file: IO[bytes], most: int) -> bytes:
    """Return up to ``most`` bytes, fewer only at the end; of a gzip stream that was cut off, what can be had.

    Raises:
        EOFError: a gzip stream was cut off, and nothing more can be had.
        OSError: reading failed.
        zlib.error: a gzip stream is damaged.
    """
    parts: list[bytes] = []
    size = 0
    while size < most:
        try:
            part = file.read1(most - size)  # type: ignore[attr-defined]
        except EOFError:
            if parts:
                break
            raise
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


class EventReader:
    """Iterates over the events of one file; what it found on the way is in its attributes."""

    def __init__(self, path: str | Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = path
        self.chunk_bytes = chunk_bytes
        self.header: dict[str, Any] = {}
        """Top-level fields before and after the events, as far as they could be read."""
        self.damaged = 0
        """Events that could not be read."""
        self.mended = 0
        """Events that had to be mended before they could be read."""
        self.truncated = False
        """The file ends within the list of events."""

    def batches(self) -> Iterator[list[Event]]:
        """Yield the events in file order, many at a time.

        Raises:
            RunFileError: the file cannot be read or holds no trace.
        """
        with open_text(self.path) as file:
            rest = self._open_events(file)
            while True:
                more = self._read(file)
                if not more:
                    break
                rest += more
                seams = self._last_seams(rest)
                if not seams:
                    if len(rest) > HEADER_BYTES:
                        raise RunFileError(
                            f"cannot read trace '{self.path}': no event ends within {HEADER_BYTES >> 20} MiB",
                            hint="export the trace again",
                        )
                    continue
                # With little text at hand, its only seams may lie within one event; with more, it is damaged.
                head = self._head(rest, seams, give_up=len(rest) >= 2 * self.chunk_bytes)
                if head is not None:
                    yield head[0]
                    rest = rest[head[1] :]
            yield self._finish(rest)

    def _read(self, file: IO[bytes]) -> bytes:
        try:
            return read_some(file, self.chunk_bytes)
        except EOFError:
            self.truncated = True  # a gzip stream that was cut off: what came before is good
            return b""
        except (OSError, zlib.error) as error:
            raise RunFileError(f"cannot read recording '{self.path}': {error}", hint="copy the file again") from None

    def _open_events(self, file: IO[bytes]) -> bytes:
        text = self._read(file)
        if text.startswith(b"\xef\xbb\xbf"):
            text = text[3:]
        if not text.strip():
            raise RunFileError(f"recording '{self.path}' is empty", hint="record again")
        if text.lstrip()[:1] == b"[":
            return text.lstrip()[1:]
        if text.lstrip()[:1] != b"{":
            raise RunFileError(
                f"'{self.path}' is no trace: it begins with neither '{{' nor '['",
                hint="pass a Kineto trace (.json, .json.gz), a Nsight Systems SQLite export or a py-spy recording",
            )
        while (opening := _OPENING.search(text)) is None:
            more = self._read(file)
            if not more or len(text) > HEADER_BYTES:
                raise RunFileError(
                    f"'{self.path}' is no trace: it has no 'traceEvents'",
                    hint="export it with torch.profiler's export_chrome_trace",
                )
            text += more
        self._note(text[: opening.start()] + b'"":0}')
        return text[opening.end() :]

    def _note(self, text: bytes) -> None:
        """Keep the top-level fields of a piece of the file; a damaged piece says nothing."""
        try:
            found = json.loads(text.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            return
        if isinstance(found, dict):
            self.header.update(found)

    @staticmethod
    def _last_seams(text: bytes) -> list[tuple[int, int]]:
        """Return the last places where an event seems to end and the next to begin, the last one first."""
        # torch's own writer first: a fixed text is found from the right in no time.
        at = text.rfind(b"},\n  {")
        if at >= 0:
            return [(at, at + 2)]
        window = 1 << 16
        while True:
            start = max(0, len(text) - window)
            found = [(m.start(), m.end()) for m in _SEAM.finditer(text, start)]
            if found or start == 0:
                return found[: -_TRIES - 1 : -1]
            window *= 8

    def _head(self, text: bytes, seams: list[tuple[int, int]], *, give_up: bool) -> tuple[list[Event], int] | None:
        """Return the events before a seam, and where the rest begins; None where no seam will do."""
        for end, begin in seams:
            # Objects in an event's arguments have seams, too; at the wrong one the text before does not decode.
            try:
                return _EVENTS.decode(b"[" + text[: end + 1] + b"]"), begin
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
        if not give_up:
            return None
        end, begin = seams[0]
        return self._halve(_pieces(text[: end + 1])), begin

    def _decode(self, text: bytes) -> list[Event]:
        try:
            return _EVENTS.decode(b"[" + text + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._halve(_pieces(text))

    def _halve(self, pieces: list[bytes]) -> list[Event]:
        if len(pieces) == 1:
            event = self._mend(pieces[0])
            return [] if event is None else [event]
        try:
            return _EVENTS.decode(b"[" + b",".join(pieces) + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            middle = len(pieces) // 2
            return self._halve(pieces[:middle]) + self._halve(pieces[middle:])

    def _mend(self, text: bytes) -> Event | None:
        """Return what can be saved of one event that does not decode."""
        try:
            return _plain(_BARE.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        words = _CONTROL.sub(" ", text.decode("utf-8", "replace"))
        try:
            event = _plain(_BARE.decode(words.encode()))
        except (msgspec.DecodeError, RecursionError):
            # Unescaped quotes: fields are told by the keys that follow them.
            event = _salvage(words[:_SALVAGED_CHARS])
        if event is None:
            self.damaged += 1
        else:
            self.mended += 1
        return event

    def _finish(self, rest: bytes) -> list[Event]:
        """Return the last events; what follows the list is noted."""
        text = rest.strip()
        if text[:1] == b"]":
            self._note(b'{"":0' + text[1:])
            return []
        seams = list(_SEAM.finditer(text))
        decoder = json.JSONDecoder(strict=False)
        for begin, end in [(m.start() + 1, m.end()) for m in seams[: -_TRIES - 1 : -1]] + [(0, 0)]:
            try:
                last, length = decoder.raw_decode(text[end:].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue
            after = text[end:].decode("utf-8", "replace")[length:].lstrip()
            if isinstance(last, dict) and self._closes(after):
                head = self._decode(text[:begin]) if begin else []
                event = self._mend(json.dumps(last).encode())
                return head if event is None else [*head, event]
        return self._torn(text, seams)

    def _closes(self, text: str) -> bool:
        """Return whether text ends the list of events and all that follows it; what follows is noted."""
        if not text.startswith("]"):
            return False
        if not text[1:].strip():
            return True
        try:
            found = json.loads('{"":0' + text[1:], strict=False)
        except (ValueError, RecursionError):
            return False
        self.header.update(found)
        return True

    def _torn(self, text: bytes, seams: list[re.Match[bytes]]) -> list[Event]:
        """Return the last events of a file that ends within the list, or whose last event is damaged."""
        head = self._decode(text[: seams[-1].start() + 1]) if seams else []
        last = text[seams[-1].end() :] if seams else text
        closing = re.search(rb"\}\s*\]", last)
        if closing is None:
            self.truncated = True
            return head
        event = self._mend(last[: closing.start() + 1])
        return head if event is None else [*head, event]


def _pieces(text: bytes) -> list[bytes]:
    cuts = [(m.start() + 1, m.end()) for m in _SEAM.finditer(text)]
    starts = [0, *(b for _, b in cuts)]
    ends = [*(a for a, _ in cuts), len(text)]
    return [text[a:b] for a, b in zip(starts, ends, strict=True)]


def _number(value: object) -> float | None:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _whole(number: float | None) -> int | None:
    return int(number) if number is not None and abs(number) < 1 << 62 else None


def _plain(raw: _BareEvent) -> Event | None:
    """Return an event whose fields had unexpected types, or None where its time cannot be read."""
    start = _number(raw.ts)
    if start is None:
        return None
    found = raw.args if isinstance(raw.args, dict) else {}
    correlation = _number(found.get("correlation"))
    device = found.get("device")
    args = Args(
        device=device if isinstance(device, (int, str)) else None,
        correlation=_whole(correlation),
        nbytes=_number(found.get("bytes")),
        collective=found.get("Collective name") if isinstance(found.get("Collective name"), str) else None,
        group=found.get("Process Group Name") if isinstance(found.get("Process Group Name"), str) else None,
    )
    pid = raw.pid if isinstance(raw.pid, (int, str)) else None
    return Event(str(raw.ph), str(raw.cat), str(raw.name), start, _number(raw.dur), pid, args)


def _salvage(words: str) -> Event | None:
    texts = dict(_TEXT_FIELD.findall(words))
    found = {key: _number(value) for key, value in _NUMBER_FIELD.findall(words)}
    numbers = {key: value for key, value in found.items() if value is not None}
    if "ph" not in texts or "ts" not in numbers:
        return None
    args = Args(
        device=_whole(numbers.get("device")),
        correlation=_whole(numbers.get("correlation")),
        nbytes=numbers.get("bytes"),
    )
    return Event(
        texts["ph"], texts.get("cat", ""), texts.get("name", ""), numbers["ts"], numbers.get("dur"), None, args
    )
