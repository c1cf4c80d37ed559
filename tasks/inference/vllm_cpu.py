"""vLLM on a CPU: batch-invariant linear layers on plain weights.

oneDNN packs weights when they are loaded. A later load into a model with tied embeddings leaves the
packed copy of the output layer stale. Plain matrix products have no such copy.

A plain product changes its order of summation when it has fewer than `INVARIANT_ROWS` rows. Padding
to that number makes samples independent of the other episodes in flight. A run can then be repeated
bit for bit although its episodes run asynchronously.
"""

from __future__ import annotations

import torch
from torch.nn import functional

INVARIANT_ROWS = 16
"""Number of rows from which a float32 product gives every row the same bits.

The value was found by experiment, and `rows_are_invariant` checks it. The minimum is 4 while torch
keeps its initial number of threads, and 12 after a call of `torch.set_num_threads`.
"""

BLOCK_TOKENS = 32
"""Tokens in a block of the prefix cache.

With vLLM's default on a CPU, 128, most of a short dialogue would be recomputed in each turn.
"""


def invariant_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x @ weight.T + bias so that each row's bits do not depend on the other rows.

    Args:
        x: Input, shape (rows, in).
        weight: Weight, shape (out, in).
        bias: Bias, shape (out,), or None.
    """
    rows = x.shape[0]
    if x.dim() == 2 and rows < INVARIANT_ROWS:
        return functional.linear(functional.pad(x, (0, 0, 0, INVARIANT_ROWS - rows)), weight, bias)[:rows]
    return functional.linear(x, weight, bias)


def rows_are_invariant() -> bool:
    """Return whether `invariant_linear` is invariant on this processor with one thread.

    Some shapes are tested.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return all(_is_invariant(inner, outer) for inner, outer in ((64, 64), (128, 384), (384, 128), (128, 1024)))
    finally:
        torch.set_num_threads(threads)


def _is_invariant(inner: int, outer: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(129, inner, generator=generator)
    weight = torch.randn(outer, inner, generator=generator)
    product = invariant_linear(x, weight)
    return all(torch.equal(invariant_linear(x[:rows], weight), product[:rows]) for rows in (1, 2, 3, 4, 5, 7, 16, 17, 33, 64, 100))


def make_rows_invariant() -> None:
    """Patch vLLM so that models loaded later use `invariant_linear` on plain weights."""
    import torch._dynamo
    import vllm._custom_ops as custom_ops
    from vllm.model_executor.layers import utils as layer_utils

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = invariant_linear  # type: ignore[assignment]

    custom_ops._supports_onednn = False
    # vLLM compiles its sampler at the first request even in eager mode. That takes 16 s and a C++
    # compiler, which may be missing.
    torch._dynamo.config.disable = True
    layer_utils.dispatch_cpu_unquantized_gemm = dispatch
