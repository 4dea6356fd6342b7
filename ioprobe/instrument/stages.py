"""Which stage of the input pipeline a stack of Python frames belongs to. Pure: no clock, no I/O, no torch.

Two questions are asked of every stack, innermost frame first:

1. *Region*: what asked for this work? The nearest frame of a known kind says it: the DataLoader's fetcher (dataset
   code), a collate function, a worker waiting for its next task, the main process waiting for a batch, a module's
   forward, a checkpoint being written, an import. Some regions settle the stage alone (everything below ``torch.save``
   is a checkpoint, everything below a collate function is collation).
2. *Leaf*: inside a region that does not settle it, the innermost frame that a rule knows decides: ``PIL`` decodes,
   ``fsspec`` reads, ``multiprocessing.synchronize`` is a lock. C functions have no frame; where the caller knows the
   call that runs in a frame (``zlib.decompress``), the call is matched first.

What no rule knows falls to the region: dataset code is *transform*, the main thread outside the loader is the *step*.
A generator has no frame of its own that says "loader": where the caller knows that the main thread stood outside its
step, it says so, and the code is the loader's.
The rules themselves are tables, in :mod:`ioprobe.instrument.stage_anchors` and
:mod:`ioprobe.instrument.stage_leaves`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ioprobe.instrument.stage_anchors import ANCHORS
from ioprobe.instrument.stage_leaves import (
    CALL_RULES,
    DATASET_METHODS,
    IDLE_THREAD,
    LEAF_RULES,
    NAME_HINTS,
    POOL_THREAD,
    POOL_THREAD_BLOCKED,
    WAITING_MODULES,
    WELL_KNOWN,
)
from ioprobe.instrument.stage_rules import Anchor, Region, Rule, pattern
from ioprobe.run import Stage

__all__ = ["Classified", "Frame", "Rule", "classify", "is_user_frame", "known_call", "module_of", "role_frames"]


class Frame(NamedTuple):
    """One Python frame of a stack."""

    function: str
    """Name, qualified (``Queue.get``) where the source knows it."""
    file: str
    line: int
    module: str = ""
    """``__name__`` of the module; derived from ``file`` when empty."""
    call: str = ""
    """Dotted call that runs in this frame, where it is known: ``zlib.decompress``, ``self.lock.acquire``."""


class Classified(NamedTuple):
    """The stage of one stack."""

    stage: Stage
    rule: str
    """Name of the rule that decided."""
    frame: Frame
    """The innermost frame of the user's own code; the frame that decided where there is none."""


_INSTALLED = re.compile(r"^.*[/\\](?:site-packages|dist-packages)[/\\]")
_STANDARD = re.compile(r"^.*[/\\]lib(?:64)?[/\\]python3\.\d+t?[/\\]|^.*[/\\]python3\d*\.zip[/\\]")
_SOURCE_TORCH = re.compile(r"^.*[/\\](?=torch[/\\](?:utils|nn|autograd|multiprocessing|distributed|optim)[/\\])")
_OWN_CLOCKS = re.compile(r"[/\\]ioprobe[/\\](?:instrument|probe)[/\\]")
_FROZEN = re.compile(r"^<frozen (.+)>$")


@lru_cache(maxsize=65536)
def module_of(file: str) -> str:
    """Return the dotted module name that a file's path suggests.

    >>> module_of("/usr/lib/python3.11/multiprocessing/queues.py"), module_of("torch/utils/data/_utils/fetch.py")
    ('multiprocessing.queues', 'torch.utils.data._utils.fetch')
    >>> module_of("/home/me/train.py"), module_of("<frozen importlib._bootstrap>")
    ('train', 'importlib._bootstrap')
    """
    frozen = _FROZEN.match(file)
    if frozen:
        return frozen.group(1)
    for prefix in (_INSTALLED, _STANDARD, _SOURCE_TORCH):
        found = prefix.match(file)
        if found:
            file = file[found.end() :]
            break
    else:
        if file.startswith(("/", "\\")) or file[1:2] == ":":
            file = re.split(r"[/\\]", file)[-1]
    # Extension modules: parquet.cpython-311-x86_64-linux-gnu.so, _parquet.pyx
    name = re.sub(r"(\.cpython-[^/\\]*|\.abi3)?\.(py|pyc|pyx|pxi|so)$", "", file)
    return re.sub(r"[/\\]", ".", name).removesuffix(".__init__")


