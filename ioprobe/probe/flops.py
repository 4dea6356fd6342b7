"""Count the floating-point work of a step, and see in which type its matrix products run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product", "_scaled_mm", "linear")


class FlopCount(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of one step; a multiply-add counts two."""

    model: int
    """Forward and backward, each once: what MFU is made of."""
    executed: int
    """With the forward passes that activation checkpointing repeats: what HFU is made of."""
    by_operator: dict[str, int] = {}
    """Of ``executed``, largest first."""
    dtype: str | None = None
    """Type of most matrix products, in torch's words; ``tf32`` where float32 is rounded to it."""


def count_flops(
    step: Callable[[Any], Any], batch: Any, agree: Callable[[bool], bool] = lambda mine: mine
) -> FlopCount | None:
    """Run a step once or twice and count what its matrix products and convolutions do.

    Only operators of ATen are seen: kernels of one's own and compiled regions
    are not, so count the step before ``torch.compile``. None where nothing was
    seen.

    Args:
        step: Called with the batch.
        batch: Of the usual size.
        agree: Makes of whether this rank needs the second run what holds for all ranks: a step that communicates
            must run as often on each.
    """
    counted = _counted(step, batch)
    model = counted.total
    if agree(counted.regions > 0):
        from torch.utils.checkpoint import set_checkpoint_early_stop

        # Without the early stop a region's recomputation is its forward over again, and can be taken off exactly.
        with set_checkpoint_early_stop(False):
            whole = _counted(step, batch)
        model = whole.total - whole.in_regions
    if counted.total == 0:
        return None
    operators = dict(sorted(counted.by_operator.items(), key=lambda item: -item[1]))
    return FlopCount(model=model, executed=counted.total, by_operator=operators, dtype=counted.dtype)


class _Counted(msgspec.Struct):
    total: int = 0
    regions: int = 0
    """Checkpointed regions that were entered."""
    in_regions: int = 0
    """FLOPs of their forward passes."""
    by_operator: dict[str, int] = {}
    dtype: str | None = None


def _counted(step: Callable[[Any], Any], batch: Any) -> _Counted:
    from torch.utils.flop_counter import FlopCounterMode

    found = _Counted()
    mode: Any = FlopCounterMode(display=False)
    with ExitStack() as stack:
        stack.enter_context(_watched_checkpoints(mode, found))
        stack.enter_context(mode)
        seen = stack.enter_context(_watched_types())
        step(batch)
    found.total = int(mode.get_total_flops())
    found.by_operator = {str(name): int(n) for name, n in mode.get_flop_counts().get("Global", {}).items()}
    found.dtype = max(seen, key=lambda name: seen[name], default=None)
    return found


@contextmanager
def _watched_types() -> Iterator[dict[str, int]]:
    """Count the types of the first operand of matrix products and convolutions."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: dict[str, int] = {}
    base: Any = TorchDispatchMode

    class Watch(base):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if str(func).removeprefix("aten.").startswith(_PRODUCTS):
                operand = next((a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()), None)
                if operand is not None:
                    name = _type_name(operand)
                    seen[name] = seen.get(name, 0) + 1
            return func(*args, **(kwargs or {}))

    with Watch():
        yield seen


def _type_name(operand: Any) -> str:
    import torch

    name = str(operand.dtype).removeprefix("torch.")
    rounded = name == "float32" and operand.is_cuda and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if rounded else name


@contextmanager
def _watched_checkpoints(mode: Any, found: _Counted) -> Iterator[None]:
    """Count the forward passes of both kinds of ``torch.utils.checkpoint``."""
    import torch.utils.checkpoint

    module: Any = torch.utils.checkpoint
    depth = 0

    @contextmanager
    def region() -> Iterator[None]:
        nonlocal depth
        before, depth = mode.get_total_flops(), depth + 1
        try:
            yield
        finally:
            depth -= 1
            if depth == 0:
                found.regions += 1
                found.in_regions += int(mode.get_total_flops() - before)

    # Since torch 2.15 checkpoint() calls the second name, and the first one is a shell around it.
    names = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    name = next(name for name in names if hasattr(module, name))
    reentrant, plain = module.CheckpointFunction, getattr(module, name)

    def forward(ctx: Any, *args: Any) -> Any:
        with region():
            return reentrant.forward(ctx, *args)

    def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with region():
            yield from plain(*args, **kwargs)

    module.CheckpointFunction = type("Watched", (reentrant,), {"forward": staticmethod(forward)})
    setattr(module, name, generator)
    try:
        yield
    finally:
        module.CheckpointFunction = reentrant
        setattr(module, name, plain)
