"""FLOPs of declared models by published formulas."""

from __future__ import annotations


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