@lru_cache(maxsize=65536)
def _is_library(file: str, module: str) -> bool:
    if file.startswith("<") or not file.endswith((".py", ".pyw", ".ipynb")):
        # <string>, <frozen ...>, generated code, native libraries: no place where a person wrote Python.
        return True
    if _INSTALLED.match(file) or _STANDARD.match(file) or _SOURCE_TORCH.match(file):
        return True
    top = (module or module_of(file)).split(".")[0]
    if top == "ioprobe":
        return True
    if file.startswith("/"):
        return False
    # py-spy shortens paths to what follows sys.path: only the package's name is left to judge by.
    return ("/" in file and top in WELL_KNOWN) or top in sys.stdlib_module_names


def is_user_frame(frame: Frame) -> bool:
    """Return whether the frame is the user's own code: not torch, the standard library or an installed package."""
    # Our own clocks stand between PyTorch's loop and the user's code, and are neither.
    return not _OWN_CLOCKS.search(frame.file) and not _is_library(frame.file, frame.module)


def _bare(function: str) -> str:
    return function.rpartition(".")[2]


def _key(frame: Frame) -> tuple[str, str]:
    return (frame.module or module_of(frame.file), _bare(frame.function))


@lru_cache(maxsize=65536)
def _anchor(module: str, function: str) -> Anchor | None:
    place = f"{module}:{function}"
    return next((anchor for anchor in ANCHORS if pattern(anchor.frames).match(place)), None)


@lru_cache(maxsize=65536)
def _leaf(module: str, function: str, data: bool, innermost: bool) -> Rule | None:
    place = f"{module}:{function}"
    rules = (r for r in LEAF_RULES if r.applies(data) and (innermost or not r.innermost))
    return next((r for r in rules if pattern(r.frames).match(place)), None)


@lru_cache(maxsize=65536)
def _called(call: str, data: bool) -> Rule | None:
    return next((r for r in CALL_RULES if r.applies(data) and pattern(r.calls).match(call)), None)


@lru_cache(maxsize=65536)
def _hint(function: str) -> Rule | None:
    return next((r for r in NAME_HINTS if pattern(r.frames).match(function.lower())), None)


def known_call(call: str) -> bool:
    """Return whether a rule knows this dotted call; lets a reader of source lines pick the call that matters."""
    return _called(call, True) is not None or _called(call, False) is not None


_WORKER_LOOP = pattern("torch.utils.data._utils.worker:_worker_loop torchdata.stateful_dataloader.worker:_worker_loop")
_PROCESS_RUN = pattern("multiprocessing.process:run torch.multiprocessing.spawn:_wrap")
_IDLE_THREAD = pattern(IDLE_THREAD)
_POOL_THREAD, _POOL_THREAD_BLOCKED = pattern(POOL_THREAD), pattern(POOL_THREAD_BLOCKED)
_WAITING = pattern(WAITING_MODULES)


def role_frames(frames: Sequence[Frame]) -> tuple[Sequence[Frame], bool]:
    """Return the frames of a process without those inherited from its parent, and whether it is a DataLoader worker.

    A forked worker's stack goes on into the main process's frames (``DataLoader.__iter__`` and the training script),
    which are not what the worker does; the same holds for any process that multiprocessing started.
    """
    for i, frame in enumerate(frames):
        place = ":".join(_key(frame))
        if _WORKER_LOOP.match(place):
            return frames[: i + 1], True
        if i and _PROCESS_RUN.match(place):
            return frames[:i], False
    return frames, False


