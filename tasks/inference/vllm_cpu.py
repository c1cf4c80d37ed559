"""vLLM on a CPU: batch-invariant linear layers on plain weights.

oneDNN packs weights when they are loaded, and a later load into a model with tied embeddings leaves the packed copy of the
output layer stale; plain matrix products have no such copy. A plain product changes its order of summation when it has fewer than
`INVARIANT_ROWS` rows; padding to that many makes what is sampled independent of which other episodes happen to be in flight, so
that a run can be repeated bit for bit although its episodes go at their own pace.
"""

from __future__ import annotations

import torch
from torch.nn import functional

INVARIANT_ROWS = 16
"""Number of rows from which a float32 product gives every row the same bits. Found by trying; `rows_are_invariant` checks it.
It is 4 as long as torch keeps the number of threads that it began with, and 12 once `torch.set_num_threads` was called."""

BLOCK_TOKENS = 32
"""Tokens in a block of the prefix cache. vLLM's default on a CPU, 128, would compute most of a short dialogue again each turn."""


def invariant_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """X @ weight.T + bias for x of shape (rows, in): each row's bits do not depend on the other rows."""
    rows = x.shape[0]
    if x.dim() == 2 and rows < INVARIANT_ROWS:
        return functional.linear(functional.pad(x, (0, 0, 0, INVARIANT_ROWS - rows)), weight, bias)[:rows]
    return functional.linear(x, weight, bias)


def rows_are_invariant() -> bool:
    """Whether `invariant_linear` keeps its promise on this processor with one thread, tried on some shapes."""
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
    whole = invariant_linear(x, weight)
    return all(torch.equal(invariant_linear(x[:rows], weight), whole[:rows]) for rows in (1, 2, 3, 4, 5, 7, 16, 17, 33, 64, 100))


def make_rows_invariant() -> None:
    """Makes the linear layers of every vLLM model loaded afterwards use `invariant_linear` on plain weights."""
    import torch._dynamo
    import vllm._custom_ops as custom_ops
    from vllm.model_executor.layers import utils as layer_utils

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = invariant_linear  # type: ignore[assignment]

    custom_ops._supports_onednn = False
    # vLLM compiles its sampler at the first request even when it runs eagerly: 16 s, and a C++ compiler that may not be there.
    torch._dynamo.config.disable = True
    layer_utils.dispatch_cpu_unquantized_gemm = dispatch
