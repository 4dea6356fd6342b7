"""Shared options and the one place that writes a report: format, file or stdout, colour and width."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ioprobe.errors import OutputError

if TYPE_CHECKING:
    from ioprobe.diagnosis.types import Report

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("text", "json", "md", "html")
RUNS_FOLDER = "ioprobe-runs"
PIPED_WIDTH = 100
"""Columns of a text report that goes to a file or a pipe."""
_GLYPHS = "█▏▒▶±–…"


def format_option(*formats: str, default: str = "text") -> Callable[[Command], Command]:
    """``--format``; the formats are those that the command can write, all of ``FORMATS`` when none is named."""
    return click.option(
        "--format",
        "format_",
        type=click.Choice(formats or FORMATS),
        default=default,
        show_default=True,
        help="What to print on stdout; json is for scripts.",
    )


def quiet_option() -> Callable[[Command], Command]:
    """``--quiet``: no progress and no hints on stderr."""
    return click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")


def output_file_option() -> Callable[[Command], Command]:
    """``--output FILE`` of a command that renders."""
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write there instead of stdout."
    )


def output_folder_option() -> Callable[[Command], Command]:
    """``--output DIR`` of a command that measures."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help=f"Where run file and page go; default: a new folder under ./{RUNS_FOLDER}.",
    )


def new_run_folder(kind: str, created_at: str, output: Path | None = None) -> Path:
    """Make and return the folder for a run file and its page; files that are there are never overwritten.

    Args:
        kind: The command's name; begins the folder's name.
        created_at: UTC, ISO 8601; follows in the folder's name.
        output: What the user asked for; taken as it is while it holds no ``run.json``.

    Raises:
        OutputError: the folder cannot be made or written to, or holds a run already.
    """
    folder = _new_folder(kind, created_at, output)
    _run_folders.append(folder)
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:  # a full disk is better known before the measurement
            probe.write(os.urandom(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise OutputError(
            f"cannot write to '{folder}': {error.strerror}",
            hint="free some space, or choose another place with --output",
        ) from None
    return folder


_PROBE_BYTES = 64 << 10
"""About the size of a run file and its page."""
_run_folders: list[Path] = []


def kept_runs() -> list[Path]:
    """Return the run files that this process wrote into its folders."""
    return [path for folder in _run_folders if (path := folder / "run.json").is_file()]


def _new_folder(kind: str, created_at: str, output: Path | None) -> Path:
    try:
        if output is not None:
            if not output.exists():
                _made.append(output)
            output.mkdir(parents=True, exist_ok=True)
            if (output / "run.json").exists():
                raise OutputError(
                    f"'{output}' holds a run already; it is not overwritten", hint="choose another --output"
                )
            _claim(output)
            return output
        stamp = "".join(c for c in created_at[:19] if c.isdigit() or c == "T").replace("T", "-")
        parent = Path(RUNS_FOLDER)
        parent.mkdir(exist_ok=True)
        for number in range(1, 1000):
            folder = parent / (f"{kind}-{stamp}" + (f"-{number}" if number > 1 else ""))
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            _made.append(folder)
            return folder
    except OSError as error:
        place = output or Path(RUNS_FOLDER)
        raise OutputError(
            f"cannot make the folder '{place}': {error.strerror}", hint="choose another place with --output"
        ) from None
    raise OutputError(f"'{parent}' holds a thousand runs of this second", hint="choose another --output")


_made: list[Path] = []


def remove_empty_folders() -> None:
    """Take back folders that were made for a run and in which nothing was written."""
    while _made:
        try:
            _made.pop().rmdir()
        except OSError:
            pass


_claimed: list[int] = []
"""Descriptors that hold the locks of our folders until this process ends, however it ends."""


def _claim(folder: Path) -> None:
    """Keep another ioprobe out of a folder that has no run file yet; where locks do not work, nobody is kept out."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise OutputError(
            f"another ioprobe is about to write its run to '{folder}'", hint="choose another --output"
        ) from None
    except OSError:
        os.close(held)
    else:
        _claimed.append(held)


def render(report: Report, format_: str, *, to_terminal: bool = False) -> str:
    """Return the report in a format of ``FORMATS``; text asks stdout for width, colour and characters."""
    if format_ == "json":
        from ioprobe.report import json

        return json.render(report)
    if format_ == "md":
        from ioprobe.report import markdown

        return markdown.render(report)
    if format_ == "html":
        from ioprobe.report import html

        return html.render(report)
    from ioprobe.report import terminal

    if not to_terminal:
        return terminal.render(report, width=PIPED_WIDTH, color=False)
    return terminal.render(report, width=terminal_width(), color=wants_color(), unicode=knows_unicode())


def emit(report: Report, format_: str = "text", *, output: Path | None = None) -> None:
    """Write the report to a file, or to stdout as the terminal there can show it.

    Raises:
        OutputError: the file cannot be written; what was there before is kept.
    """
    if output is not None:
        from ioprobe.run import write_atomic

        write_atomic(output, render(report, format_).encode())
        return
    write_stdout(render(report, format_, to_terminal=True))


def write_stdout(text: str) -> None:
    """Write text to stdout as it is: colours were decided, and every format but text is UTF-8."""
    stdout = sys.stdout
    encoding = getattr(stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        click.echo(text.encode(), nl=False)
    else:
        click.echo(text, nl=False, color=True)


def one_line(text: str) -> str:
    r"""Return text without what breaks a line or steers a terminal: names and messages from outside hold anything.

    >>> one_line("no file 'a\x1b[31m\nb'")
    "no file 'a\\x1b[31m\\nb'"
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def terminal_width() -> int:
    """Return the columns of stdout's terminal, or those of a text file."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def wants_color() -> bool:
    """Whether stdout shows colours: a terminal, unless ``NO_COLOR`` or ``TERM=dumb``; ``FORCE_COLOR`` insists."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def knows_unicode() -> bool:
    """Whether stdout's encoding has the characters that bars are drawn with."""
    try:
        _GLYPHS.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