def _fetched(frames: Sequence[Frame], at: int) -> Region:
    """Tell dataset code from collate code, both called by the fetcher at frames[at]."""
    fetcher = frames[at]
    if "collate_fn" in fetcher.call:
        return Region.COLLATE
    if at == 0 or fetcher.call:
        return Region.DATASET
    child = frames[at - 1]
    module, name = _key(child)
    if name in DATASET_METHODS:
        return Region.DATASET
    if re.search("collat|pad_batch|batchify", child.function, re.IGNORECASE):
        return Region.COLLATE
    if "IterableDataset" in fetcher.function or module.startswith("webdataset"):
        return Region.DATASET  # a generator may have any name
    if "MapDataset" in fetcher.function:
        # dataset[i] is __getitem__, or a decorator's wrapper around it; anything else is the collate function.
        inner = _bare(frames[at - 2].function) if at >= 2 else ""
        return Region.DATASET if "<locals>" in child.function and inner in DATASET_METHODS else Region.COLLATE
    return Region.COLLATE if name == "__call__" else Region.DATASET


def _region(frames: Sequence[Frame], worker: bool, in_loader: bool) -> tuple[Region, int, Anchor | None]:
    """Return the nearest region, the position of the frame that names it, and its anchor."""
    anchors = [_anchor(*_key(frame)) for frame in frames]
    fetching = worker or any(a is not None and a.region is Region.FETCH for a in anchors)
    for i, anchor in enumerate(anchors):
        if anchor is None or (anchor.main_only and fetching):
            continue  # transforms are modules too: inside a fetch a forward is no training step
        if in_loader and anchor.region is Region.STEP:
            continue
        if anchor.region is Region.FETCH:
            return _fetched(frames, i), i, anchor
        return anchor.region, i, anchor
    return Region.NONE, len(frames), None


def _queue_child(frames: Sequence[Frame], at: int) -> str:
    """Return what the loop at frames[at] is doing with a queue: ``get``, ``put`` or nothing."""
    if at == 0:
        call = _bare(frames[0].call)
        return call if call in {"get", "put"} else ""
    child = _bare(frames[at - 1].function)
    return child if child in {"get", "put"} else ""


def classify(
    frames: Sequence[Frame], role: str, extra_rules: Sequence[Rule] = (), *, in_loader: bool = False
) -> Classified:
    """Return the stage that a stack belongs to.

    Args:
        frames: The stack, innermost frame first; at least one.
        role: ``worker`` (main thread of a DataLoader worker), ``main`` or ``thread`` (any other thread).
        extra_rules: The user's own rules; tried before the built-in ones, on every frame from the innermost on.
        in_loader: The main thread is known to be outside its step, in what makes or fetches a batch.

    Raises:
        ValueError: frames is empty or the role is unknown.

    >>> stack = [Frame("ImageFile.load", "PIL/ImageFile.py", 425), Frame("Photos.__getitem__", "train.py", 9)]
    >>> classify(stack, "worker")[:2]
    (<Stage.DECODE: 'decode'>, 'pillow')
    """
    if not frames:
        raise ValueError("a stack needs at least one frame")
    if role not in {"worker", "main", "thread"}:
        raise ValueError(f"role '{role}' is none of worker, main, thread")
    own, is_worker = role_frames(frames)
    # With a clock of ours innermost nobody else's code runs, whoever called it.
    loads = in_loader and role == "main" and not _OWN_CLOCKS.search(frames[0].file)
    own = [f for f in own if not _is_ours(f)] or list(own)
    worker = is_worker or role == "worker"
    user = next((f for f in own if is_user_frame(f)), None)
    stage, rule, decided = _decide(own, worker, role, extra_rules, loads)
    return Classified(stage, rule, user or decided)


def _is_ours(frame: Frame) -> bool:
    return _key(frame)[0].startswith("ioprobe.") or bool(_OWN_CLOCKS.search(frame.file))


