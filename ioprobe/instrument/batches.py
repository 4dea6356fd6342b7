"""What a batch holds: samples, bytes, tensors, and a fingerprint of its content."""

from __future__ import annotations

import dataclasses
import itertools
import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

_LOOKS = 256
"""About so many parts of a batch are looked at: some two milliseconds at most, whatever the batch holds."""


def _children(value: Any) -> Collection[Any] | None:
    """Return the parts of a container, or None for a leaf."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if hasattr(value, "__dict__") and not hasattr(value, "shape") and not callable(value):
        # transformers' BatchEncoding, torch_geometric's Data and the like
        data = getattr(value, "data", None)
        return data.values() if isinstance(data, Mapping) else vars(value).values()
    return None


def _has_shape(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return shape is not None and hasattr(value, "dtype")


def leaves(batch: Any, looks: int = _LOOKS, depth: int = 4) -> Iterator[tuple[Any, float]]:
    """Yield tensors, arrays and other leaves, each with the number of leaves that it stands for.

    All of them where there are few; of a container with very many parts, evenly spaced ones.
    """
    parts = None if depth == 0 or _has_shape(batch) else _children(batch)
    if parts is None:
        yield batch, 1.0
        return
    n = len(parts)
    seen = min(n, max(4, looks))
    for part in _spaced(parts, seen):
        for leaf, weight in leaves(part, looks // max(1, seen), depth - 1):
            yield leaf, weight * n / seen


def _spaced(parts: Collection[Any], seen: int) -> Iterable[Any]:
    if seen == len(parts):
        return parts
    if isinstance(parts, (list, tuple)):
        return (parts[k * len(parts) // seen] for k in range(seen))
    return itertools.islice(parts, seen)


def count_samples(batch: Any, batch_size: int | None = None) -> int:
    """Return the number of training examples in a batch.

    The first dimension of the first tensor, or the length of a list of samples.
    Where both readings are possible, the one that equals ``batch_size`` wins.

    >>> count_samples(["a", "b", "c"]), count_samples({"x": [1, 2], "y": [3, 4]})
    (3, 2)
    """
    candidates = list(_candidates(batch))
    if not candidates:
        return 1
    if batch_size in candidates:
        return int(batch_size or 1)
    return max(1, candidates[0])


def _candidates(batch: Any) -> Iterator[int]:
    if _has_shape(batch):
        if len(batch.shape):
            yield int(batch.shape[0])
        return
    if isinstance(batch, (str, bytes)) or batch is None:
        return
    if isinstance(batch, (list, tuple)):
        if batch and (_has_shape(batch[0]) or isinstance(batch[0], Mapping)):
            # Columns (images, labels) or a list of samples: columns agree in their first dimension.
            inner = [n for part in batch[:8] for n in list(_candidates(part))[:1]]
            if len(inner) == len(batch[:8]) and len(set(inner)) == 1 and not isinstance(batch[0], Mapping):
                yield inner[0]
                yield len(batch)
                return
            yield len(batch)
            yield from inner[:1]
            return
        if batch and isinstance(batch[0], (list, tuple)):
            inner = [len(part) for part in batch[:9] if isinstance(part, (list, tuple))]
            if len(batch) <= 8 and len(set(inner)) == 1:
                yield inner[0]
                yield len(batch)
                return
        yield len(batch)
        return
    parts = _children(batch)
    if parts:
        for part in parts:
            found = list(_candidates(part))
            if found:
                yield from found
                return


def size_of(batch: Any) -> tuple[int, int]:
    """Return (bytes, tensors) of the tensors and arrays in a batch; strings, bytes and numbers count, too.

    Exact up to a few hundred parts; beyond, an estimate from evenly spaced ones.
    """
    total = tensors = 0.0
    for leaf, weight in leaves(batch):
        nbytes = getattr(leaf, "nbytes", None)
        if isinstance(nbytes, int) and _has_shape(leaf):
            total += nbytes * weight
            tensors += weight * hasattr(leaf, "untyped_storage")
        elif isinstance(leaf, (str, bytes, bytearray)):
            total += len(leaf) * weight
        elif isinstance(leaf, (int, float)):
            total += 28 * weight
    return round(total), round(tensors)


def fingerprint(batch: Any) -> int:
    """Return a checksum of (parts of) a batch's content; equal batches have equal ones."""
    crc = 0
    for leaf, _ in leaves(batch, looks=64):
        crc = zlib.crc32(_content(leaf), crc)
    return crc


def _stride(count: int) -> int:
    """Return a step that spreads a thousand looks over so many elements and falls in with no usual width of a row.

    With an even step, say, looks at rows of two columns would see one of them only.
    """
    step = max(1, count // 1024)
    while math.gcd(step, 2 * 3 * 5 * 7) > 1:
        step += 1
    return step


def _content(leaf: Any) -> bytes:
    if _has_shape(leaf):
        if hasattr(leaf, "detach"):
            leaf = leaf.detach()
            if getattr(leaf, "is_sparse", False) or leaf.device.type != "cpu":
                return b""
            flat = leaf.reshape(-1)
            return bytes(flat[:: _stride(flat.numel())][:1024].double().numpy().tobytes())
        flat = leaf.reshape(-1)
        return bytes(flat[:: _stride(flat.size)][:1024].tobytes())
    return repr(leaf[:256] if isinstance(leaf, (str, bytes, bytearray)) else leaf)[:256].encode()
