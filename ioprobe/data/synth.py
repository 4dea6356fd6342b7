"""Write a sharded dataset from a seed: parallel, atomic, resumable.

Sample ``i`` depends on the seed and on ``i``; shard ``s`` holds the samples
``[s*n, (s+1)*n)``. So the bytes of a shard do not depend on how many processes
wrote the dataset, nor on how often it was interrupted.

A small manifest (``.ioprobe-synth.json``) states the spec. A folder with the
same spec is continued: shards under their final name are complete, for they are
renamed only after fsync. A folder with another spec, or with files that nobody
here wrote, is refused without ``force``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from ioprobe.data.formats import INDEXED, WriteOptions, load_format, load_index_maker
from ioprobe.data.indexed import INDEX
from ioprobe.data.samples import make_sample, prepare
from ioprobe.data.spec import Spec, resolve
from ioprobe.data.store import Store, compressing, open_store
from ioprobe.errors import OutputError

MANIFEST = ".ioprobe-synth.json"
WHOLE_FILE = frozenset({"webdataset", "jsonl", "tfrecord"})
"""Formats that are compressed around, not within, their records."""
STABLE = frozenset({"webdataset", "tokens", "npy"})
"""Formats whose writers are ours and hand over buffers that stay as they are."""


@dataclass(frozen=True)
class Written:
    """What was written, and what was there already."""

    url: str
    """A URL that names exactly the shards, for ``make_loader``."""
    spec: Spec
    num_shards: int
    kept_shards: int
    """Of them: complete from an earlier, interrupted run."""
    total_bytes: int


@dataclass(frozen=True)
class Progress:
    """How far the writing is."""

    shards_done: int
    shards: int
    bytes_done: int
    shards_kept: int = 0
    """Of those done: there already when the writing began."""


def shard_name(spec: Spec, number: int) -> str:
    """Return the name of a shard's file (or folder, for an image folder)."""
    if spec.format == "imagefolder":
        return f"class-{number:06d}"
    if spec.format == "mds":
        return f"shard.{number:05d}.mds"
    if spec.format == "litdata":
        return f"chunk-0-{number}.bin"
    suffix = load_format(spec.format).suffix(write_options(spec, number))
    return f"shard-{number:06d}{suffix}"


def write_options(spec: Spec, number: int) -> WriteOptions:
    """Return how shard ``number`` is written."""
    count = min(spec.per_shard, spec.samples - number * spec.per_shard)
    return WriteOptions(spec.compression, spec.row_group_size, count)


def write_one(spec: Spec, store: Store, number: int) -> int:
    """Write one shard; return its size [bytes].

    Raises:
        OutputError: it cannot be written; nothing is left under its name or a temporary one.
    """
    first = number * spec.per_shard
    options = write_options(spec, number)
    samples = (make_sample(spec, i) for i in range(first, first + options.samples))
    name = shard_name(spec, number)
    if spec.format == "imagefolder":
        return store.put_folder(name, {f"{s['__key__']}.jpg": s["image"] for s in samples})
    module = load_format(spec.format)
    entry: dict[str, Any] | None = None
    codec = spec.compression if spec.format in WHOLE_FILE else None

    def fill(file: BinaryIO) -> None:
        nonlocal entry
        with compressing(file, codec) as out:
            entry = module.write_shard(out, samples, options)

    size = store.put(name, fill, stable=spec.format in STABLE and codec is None)
    if entry is not None:
        text = json.dumps(entry).encode()
        store.put(_entry_name(name), lambda file: _write_all(file, text))
    return size


def _entry_name(name: str) -> str:
    """Return the name of the file that keeps a shard's index entry until all shards are there."""
    return f".{name}.entry.json"


