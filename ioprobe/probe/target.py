"""From what the user typed to a loader and a step: ``file.py:function``, ``module:function``, or a dataset URL."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ioprobe.errors import IoprobeError, TargetError


def is_factory(target: str) -> bool:
    """Return whether target names Python code rather than data.

    >>> is_factory("train.py:make_loader"), is_factory("pkg.data:loader"), is_factory("s3://bucket/x-{0..3}.tar")
    (True, True, False)
    """
    place, _, function = target.rpartition(":")
    if not place or not function.isidentifier() or "://" in target:
        return False
    return place.endswith(".py") or all(part.isidentifier() for part in place.split("."))


def load_function(target: str) -> Callable[..., Any]:
    """Import and return the function that target names.

    Raises:
        TargetError: no such file, module or function, or importing it raised.
    """
    place, _, name = target.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    function = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if function is None:
        found = sorted(n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_"))
        raise TargetError(
            f"'{place}' has no function '{name}'; it has: {', '.join(found[:12]) or 'no functions'}",
            hint=f"name it like {place}:{found[0] if found else 'make_loader'}",
        )
    if not callable(function):
        raise TargetError(f"'{target}' is an object of type {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise TargetError(f"no such file '{path}'", hint="give the path of your Python file and the factory's name")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or ".").resolve() == path.resolve():
        return loaded
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise TargetError(f"cannot import '{path}'")
    module = importlib.util.module_from_spec(spec)
    # Spawned workers import the module by this name to unpickle what it defines.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        raise as_target_error(error, f"importing '{path}' failed", f"python {shlex.quote(str(path))}") from None
    return module


def _load_module(name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except BaseException as error:
        raise as_target_error(error, f"importing '{name}' failed", f"python -c 'import {name}'") from None


def as_target_error(error: BaseException, what: str, command: str = "") -> IoprobeError:
    """Return a user's exception as one line that says where it was raised.

    Args:
        error: What was raised.
        what: What was done then.
        command: A command line that shows the traceback; without one, the function is to be called by hand.
    """
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        raise error
    if isinstance(error, IoprobeError):
        return error
    by = f": {command}" if command else ""
    what_to_run = "it" if command else "the function"
    hint = f"run {what_to_run} by hand to see the traceback{by}"
    return TargetError(f"{what}: {describe_exception(error)}", hint=hint)


def describe_exception(error: BaseException) -> str:
    """Return ``Type: message (file:line)`` for the innermost line of the user's own code."""
    text = first_line(str(error)) or "no message"
    where = user_line(error)
    return f"{type(error).__name__}: {text}" + (f" ({where})" if where else "")


def first_line(text: str) -> str:
    """Return the first line of a message that says something, cut to a readable length."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    return line if len(line) <= 300 else line[:297] + "..."


def user_line(error: BaseException) -> str:
    """Return ``file:line`` of the innermost frame that is neither ours nor a library's; '' where there is none."""
    own = str(Path(__file__).parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = frame.filename
        if "site-packages" in file or file.startswith((own, "<")) or f"lib{os.sep}python" in file:
            continue
        return f"{file}:{frame.lineno}"
    return ""


def accepted_keywords(function: Callable[..., Any], names: set[str]) -> set[str]:
    """Return which of names a factory takes as keywords; all of them with ``**kwargs``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return set(names)
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)} & names
