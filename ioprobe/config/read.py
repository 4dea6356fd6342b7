"""File -> Config. Every mistake is named by file, line, column and key path, with what was expected."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from ioprobe.config.places import InlineIgnore, Place, Places, scan
from ioprobe.config.types import BudgetsConfig, ConfigFile, HostConfig, PipelineConfig
from ioprobe.config.validate import Problem, tidy
from ioprobe.errors import ConfigError
from ioprobe.run import json_schema

# Python 3.10 has no tomllib; tomli is the same module under its first name.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

FILE_NAME = "ioprobe.toml"
_MOST_CHARS = 1 << 20
_MOST_DOTS = 2000
"""Dots on one line: parsing a key takes the square of them."""


class Config(ConfigFile, frozen=True, kw_only=True):
    """A file that was read: its tables, and where each key stands in it."""

    path: str = ""
    """The file, or empty where there is none and everything is a default."""
    prefix: tuple[str, ...] = ()
    """``("tool", "ioprobe")`` in a pyproject.toml."""
    places: Places = Places({}, [])

    @property
    def folder(self) -> Path:
        """The folder against which relative targets count."""
        return Path(self.path).resolve().parent if self.path else Path.cwd()

    def place(self, *path: str) -> Place | None:
        """Return where a key stands, or its nearest enclosing table."""
        return self.places.of((*self.prefix, *path))

    def ignores_of(self, pipeline: str) -> list[InlineIgnore]:
        """Return the inline ignores inside a pipeline's table, their paths relative to it."""
        head = (*self.prefix, "pipelines", pipeline)
        return [
            ignore._replace(path=ignore.path[len(head) :])
            for ignore in self.places.ignores
            if ignore.path[: len(head)] == head
        ]

    def pipeline(self, name: str | None = None) -> tuple[str, PipelineConfig]:
        """Return a pipeline by name, or the only one (or the one named ``train``).

        Raises:
            ConfigError: there is none of that name, none at all, or no obvious one.
        """
        where = self.path or FILE_NAME
        known = ", ".join(self.pipelines)
        if name is not None:
            if name in self.pipelines:
                return name, self.pipelines[name]
            raise ConfigError(
                f"no pipeline '{name}' in '{where}'; it has: {known or 'none'}", hint=_near(name, list(self.pipelines))
            )
        if not self.pipelines:
            raise ConfigError(f"'{where}' has no pipeline", hint="add a table [pipelines.train]")
        if len(self.pipelines) == 1 or "train" in self.pipelines:
            chosen = "train" if "train" in self.pipelines else next(iter(self.pipelines))
            return chosen, self.pipelines[chosen]
        raise ConfigError(f"'{where}' has several pipelines: {known}", hint="name one of them")

    def host_of(self, pipeline: PipelineConfig, name: str | None = None) -> HostConfig | None:
        """Return the host table of a pipeline (or the one named), or None where the file has none.

        Raises:
            ConfigError: it names a host that the file does not have.
        """
        name = name or pipeline.host
        if not name:
            return self.host
        if name in self.hosts:
            return self.hosts[name]
        raise ConfigError(
            f"no table [hosts.{name}] in '{self.path or FILE_NAME}'; it has: {', '.join(self.hosts) or 'none'}",
            hint=_near(name, list(self.hosts)) or f"add a table [hosts.{name}]",
        )

    def budgets_of(self, pipeline: PipelineConfig) -> BudgetsConfig:
        """Return the file's budgets with the pipeline's own over them."""
        if pipeline.budgets is None:
            return self.budgets
        own = {k: v for k, v in msgspec.structs.asdict(pipeline.budgets).items() if v is not None}
        return msgspec.structs.replace(self.budgets, **own)


def load_config(path: str | os.PathLike[str] | None = None) -> Config:
    """Return the settings in a file, a folder's file, or the nearest file upwards from here.

    Args:
        path: An ``ioprobe.toml``, a ``pyproject.toml`` with ``[tool.ioprobe]``, a folder that holds
            one, or None to look for one here and in the parent folders; without one all is default.

    Raises:
        ConfigError: the file is missing, unreadable, no TOML, or says what cannot be meant.
    """
    if path is None:
        found = find_config(Path.cwd())
        # Relative, as people and code-review services name files.
        return load_config(os.path.relpath(found)) if found else Config()
    place = Path(path)
    if place.is_dir():
        found = _in_folder(place)
        if found is None:
            raise ConfigError(f"no {FILE_NAME} in '{place}'", hint="pass the file, or add one")
        place = found
    try:
        text = place.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read '{place}': {error.strerror}", hint=f"pass an {FILE_NAME}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read '{place}': {error}", hint="save it as UTF-8") from None
    return parse_config(text, str(place))


