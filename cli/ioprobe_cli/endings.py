"""SIGINT, SIGTERM and SIGHUP end a command in one way: stop, keep what there is, clean up, exit code 130."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 1.0
"""What asks to end may ask again at once: ``timeout`` asks the process, then its group; fingers press Ctrl-C twice."""


@contextmanager
def endings_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGINT, SIGTERM and SIGHUP; what the caller ignores (``nohup``) stays ignored."""
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    asked_at = -_AGAIN_S

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked_at
        now = time.monotonic()
        asked_at, before = now, asked_at
        if now - before >= _AGAIN_S:
            raise KeyboardInterrupt

    there = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    numbers = [n for n in there if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
