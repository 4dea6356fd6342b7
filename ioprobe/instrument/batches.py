"""What a batch holds: samples, bytes, tensors, and a fingerprint of its content."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

_MOST_ITEMS = 4096


def _children(value: Any) -> list[Any] | None:
    """Return the parts of a container, or None for a leaf."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if hasattr(value, "__dict__") and not hasattr(value, "shape") and not callable(value):
        # transformers' BatchEncoding, torch_geometric's Data and the like
        data = getattr(value, "data", None)
        return list(data.values()) if isinstance(data, Mapping) else list(vars(value).values())
    return None


def _has_shape(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return shape is not None and hasattr(value, "dtype")


def leaves(batch: Any, depth: int = 4) -> Iterator[Any]:
    """Yield tensors, arrays and other leaves, at most a few thousand."""
    left = _MOST_ITEMS
    queue: list[tuple[Any, int]] = [(batch, 0)]
    while queue and left > 0:
        value, level = queue.pop(0)
        parts = None if _has_shape(value) or level >= depth else _children(value)
        if parts is None:
            left -= 1
            yield value
        else:
            queue += [(part, level + 1) for part in parts[:left]]


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
            inner = [len(part) for part in batch if isinstance(part, (list, tuple))]
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
    """Return (bytes, tensors) of the tensors and arrays in a batch; strings and bytes count, too."""
    total = tensors = 0
    for leaf in leaves(batch):
        nbytes = getattr(leaf, "nbytes", None)
        if isinstance(nbytes, int) and _has_shape(leaf):
            total += nbytes
            tensors += hasattr(leaf, "untyped_storage")
        elif isinstance(leaf, (str, bytes, bytearray)):
            total += len(leaf)
        elif isinstance(leaf, (int, float)):
            total += 28
    return total, tensors


def fingerprint(batch: Any) -> int:
    """Return a checksum of (parts of) a batch's content; equal batches have equal ones."""
    crc = 0
    for k, leaf in enumerate(leaves(batch)):
        if k >= 64:
            break
        crc = zlib.crc32(_content(leaf), crc)
    return crc


def _content(leaf: Any) -> bytes:
    if _has_shape(leaf):
        if hasattr(leaf, "detach"):
            leaf = leaf.detach()
            if getattr(leaf, "is_sparse", False) or leaf.device.type != "cpu":
                return b""
            flat = leaf.reshape(-1)
            step = max(1, flat.numel() // 1024)
            return bytes(flat[::step][:1024].double().numpy().tobytes())
        return bytes(leaf.reshape(-1)[:1024].tobytes())
    return repr(leaf)[:256].encode()
