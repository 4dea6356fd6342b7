"""FLOPs of a step by the published formula, from a transformer's declared shape."""

from __future__ import annotations

from typing import Any

import msgspec

from ioprobe.errors import UsageError
from ioprobe.model.flops import transformer_flops_per_token
from ioprobe.run import StepRun

_COUNTS = ("layers", "heads", "head_size", "sequence")
_SIZES = ("parameters", "active_parameters")
_SWITCHES = ("causal", "recompute")
_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")


class Transformer(msgspec.Struct, frozen=True, kw_only=True):
    """What was declared."""

    shape: dict[str, Any]
    """Keywords of :func:`ioprobe.model.flops.transformer_flops_per_token`."""
    causal: bool = False
    recompute: bool = False
    """Whether the hardware executes the forward pass twice."""
    dtype: str | None = None
    """Type of the matrix products; None to take what was seen."""


def parse_transformer(text: str) -> Transformer:
    """Return what is written as ``parameters=8e9,layers=32,heads=32,head_size=128,sequence=8192,causal,dtype=bf16``.

    Raises:
        UsageError: a name or a value that cannot be read, or one that is missing.
    """
    shape: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for word in text.split(","):
        name, _, value = (part.strip() for part in word.partition("="))
        try:
            if name in _SIZES or name in _COUNTS:
                shape[name] = _positive(float(value) if name in _SIZES else int(value))
            elif name in _SWITCHES:
                rest[name] = {"": True, "on": True, "off": False}[value]
            elif name == "dtype" and value in _DTYPES:
                rest[name] = value
            else:
                raise KeyError(name)
        except (ValueError, KeyError):
            raise UsageError(
                f"cannot read '{word.strip()}' in --transformer",
                hint="write it like parameters=8e9,layers=32,heads=32,head_size=128,sequence=8192,causal,dtype=bf16",
            ) from None
    missing = sorted({"parameters", *_COUNTS} - shape.keys())
    if missing:
        raise UsageError(f"--transformer lacks {', '.join(missing)}", hint="each of them is in the model's config")
    return Transformer(shape=shape, **rest)


def _positive(number: float) -> float:
    if not 0 < number < 1e18:
        raise ValueError(number)
    return number


def declare_flops(step: StepRun, text: str) -> None:
    """Put the FLOPs of a declared transformer into a step; a sample is a sequence where its tokens are not known."""
    found = parse_transformer(text)
    model = transformer_flops_per_token(**found.shape, causal=found.causal)
    executed = transformer_flops_per_token(**found.shape, causal=found.causal, recompute=found.recompute)
    tokens = step.tokens_per_step or step.samples_per_step * found.shape["sequence"]
    step.flops_per_step, step.executed_flops_per_step = model * tokens, executed * tokens
    step.flops_source = f"6N + 12·L·H·Q·T per token with {text}: {model:.4g} FLOPs"
    step.dtype = found.dtype or step.dtype
