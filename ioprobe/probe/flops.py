"""Floating-point work of a step, and what part of the accelerator's peak that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from ioprobe.facts import Accelerator, accelerator
from ioprobe.run import Caveat


class FlopCount(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of one step; a multiply-add counts two."""

    model: int
    """Forward and backward, each once: what MFU is made of."""
    executed: int
    """With the forward passes that activation checkpointing repeats: what HFU is made of."""
    by_operator: dict[str, int] = {}
    """Of ``executed``, largest first."""


def count_flops(step: Callable[[Any], Any], batch: Any) -> FlopCount | None:
    """Run a step once or twice and count what its matrix products and convolutions do.

    Only operators of ATen are seen: kernels of one's own and compiled regions
    are not, so count the step before ``torch.compile``. None where nothing was
    seen.
    """
    counted = _counted(step, batch)
    if counted.total == 0:
        return None
    model = counted.total
    if counted.regions:
        from torch.utils.checkpoint import set_checkpoint_early_stop

        # Without the early stop a region's recomputation is its forward over again, and can be taken off exactly.
        with set_checkpoint_early_stop(False):
            whole = _counted(step, batch)
        model = whole.total - whole.in_regions
    operators = dict(sorted(counted.by_operator.items(), key=lambda item: -item[1]))
    return FlopCount(model=model, executed=counted.total, by_operator=operators)


class _Counted(msgspec.Struct):
    total: int = 0
    regions: int = 0
    """Checkpointed regions that were entered."""
    in_regions: int = 0
    """FLOPs of their forward passes."""
    by_operator: dict[str, int] = {}


def _counted(step: Callable[[Any], Any], batch: Any) -> _Counted:
    from torch.utils.flop_counter import FlopCounterMode

    found = _Counted()
    mode: Any = FlopCounterMode(display=False)
    with ExitStack() as stack:
        stack.enter_context(_watched_checkpoints(mode, found))
        stack.enter_context(mode)
        step(batch)
    found.total = int(mode.get_total_flops())
    found.by_operator = {str(name): int(n) for name, n in mode.get_flop_counts().get("Global", {}).items()}
    return found


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

    reentrant, plain = module.CheckpointFunction, module._checkpoint_without_reentrant_generator

    def forward(ctx: Any, *args: Any) -> Any:
        with region():
            return reentrant.forward(ctx, *args)

    def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with region():
            yield from plain(*args, **kwargs)

    module.CheckpointFunction = type("Watched", (reentrant,), {"forward": staticmethod(forward)})
    module._checkpoint_without_reentrant_generator = generator
    try:
        yield
    finally:
        module.CheckpointFunction = reentrant
        module._checkpoint_without_reentrant_generator = plain


def transformer_flops_per_token(
    *,
    parameters: float,
    layers: int,
    heads: int,
    head_size: int,
    sequence: int,
    active_parameters: float | None = None,
    causal: bool = False,
    recompute: bool = False,
) -> float:
    """Return the training FLOPs of a transformer per token: 6N + 12·L·H·Q·T (PaLM, appendix B).

    Args:
        parameters: N, embeddings left out by custom.
        layers: L.
        heads: H.
        head_size: Q.
        sequence: T, tokens.
        active_parameters: Parameters that one token passes through, where experts share the work; stands for N.
        causal: Halve the attention term, for kernels that skip the masked half.
        recompute: Full activation recomputation: 8N + 16·L·H·Q·T, which is what the hardware executes.

    >>> f"{transformer_flops_per_token(parameters=8e9, layers=32, heads=32, head_size=128, sequence=8192):.4g}"
    '6.088e+10'
    """
    weights, attention = (8, 16) if recompute else (6, 12)
    size = parameters if active_parameters is None else active_parameters
    return weights * size + attention * layers * heads * head_size * sequence * (0.5 if causal else 1.0)


class Utilization(msgspec.Struct, frozen=True, kw_only=True):
    """What part of the dense peak a step reaches; None where work or peak is not known."""

    mfu: float | None
    """Model FLOPs over the dense peak of the dtype in use [fraction]."""
    hfu: float | None
    """The same with recomputed work [fraction]."""
    flops_per_s: float | None
    """Model FLOPs over time, per device [FLOP/s]."""
    peak_flops_per_s: float | None
    """Dense peak of one device [FLOP/s]."""
    basis: str
    """Whose peak, of which dtype, and the source; or why it is not known."""
    caveats: list[Caveat] = []


def utilization(
    step_s: float,
    *,
    model_flops: float | None,
    executed_flops: float | None = None,
    device: str,
    dtype: str | None,
    devices: int = 1,
) -> Utilization:
    """Return MFU and HFU of a step.

    Args:
        step_s: Mean seconds per step; must be positive.
        model_flops: FLOPs per step without recomputation, over all devices.
        executed_flops: The same with it.
        device: The device's name, as torch or the driver gives it.
        dtype: Type in which the matrix products run.
        devices: Devices that share the work.
    """
    chip = accelerator(device)
    peak = None if chip is None or dtype is None else chip.peak_flops_per_s(dtype)
    rate = None if model_flops is None else model_flops / step_s / devices
    executed = None if executed_flops is None else executed_flops / step_s / devices
    if peak is None:
        return Utilization(
            mfu=None, hfu=None, flops_per_s=rate, peak_flops_per_s=None, basis=_unknown(chip, device, dtype)
        )
    mfu = None if rate is None else rate / peak
    hfu = None if executed is None else executed / peak
    source = chip.sources[0] if chip is not None and chip.sources else ""
    return Utilization(
        mfu=mfu,
        hfu=hfu,
        flops_per_s=rate,
        peak_flops_per_s=peak,
        basis=f"dense {dtype} peak of {chip.id if chip else device}, {peak / 1e12:g} TFLOP/s ({source})",
        caveats=_too_high(max(mfu or 0.0, hfu or 0.0), chip),
    )


def _unknown(chip: Accelerator | None, device: str, dtype: str | None) -> str:
    if chip is None:
        return f"the dense peak of '{device}' is not known"
    if dtype is None:
        return "the type in which the matrix products run is not known"
    return f"no dense {dtype} peak is published for {chip.id}"


def _too_high(share: float, chip: Accelerator | None) -> list[Caveat]:
    """A share of the peak that no matrix product reaches is a fault of the measurement."""
    reachable = (chip.max_achievable_fraction if chip else None) or 1.0
    if share <= reachable:
        return []
    best = f"the best matrix product measured there reaches {reachable:.0%}" if reachable < 1 else "the peak is 100%"
    return [
        Caveat(
            "flops-above-achievable",
            f"{share:.0%} of the peak cannot be: {best}; time, FLOP count or dtype is wrong",
            "count the FLOPs without torch.compile, name the dtype in use, and time with more steps",
        )
    ]
