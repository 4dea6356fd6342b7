"""A made-up batch of a given shape, for steps that are to be measured without their data."""

from __future__ import annotations

from typing import Any

from ioprobe.errors import UsageError

_TYPES = ("float32", "float16", "bfloat16", "float64", "uint8", "int32", "int64", "bool")
_CLASSES = 10
"""Whole numbers are below it, so that they serve as labels of the smallest classifiers and as tokens."""


def parse_shape(text: str) -> list[tuple[list[int], str]]:
    """Return shapes and types written as ``32,3,224,224`` or ``32,3,224,224:uint8;32:int64``.

    >>> parse_shape("8,3,32,32;8:int64")
    [([8, 3, 32, 32], 'float32'), ([8], 'int64')]

    Raises:
        UsageError: it cannot be read, or the first dimensions differ.
    """
    found = []
    for part in text.split(";"):
        sizes, _, kind = part.partition(":")
        words = [word.strip() for word in sizes.split(",")]
        kind = kind.strip() or "float32"
        if not all(w.isdecimal() and int(w) > 0 for w in words) or kind not in _TYPES:
            raise UsageError(
                f"cannot read shape '{text}'",
                hint=f"write it like 32,3,224,224 or 32,3,224,224:uint8;32:int64; types: {', '.join(_TYPES)}",
            )
        found.append(([int(w) for w in words], kind))
    if len({shape[0] for shape, _ in found}) > 1:
        raise UsageError(f"the tensors of shape '{text}' differ in their first dimension, the batch size")
    return found


def make_batches(shape: str, batch_size: int | None = None) -> list[Any]:
    """Return one batch in a list: a tensor, or a tuple of them. The same shape gives the same numbers.

    Args:
        shape: See :func:`parse_shape`.
        batch_size: Replaces the first dimension.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    tensors = []
    for sizes, kind in parse_shape(shape):
        full = [batch_size or sizes[0], *sizes[1:]]
        dtype = getattr(torch, kind)
        if dtype.is_floating_point:
            tensors.append(torch.rand(full, generator=generator).to(dtype))
        else:
            most = 2 if dtype is torch.bool else 256 if dtype is torch.uint8 else _CLASSES
            tensors.append(torch.randint(0, most, full, generator=generator).to(dtype))
    return [tensors[0] if len(tensors) == 1 else tuple(tensors)]