def synthesize(
    spec: Spec,
    url: str,
    *,
    workers: int | None = None,
    force: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Written:
    """Write a dataset, or what is missing of it.

    Args:
        spec: What to write.
        url: Folder, or prefix of an object store.
        workers: Writer processes; None for one a usable core, 0 to write in this process.
        force: Replace an earlier dataset of another spec; write beside foreign files (which are never removed).
        storage_options: For the fsspec file system.
        on_progress: Called after each shard, in this process.

    Raises:
        UsageError: the spec cannot be meant.
        OutputError: the target holds something else, or cannot be written.
    """
    spec = resolve(spec)
    store = open_store(url, storage_options)
    present = _claim(spec, store, force)
    names = [shard_name(spec, n) for n in range(spec.num_shards)]
    done = {n: present[name] for n, name in enumerate(names) if name in present}
    todo = [n for n in range(spec.num_shards) if n not in done]
    kept, total = len(done), sum(done.values())

    def finished(number: int, size: int) -> None:
        nonlocal total
        total += size
        done[number] = size
        if on_progress is not None:
            on_progress(Progress(len(done), spec.num_shards, total, kept))

    if on_progress is not None:
        on_progress(Progress(kept, spec.num_shards, total, kept))
    if todo:
        from ioprobe.data.writers import write_shards

        prepare(spec)
        try:
            write_shards(spec, url, dict(storage_options or {}), todo, finished, workers, store)
        except OutputError as error:
            raise _with_what_is_kept(error, store, names) from None
        if spec.format in INDEXED:
            _write_index(spec, store, names)
    _write_manifest(spec, store, [done[n] for n in range(spec.num_shards)])
    return Written(_pattern(url, spec), spec, spec.num_shards, kept, total)


def _with_what_is_kept(error: OutputError, store: Store, names: list[str]) -> OutputError:
    """Return the error with a word on the shards that are there; where there is none, nothing of ours stays."""
    with suppress(OutputError):
        there = {name.split("/")[0] for name in store.entries()}
        kept = len(there & set(names))
        if kept:
            shards = "the finished shard is" if kept == 1 else f"the {kept} finished shards are"
            note = f"{shards} kept and not written again"
            return OutputError(error.message, hint=f"{error.hint}; {note}" if error.hint else note)
        store.remove(MANIFEST)
    return error


def _write_index(spec: Spec, store: Store, names: list[str]) -> None:
    """Write ``index.json`` from the shards' entries, which are then no longer needed."""
    entries = [(name, json.loads(store.read(_entry_name(name)) or b"{}")) for name in names]
    data = load_index_maker(spec.format)(entries)
    store.put(INDEX, lambda file: _write_all(file, data))
    for name in names:
        store.remove(_entry_name(name))


def _pattern(url: str, spec: Spec) -> str:
    folder = url.rstrip("/")
    if spec.format in {"imagefolder", "mds", "litdata"}:
        return folder
    first, last = shard_name(spec, 0), shard_name(spec, spec.num_shards - 1)
    if first == last:
        return f"{folder}/{first}"
    digits = f"{{{0:06d}..{spec.num_shards - 1:06d}}}"
    return f"{folder}/{first.replace('000000', digits, 1)}"


def _claim(spec: Spec, store: Store, force: bool) -> dict[str, int]:
    """Make the target ours; return its complete shards with their sizes [bytes]."""
    entries = store.entries()
    manifest = _read_manifest(store)
    wanted = json.loads(json.dumps(asdict(spec)))
    if manifest is None and entries and not force:
        some = ", ".join(list(entries)[:3])
        raise OutputError(
            f"'{store.name}' holds files that no synth wrote: {some}{', ...' if len(entries) > 3 else ''}",
            hint="choose an empty folder, or pass --force to write beside them",
        )
    if manifest is not None and manifest.get("spec") != wanted and not force:
        raise OutputError(
            f"'{store.name}' holds another dataset: {_difference(manifest.get('spec') or {}, wanted)}",
            hint="choose another folder, or pass --force to replace it",
        )
    store.clean()
    if manifest is None or manifest.get("spec") != wanted:
        _remove_shards(manifest, store, entries)
        _write_manifest(spec, store, [])
        return {}
    return _complete(spec, store, entries, manifest.get("shard_bytes") or [])


def _complete(spec: Spec, store: Store, entries: dict[str, int], sizes: list[int]) -> dict[str, int]:
    """Return the shards that are whole: there, and of the size that a finished run noted."""
    names = [shard_name(spec, n) for n in range(spec.num_shards)]
    noted = dict(zip(names, sizes, strict=False))
    present: dict[str, int] = {}
    for name, size in entries.items():
        top = name.split("/")[0] if spec.format == "imagefolder" else name
        present[top] = present.get(top, 0) + size
    if spec.format == "imagefolder" and not hasattr(store, "path"):
        present = {n: s for n, s in present.items() if f"{n}/.complete" in entries}
    whole = [n for n in names if n in present and noted.get(n, present[n]) == present[n]]
    if spec.format in INDEXED and (INDEX not in entries or len(whole) < len(names)):
        # An index entry is written after its shard; without it the shard cannot be listed.
        whole = [n for n in whole if _entry_name(n) in entries]
    return {n: present[n] for n in whole}


def _remove_shards(manifest: dict[str, Any] | None, store: Store, entries: dict[str, int]) -> None:
    if manifest is None:
        return
    try:
        old = Spec(**{**manifest["spec"], "image_size": _pair(manifest["spec"].get("image_size"))})
        names = {shard_name(old, n) for n in range(old.num_shards)}
    except (KeyError, TypeError, ZeroDivisionError):
        return
    names |= {_entry_name(n) for n in names} | ({INDEX} if old.format in INDEXED else set())
    for name in {n.split("/")[0] for n in entries} & names:
        store.remove(name)


def _pair(value: list[int] | None) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])


def _read_manifest(store: Store) -> dict[str, Any] | None:
    data = store.read(MANIFEST)
    if data is None:
        return None
    try:
        manifest = json.loads(data)
    except ValueError:
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _write_manifest(spec: Spec, store: Store, sizes: list[int]) -> None:
    text = json.dumps({"manifest": 1, "spec": asdict(spec), "shard_bytes": sizes})
    store.put(MANIFEST, lambda file: _write_all(file, text.encode() + b"\n"))


def _write_all(file: Any, data: bytes) -> None:
    file.write(data)


def _difference(there: dict[str, Any], wanted: dict[str, Any]) -> str:
    differing = [f"{k} {there.get(k)} (asked: {v})" for k, v in wanted.items() if there.get(k) != v]
    return ", ".join(differing[:3]) or "its manifest cannot be read"