def parse_config(text: str, name: str = FILE_NAME) -> Config:
    """Return the settings in a TOML text; ``name`` stands in messages and tells a pyproject.toml.

    Raises:
        ConfigError: it is no TOML, or says what cannot be meant.

    >>> parse_config("[pipelines.train]\\nnum_workers = 4").pipelines["train"].num_workers
    4
    """
    tree = _parsed(text, name)
    prefix: tuple[str, ...] = ()
    if Path(name).name == "pyproject.toml":
        prefix = ("tool", "ioprobe")
        tool = tree.get("tool")
        own: dict[str, Any] | None = tool.get("ioprobe") if isinstance(tool, dict) else None
        if own is None:
            raise ConfigError(f"'{name}' has no table [tool.ioprobe]", hint=f"add it, or pass an {FILE_NAME}")
        tree = own
    places = scan(text)
    problems: list[Problem] = []
    clean = tidy(tree, ConfigFile, (), problems)
    if problems:
        raise _complaint(name, prefix, places, problems)
    # The tree is valid; the rest are this reader's own fields.
    file = msgspec.convert(clean, ConfigFile)
    fields = {field: getattr(file, field) for field in ConfigFile.__struct_fields__}
    return Config(path=name, prefix=prefix, places=places, **fields)


def _parsed(text: str, name: str) -> dict[str, Any]:
    if len(text) > _MOST_CHARS or any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise ConfigError(f"cannot read '{name}': too large for settings", hint=f"pass an {FILE_NAME}")
    try:
        tree: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_toml_message(name, text, error), hint="mend the TOML at that place") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets without end
        raise ConfigError(f"cannot read '{name}': {error}", hint="mend the TOML") from None
    return tree


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``ioprobe.toml``; every key may be written with dashes."""
    found = json_schema(ConfigFile)
    for table in found["$defs"].values():
        keys = table.get("properties", {})
        keys |= {key.replace("_", "-"): value for key, value in keys.items()}
    return found


def find_config(start: Path) -> Path | None:
    """Return the nearest config file from a folder upwards; a repository's root ends the search."""
    for folder in (start, *start.parents):
        found = _in_folder(folder)
        if found:
            return found
        if (folder / ".git").exists():
            return None
    return None


def _in_folder(folder: Path) -> Path | None:
    if (folder / FILE_NAME).is_file():
        return folder / FILE_NAME
    project = folder / "pyproject.toml"
    if project.is_file():
        try:
            tool = _parsed(project.read_text(encoding="utf-8"), str(project)).get("tool", {})
        except (OSError, ValueError, ConfigError):
            return None  # another tool's broken file is not this one's business
        if isinstance(tool, dict) and "ioprobe" in tool:
            return project
    return None


def _complaint(name: str, prefix: tuple[str, ...], places: Places, problems: list[Problem]) -> ConfigError:
    def where(path: tuple[str, ...]) -> str:
        place = places.of((*prefix, *path))
        return f"{name}:{place.line}:{place.column}" if place else name

    path, text, hint = problems[0]
    message = f"{where(path)}: {'.'.join((*prefix, *path))}: {text}"
    if len(problems) > 1:
        rest = "; ".join(f"{where(p)}: {t}" for p, t, _ in problems[1:4])
        more = len(problems) - 4
        message += f" (also {rest}{f'; and {more} more' if more > 0 else ''})"
    return ConfigError(message, hint=hint)


def _toml_message(name: str, text: str, error: Exception) -> str:
    found = re.search(r"^(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
    if not found:
        return f"{name}: {error}"
    line, column = found.group(2), found.group(3)
    if line is None:
        line, column = str(text.count("\n") + 1), str(len(text) - text.rfind("\n"))
    return f"{name}:{line}:{column}: {found.group(1)}"


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{near[0]}'?" if near else ""
