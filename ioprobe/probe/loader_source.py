"""The loader under test at any settings, and made anew where the last measurement spoiled it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ioprobe.errors import TargetError, UsageError
from ioprobe.instrument.facts import find_dataloaders, is_dataloader, loader_facts, rebuild, settings_of
from ioprobe.probe.target import accepted_keywords, as_target_error, is_factory, load_function
from ioprobe.run import LoaderSettings


class Spoiled(Exception):
    """The factory hands out a dataset that the main process has read: only a new process gives workers a fresh one."""


class LoaderSource:
    """Makes the loader of a target, and hands it out at other settings.

    Without workers the main process itself reads the dataset, which may open files, connections and threads on first
    use. Workers forked after that would share or miss them, as no training process's would: they get a new dataset.

    Args:
        target: ``file.py:factory`` or a dataset's URL.
        options: Keywords of the factory; what it does not take is set on its DataLoader.

    Raises:
        TargetError: the factory raises, or returns no loader.
        UsageError: it takes no such keyword and returns no DataLoader.
    """

    _broken: TargetError | None = None

    def __init__(self, target: str, options: Mapping[str, Any]) -> None:
        self._target, self._options = target, dict(options)
        self._factory = load_function(target) if is_factory(target) else _builtin(target)
        self._loader = self._make({})
        self.facts = loader_facts(self._loader)
        self._iterated = self._read_here = False

    def at(self, changes: Mapping[str, Any]) -> tuple[Any, LoaderSettings | None]:
        """Return the loader with some settings changed, and the settings that it has; None where it has none.

        Raises:
            TargetError: the factory had to be called again and raised, or made something else.
            Spoiled: the factory had to be called again and gave the same dataset. Asked again, it is handed out.
            UsageError: nothing can change this loader's settings.
        """
        present = self.facts.settings.num_workers if self.facts.settings else 0
        rebuilt = self.facts.adaptable or not changes  # else the factory is called for these settings anyway
        if self._read_here and rebuilt and changes.get("num_workers", present):
            self._make_anew()
        loader = self._loader
        if not changes:
            # What is no DataLoader is closed after a measurement, and may be good for one iteration only.
            if self._iterated and not self.facts.adaptable:
                loader = self._make_anew()
            self._iterated = True
        elif self.facts.adaptable:
            loader = rebuild(loader, **changes)
        elif accepted_keywords(self._factory, set(changes)) == set(changes):
            loader = self._make(changes)
        else:
            raise UsageError("the loader cannot be rebuilt at other settings and its factory takes no keywords")
        inner = find_dataloaders(loader)
        settings = settings_of(inner[0]) if inner else None
        self._read_here |= settings is not None and not settings.num_workers
        return loader, settings

    def _make(self, changes: Mapping[str, Any]) -> Any:
        options = {**self._options, **changes}
        return _call(self._factory, self._target, options) if is_factory(self._target) else self._factory(**options)

    def _make_anew(self) -> Any:
        if self._broken is not None:
            raise self._broken
        used = [weakref.ref(d) for d in _datasets(self._loader)]
        was_read, self._loader = self._read_here, None  # a dataset that lies in memory should not be there twice
        gc.collect()
        try:
            self._loader = self._make({})
            if self.facts.adaptable and not is_dataloader(self._loader):
                what = type(self._loader).__name__
                raise TargetError(f"the factory '{self._target}' returned no DataLoader, but an object of type {what}")
        except TargetError as error:
            hint = "let the function make the loader and its dataset anew each time it is called"
            self._broken = TargetError(f"called a second time, {error.message}", hint=hint)
            raise self._broken from None
        self._iterated = self._read_here = False
        if was_read and any(ref() is d for d in _datasets(self._loader) for ref in used):
            raise Spoiled
        return self._loader


def _datasets(loader: Any) -> list[Any]:
    """Datasets that may hold what they opened: a plain list or tuple does not, and knows no weak references."""
    found = [inner.dataset for inner in find_dataloaders(loader)]
    return [d for d in found if getattr(type(d), "__weakrefoffset__", 0)]


def _call(factory: Callable[..., Any], target: str, options: dict[str, Any]) -> Any:
    known = accepted_keywords(factory, set(options))
    # A factory without keywords: build its loader, then rebuild it at the wanted settings.
    later = {key: options[key] for key in sorted(set(options) - known)}
    try:
        loader = factory(**{key: value for key, value in options.items() if key not in later})
    except BaseException as error:
        raise as_target_error(error, f"the factory '{target}' raised") from None
    if loader is None or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        what = "nothing" if loader is None else f"an object of type {type(loader).__name__}"
        raise TargetError(
            f"the factory '{target}' returned {what}; expected a DataLoader or an iterable of batches",
            hint="return the loader from the function",
        )
    _refuse_what_holds_loaders(loader, target)
    if is_dataloader(loader):
        later |= _unheeded(loader, options)
    if later:
        if not is_dataloader(loader):
            raise UsageError(f"the factory '{target}' takes no keyword {', '.join(later)} and returned no DataLoader")
        loader = rebuild(loader, **later)
    return loader


def _unheeded(loader: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a factory was given and made no use of, as one that takes any keyword and drops it."""
    has = settings_of(loader)
    names = ["num_workers", *(["prefetch_factor"] if options.get("num_workers", has.num_workers) else [])]
    names += ["batch_size"] if has.batch_size is not None else []
    return {n: options[n] for n in names if options.get(n) is not None and options[n] != getattr(has, n)}


def _refuse_what_holds_loaders(loader: Any, target: str) -> None:
    """Raise where iterating gives loaders, their names or single samples instead of batches."""
    from torch.utils.data import Dataset

    held: list[Any] = []
    if isinstance(loader, (list, tuple, Mapping)):
        held = list(loader.values()) if isinstance(loader, Mapping) else list(loader)
    if any(is_dataloader(one) for one in held):
        what = f"a {type(loader).__name__} of DataLoaders"
        raise TargetError(
            f"the factory '{target}' returned {what}; expected one DataLoader or an iterable of batches",
            hint="name a function that returns one of them",
        )
    if isinstance(loader, Dataset) and not hasattr(loader, "__iter__"):
        raise TargetError(
            f"'{target}' is a dataset of type {type(loader).__name__}; expected a DataLoader or an iterable of batches",
            hint="name a function that returns torch.utils.data.DataLoader(dataset, ...)",
        )


def _builtin(url: str) -> Callable[..., Any]:
    from ioprobe.data.loaders import make_loader

    def build(**options: Any) -> Any:
        return make_loader(url, **options)

    return build


def shut_down(loader: Any) -> None:
    """End a loader's workers now, instead of whenever the garbage collector comes by."""
    for inner in find_dataloaders(loader):
        iterator = getattr(inner, "_iterator", None)
        if iterator is not None:
            try:
                iterator._shutdown_workers()
            except Exception:  # the workers may be dead already; that is what we want
                pass
            inner._iterator = None
    close = getattr(loader, "close", None)
    if callable(close) and find_dataloaders(loader)[:1] != [loader]:
        try:
            close()
        except Exception:  # a user's close is a courtesy; its failure is not the measurement's
            pass
    gc.collect()
