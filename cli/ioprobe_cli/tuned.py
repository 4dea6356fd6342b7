"""What ``ioprobe tune`` found: rendered, kept beside its run file, and read again from there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ioprobe.diagnosis.tuning import Tuning

NAME = "tuning.json"


def keep(found: Tuning, folder: Path) -> None:
    """Write the answer into the run's folder.

    Raises:
        OutputError: it cannot be written.
    """
    import msgspec

    from ioprobe.run import write_atomic

    write_atomic(folder / NAME, msgspec.json.encode(found))


def kept(folder: Path) -> Tuning | None:
    """Return the answer in a run's folder; None where there is none.

    Raises:
        RunFileError: it cannot be read.
    """
    from ioprobe.diagnosis.tuning import loads
    from ioprobe.errors import RunFileError

    place = folder / NAME
    if place.exists() and not place.is_file():  # a pipe would be waited for
        raise RunFileError(f"'{place}' is no file", hint="tune again, or remove it")
    try:
        data = place.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFileError(
            f"cannot read '{place}': {error.strerror}", hint="tune again, or remove it to see the measurements alone"
        ) from None
    return loads(data, str(place))


def render(found: Tuning, format_: str, *, to_terminal: bool = True) -> str:
    """Return the answer as ``text``, ``json`` or ``md``; text asks stdout for width, colour and characters."""
    from ioprobe.report import tuning
    from ioprobe_cli.output import PIPED_WIDTH, knows_unicode, terminal_width, wants_color

    if format_ == "json":
        from json import dumps

        return dumps(tuning.as_object(found), indent=2) + "\n"
    if format_ == "md":
        return tuning.render_markdown(found)
    if not to_terminal:
        return tuning.render_text(found, width=PIPED_WIDTH)
    return tuning.render_text(found, width=terminal_width(), color=wants_color(), unicode=knows_unicode())
