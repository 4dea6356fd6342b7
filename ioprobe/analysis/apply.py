"""Write tuned settings into ``ioprobe.toml``, one line a key, everything else as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ioprobe.config import load_config
from ioprobe.config.places import scan
from ioprobe.errors import ConfigError
from ioprobe.run import write_atomic

FILE = "ioprobe.toml"


def apply_settings(settings: dict[str, Any], target: str, *, folder: Path | None = None) -> str:
    """Set the keys in the table of the pipeline with that target; makes file and table where there are none.

    Args:
        settings: DataLoader settings by name.
        target: What was tuned; tells which pipeline is meant.
        folder: Where ``ioprobe.toml`` is; the current folder by default.

    Returns:
        File and table that were written.

    Raises:
        ConfigError: the file cannot be read as it is, or several pipelines have that target.
        OutputError: it cannot be written; it is as before.
    """
    path = (folder or Path()) / FILE
    text = path.read_text() if path.exists() else ""
    name = _pipeline(path, text, target)
    header = f"pipelines.{name}"
    changed = _with_settings(text, name, settings, target)
    write_atomic(path, changed.encode())
    return f"{path} [{header}]"


def _pipeline(path: Path, text: str, target: str) -> str:
    if not text:
        return "train"
    pipelines = load_config(path).pipelines
    named = [name for name, pipeline in pipelines.items() if pipeline.target == target]
    if len(named) > 1:
        raise ConfigError(
            f"cannot write to '{path}': pipelines {', '.join(named)} have the target '{target}'",
            hint="give each pipeline a target of its own, or copy the settings by hand",
        )
    if named:
        return named[0]
    return "train" if "train" not in pipelines else f"tuned{len(pipelines)}"


def _with_settings(text: str, name: str, settings: dict[str, Any], target: str) -> str:
    places = scan(text)
    lines = text.splitlines()
    table = ("pipelines", name)
    fresh = [f"{key} = {_toml(value)}" for key, value in settings.items() if (*table, key) not in places.keys]
    for key, value in settings.items():
        place = places.keys.get((*table, key))
        if place is not None:
            line = lines[place.line - 1]
            comment = line[line.index("#") :] if "#" in line else ""
            lines[place.line - 1] = f"{key} = {_toml(value)}" + (f"  {comment}" if comment else "")
    head = places.keys.get(table)
    if head is None:
        lines += [*([""] if lines else []), f"[pipelines.{name}]", f"target = {_toml(target)}", *fresh]
    else:
        lines[head.line : head.line] = fresh
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
