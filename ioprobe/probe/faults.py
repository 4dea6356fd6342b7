"""What went wrong in the user's code, in one line with the place in the user's own file."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from ioprobe.run import Failure

_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).resolve().parents[1])


def failure_of(error: BaseException, *, phase: str, hint: str = "") -> Failure:
    """Return an exception as evidence.

    Args:
        error: What was raised.
        phase: See :class:`ioprobe.run.Failure`.
        hint: What to do next; by default a word on how to reproduce it.
    """
    text = " ".join(str(error).split()) or "no message"
    return Failure(
        phase=phase,
        kind="exception",
        message=f"{type(error).__name__}: {text if len(text) < 400 else text[:200] + ' ... ' + text[-190:]}",
        where=user_line(error),
        hint=hint or "mend the line, or run the step on one batch by itself to see the whole traceback",
    )


def user_line(error: BaseException) -> str:
    """Return ``file:line`` of the innermost frame in the user's code, or of the innermost frame at all."""
    frames = list(traceback.extract_tb(error.__traceback__))
    own = [f for f in frames if not _is_library(f.filename)]
    frames = own or frames
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _is_library(filename: str) -> bool:
    place = str(Path(filename).resolve())
    return filename.startswith("<") or place.startswith(_OURS + "/") or place.startswith(_LIBRARIES)
