"""Find what synchronises a step's gradients, and turn that off for a while.

A step communicates through a module that it holds: ``DistributedDataParallel`` and ``FullyShardedDataParallel`` have a
``no_sync()``, modules under ``fully_shard`` a ``set_requires_gradient_sync()``. The module is looked for where Python
code keeps one: attributes, closures, bound and partial arguments, the globals that a function names. A step that
synchronises in some other way can offer a ``no_sync()`` of its own, a context manager.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

_DEPTH = 8
"""Steps from the callable to the module; a container in between is one, too."""
_MOST = 2_000
_MOST_ITEMS = 64
"""Of a container; a longer one holds data, not the model."""


class Switch(NamedTuple):
    """How to turn a step's gradient synchronisation off."""

    off: Callable[[], AbstractContextManager[Any]]
    """Within it the step synchronises nothing."""
    name: str
    """Such as ``DistributedDataParallel.no_sync``."""
    sharded: bool
    """Whether parameters are gathered even so."""


def find_switch(step: Callable[[Any], Any]) -> Switch | None:
    """Return how to turn off a step's gradient synchronisation; None where nothing is found that allows it."""
    own = getattr(step, "no_sync", None)
    if callable(own) and not _is_module(step):
        return Switch(own, f"{type(step).__name__}.no_sync", sharded=False)
    found = _outermost(list(_switchable(step)))
    if not found:
        return None
    names = dict.fromkeys(f"{type(m).__name__}.{_way(m)}" for m in found)

    @contextmanager
    def off() -> Iterator[None]:
        with ExitStack() as stack:
            for module in found:
                stack.enter_context(_off(module))
            yield

    return Switch(off, ", ".join(names), sharded=any(_is_sharded(m) for m in found))


def _is_module(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _way(value: Any) -> str:
    """Return the method by which a module lets its synchronisation be turned off; '' where it has none."""
    # By type: a module may answer for any attribute of what it wraps.
    for name in ("no_sync", "set_requires_gradient_sync"):
        if callable(getattr(type(value), name, None)):
            return name
    return ""


def _is_sharded(module: Any) -> bool:
    return _way(module) != "no_sync" or type(module).__name__ == "FullyShardedDataParallel"


@contextmanager
def _off(module: Any) -> Iterator[None]:
    if _way(module) == "no_sync":
        with module.no_sync():
            yield
        return
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def _outermost(modules: list[Any]) -> list[Any]:
    """Leave out modules within another one: it switches them, too."""
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in inner]


def _switchable(step: Any) -> Iterator[Any]:
    """Yield the modules that a step can reach and that can be switched, nearest first."""
    seen: set[int] = set()
    row = [step]
    for _ in range(_DEPTH + 1):
        following: list[Any] = []
        for value in row:
            if id(value) in seen or len(seen) > _MOST:
                continue
            seen.add(id(value))
            if _is_module(value) and _way(value):
                yield value
            else:
                following += _held(value)
        row = following


def _held(value: Any) -> Iterator[Any]:
    """Yield what an object holds, as far as a model may be there."""
    if isinstance(value, (type, types.ModuleType, str, bytes, int, float)) or value is None:
        return
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from _held_by_function(value)
    elif isinstance(value, (list, tuple, dict)):
        if len(value) <= _MOST_ITEMS:
            yield from value.values() if isinstance(value, dict) else value
    elif not hasattr(value, "data_ptr"):  # tensors hold no models
        yield from getattr(value, "__dict__", {}).values()


def _held_by_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # assigned later
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from function.__dict__.values()
    yield from (function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__)