def _decide(
    frames: Sequence[Frame], worker: bool, role: str, extra_rules: Sequence[Rule], in_loader: bool
) -> tuple[Stage, str, Frame]:
    for frame in frames if extra_rules else ():
        module, function = _key(frame)
        places = (f"{module}:{function}", f"{module}:{frame.function}")
        for extra in extra_rules:
            if extra.matches(places, frame.call, frame.file):
                return extra.stage, extra.name, frame
    if role == "thread" and _is_blocked_pool_thread(frames):
        return Stage.WAIT, "a pool's thread waits for its processes", frames[0]
    region, at, anchor = _region(frames, worker, in_loader)
    inside = frames[: at + 1]
    if anchor is not None and anchor.settles is not None and region is anchor.region:
        return anchor.settles, anchor.name, frames[at]
    if region is Region.COLLATE:
        return Stage.COLLATE, "below collate_fn", frames[at]
    if region is Region.WORKER_LOOP:
        return _worker_loop(frames, at)
    if region is Region.PIN_LOOP and _queue_child(frames, at) == "put":
        return Stage.TRANSPORT, "pin thread hands over", frames[at]
    if region is Region.NONE and role == "thread" and _IDLE_THREAD.match(":".join(_key(frames[0]))):
        return Stage.WAIT, "idle thread", frames[0]
    # Threads beside the main one are prefetchers, clients of a store, decoders: what they do is data work.
    data = region is Region.DATASET or (region is Region.NONE and (worker or role == "thread" or in_loader))
    # A loader of the user's own also waits for threads and processes, and copies to the device, in the main thread.
    found = (_walk(inside, False) if data and in_loader else None) or _walk(inside, data)
    if found is not None:
        return found
    if data and (role != "thread" or region is Region.DATASET):
        return Stage.TRANSFORM, "dataset code", frames[min(at, len(frames) - 1)]
    if anchor is not None and anchor.default is not None:
        return anchor.default, anchor.name, frames[at]
    return _outside(frames, role)


def _is_blocked_pool_thread(frames: Sequence[Frame]) -> bool:
    """Return whether this is a pool's own thread at the end of a pipe: what it waits for, its processes compute."""
    if not _POOL_THREAD_BLOCKED.match(":".join(_key(frames[0]))):
        return False
    return any(_POOL_THREAD.match(":".join(_key(frame))) for frame in frames)


def _walk(frames: Sequence[Frame], data: bool) -> tuple[Stage, str, Frame] | None:
    """Return what the innermost frame that a rule knows says; weak rules only where nothing else speaks."""
    weak: tuple[Stage, str, Frame] | None = None
    for i, frame in enumerate(frames):
        leaf = _leaf(*_key(frame), data, i == 0)
        hint = _hint(_bare(frame.function)) if data and is_user_frame(frame) else None
        telling = i == 0 and frame.call and not _WAITING.match(":".join(_key(frame)))
        for rule in (_called(frame.call, data) if telling else None, leaf, hint):
            if rule is None:
                continue
            if not rule.weak:
                return rule.stage, rule.name, frame
            weak = weak or (rule.stage, rule.name, frame)
    return weak


def _worker_loop(frames: Sequence[Frame], at: int) -> tuple[Stage, str, Frame]:
    doing = _queue_child(frames, at)
    if doing == "get":
        return Stage.WAIT, "worker waits for its next task", frames[at]
    if doing == "put":
        return Stage.TRANSPORT, "worker hands over its batch", frames[at]
    if at == 0:
        return Stage.OTHER, "worker loop itself", frames[at]
    return Stage.STARTUP, "worker start", frames[at]


def _outside(frames: Sequence[Frame], role: str) -> tuple[Stage, str, Frame]:
    user = next((f for f in frames if is_user_frame(f)), None)
    if role == "main" and user is not None:
        return Stage.STEP, "main thread outside the loader", user
    return Stage.OTHER, "no rule", frames[0]
