"""Run a function right after a module was imported for the first time, whoever imports it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport:
    """A finder that finds nothing itself: it lets the others find, and looks on.

    Args:
        actions: What to do after which module; errors of theirs are swallowed, the job comes first.
    """

    def __init__(self, actions: dict[str, Callable[[], None]]) -> None:
        self._actions = dict(actions)
        self._busy: set[str] = set()

    def install(self) -> None:
        """Stand first among the finders; modules that are loaded already get their action now."""
        for name in [name for name in self._actions if name in sys.modules]:
            self.loaded(name)
        if self._actions:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have for a watched module, its loader wrapped."""
        if name not in self._actions or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        wrapped: Any = _Loader(spec.loader, self, name)
        spec.loader = wrapped
        return spec

    def loaded(self, name: str) -> None:
        """A watched module was executed."""
        action = self._actions.pop(name, None)
        if not self._actions and self in sys.meta_path:
            sys.meta_path.remove(self)
        if action is not None:
            try:
                action()
            except Exception:  # the job goes on unobserved
                pass


class _Loader:
    """Stands in for a module's loader until the module was executed; then the module has its own loader again."""

    def __init__(self, inner: Any, finder: AfterImport, name: str) -> None:
        self._inner, self._finder, self._name = inner, finder, name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._finder.loaded(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
