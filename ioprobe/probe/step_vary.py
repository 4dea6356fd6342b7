"""The same step at another precision, with accumulation or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from ioprobe.errors import UsageError
from ioprobe.probe.target import accepted_keywords

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_SWITCH = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is to run; None leaves it as it was written.

    A factory that takes a keyword of the same name gets it. Otherwise a module
    is trained under autocast, with accumulation and ``torch.compile`` as asked,
    and a callable is put under autocast and ``torch.compile``; accumulation
    inside a callable cannot be changed from outside.
    """

    precision: str | None = None
    """``fp32``, ``tf32``, ``bf16`` or ``fp16``."""
    accum: int | None = None
    """Micro-steps between two optimizer steps."""
    compile: bool | None = None

    @classmethod
    def parse(cls, query: str) -> Variation:
        """Return the variation written as ``precision=bf16&accum=4&compile=on``.

        >>> Variation.parse("precision=bf16&accum=4")
        Variation(precision='bf16', accum=4, compile=None)

        Raises:
            UsageError: an unknown name or value.
        """
        return cls.of(dict(parse_qsl(query, keep_blank_values=True)))

    @classmethod
    def of(cls, words: Mapping[str, str]) -> Variation:
        """Return the variation of words by name.

        Raises:
            UsageError: an unknown name or value.
        """
        found: dict[str, Any] = {}
        for name, value in words.items():
            if name == "precision" and value in PRECISIONS:
                found[name] = value
            elif name == "accum" and value.isdecimal() and int(value) > 0:
                found[name] = int(value)
            elif name == "compile" and value.lower() in _SWITCH:
                found[name] = _SWITCH[value.lower()]
            else:
                raise UsageError(
                    f"a step cannot be varied by '{name}={value}'",
                    hint=f"precision is {', '.join(PRECISIONS)}; accum a number from 1; compile on or off",
                )
        return cls(**found)

    def keywords(self, factory: Callable[..., Any]) -> dict[str, Any]:
        """Return what the factory itself takes of it."""
        asked = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return {name: asked[name] for name in accepted_keywords(factory, set(asked))}

    def without(self, keywords: Mapping[str, Any]) -> Variation:
        """Return what is left to do when the factory took some of it."""
        return msgspec.structs.replace(self, **dict.fromkeys(keywords))

    def autocast_dtype(self) -> Any:
        """Return the type for autocast, None for none; sets how float32 products are rounded."""
        import torch

        if self.precision in ("fp32", "tf32"):
            torch.set_float32_matmul_precision("highest" if self.precision == "fp32" else "high")
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision or "")

    def wrap(self, step: Callable[[Any], Any], name: str, device: Any = None) -> Callable[[Any], Any]:
        """Return a callable step run as asked.

        Raises:
            UsageError: accumulation is asked of a callable.
        """
        if self.accum is not None:
            raise UsageError(
                f"the step '{name}' does its own optimizer step, so accumulation cannot be set from outside",
                hint="let its factory take a keyword 'accum', or return an nn.Module",
            )
        dtype = self.autocast_dtype()
        if dtype is None and not self.compile:
            return step
        return Varied(step, dtype, device, compiled=bool(self.compile))


class Varied:
    """A callable under autocast, compiled or both."""

    def __init__(self, step: Callable[[Any], Any], dtype: Any, device: Any = None, *, compiled: bool = False) -> None:
        import torch

        from ioprobe.probe.device import current_device

        self._kind = (current_device() if device is None else device).type
        self._dtype = dtype
        self._run: Callable[[Any], Any] = torch.compile(step) if compiled else step
        self._step = step
        if callable(sync := getattr(step, "sync", None)):
            self.sync = sync

    def __call__(self, batch: Any) -> None:
        self._under_autocast(self._run, batch)

    def uncompiled(self, batch: Any) -> None:
        """The step as it was written, for counters of operators."""
        self._under_autocast(self._step, batch)

    def _under_autocast(self, step: Callable[[Any], Any], batch: Any) -> None:
        import torch

        with torch.autocast(self._kind, dtype=self._dtype, enabled=self._dtype is not None):
            step(batch)
