"""What is measured now and how long it may take: one line on stderr, rewritten in place.

No thread draws it. A thread that lives while DataLoader workers are forked could
hold a lock that a child then waits for, so the line moves when somebody calls.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TextIO

from ioprobe.units import format_seconds

REDRAW_S = 0.1
MIN_TEXT = 16
"""Cells that the text keeps before the bar goes."""
_FILLED, _EMPTY = "━", "─"
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Show(Protocol):
    """What library functions take: text, seconds since this began, seconds it may take (0 = not known)."""

    def __call__(self, text: str, done_s: float, of_s: float) -> None: ...


class Progress:
    """A callable that shows progress between ``with`` and its end; silent where nobody watches.

    >>> with Progress(stream=None) as show:
    ...     show("loader alone", 1.0, 5.0)
    """

    def __init__(
        self, *, stream: TextIO | None, color: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make a display.

        Args:
            stream: The terminal; None is silent.
            color: Whether the line may be styled.
            clock: Tells when a line is old enough to be drawn again [s].
        """
        self._stream = stream
        self._color = color
        self._clock = clock
        self._drawn_at = -1e9
        self._text = ""
        self._frame = 0
        self._dirty = False
        self._plain = os.environ.get("TERM") == "dumb"
        self._unicode = _can_write(stream, _FILLED + _EMPTY + _SPINNER)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def __call__(self, text: str, done_s: float, of_s: float) -> None:
        """Show what is measured now; calls that follow at once are dropped unless the text changes."""
        if self._stream is None:
            return
        now = self._clock()
        if text == self._text and (self._plain or now - self._drawn_at < REDRAW_S):
            return
        self._text, self._drawn_at = text, now
        self._frame += 1
        if self._plain:
            self._write(f"{text} {_times(done_s, of_s)}\n")
            return
        self._write("\r" + self._line(text, done_s, of_s) + "\x1b[K")
        self._dirty = True

    def note(self, text: str) -> None:
        """Write a lasting line, such as where results were saved; silent with ``--quiet`` and in a pipe."""
        self.clear()
        if self._stream is not None:
            self._write(text + "\n")

    def clear(self) -> None:
        """Take the line away, so that the report begins on a clean one."""
        if self._dirty:
            self._write("\r\x1b[K")
            self._dirty = False
            self._text = ""

    def _line(self, text: str, done_s: float, of_s: float) -> str:
        room = max(20, shutil.get_terminal_size().columns - 1)
        spin = _SPINNER[self._frame % len(_SPINNER)] if self._unicode else "-\\|/"[self._frame % 4]
        times = _times(done_s, of_s)
        width = min(24, room // 4)
        fits = room - width - len(times) - 6 >= MIN_TEXT
        bar = self._bar(done_s / of_s, width) + "  " if of_s > 0 and fits else ""
        text = "".join(c if c.isprintable() else "?" for c in text)
        left = room - len(bar) - len(times) - 4
        text = text if len(text) <= left else text[: max(0, left - 1)] + ("…" if self._unicode else "~")
        if self._color:
            return f"\x1b[36m{spin}\x1b[0m {text}  \x1b[36m{bar}\x1b[0m\x1b[2m{times}\x1b[0m"
        return f"{spin} {text}  {bar}{times}"

    def _bar(self, part: float, width: int) -> str:
        full = round(min(1.0, max(0.0, part)) * width)
        filled, empty = (_FILLED, _EMPTY) if self._unicode else ("#", "-")
        return filled * full + empty * (width - full)

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal went away; the measurement goes on
            self._stream = None


def _times(done_s: float, of_s: float) -> str:
    """Return elapsed and expected time in words.

    >>> _times(4.2, 15.0), _times(4.2, 0), _times(20, 15)
    ('4 s of about 15 s', '4 s', '20 s, longer than the expected 15 s')
    """
    done, of = (format_seconds(s) if s >= 60 else f"{round(s)} s" for s in (done_s, of_s))
    if of_s <= 0:
        return done
    return f"{done}, longer than the expected {of}" if done_s > 1.1 * of_s + 1 else f"{done} of about {of}"


def _can_write(stream: TextIO | None, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def progress(*, quiet: bool = False) -> Progress:
    """Return the display for stderr: silent with ``quiet`` and where stderr is no terminal.

    ``with progress(quiet=quiet) as show: show("loader alone", done_s, of_s)``
    """
    watched = not quiet and sys.stderr is not None and sys.stderr.isatty()
    color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Progress(stream=sys.stderr if watched else None, color=color)
