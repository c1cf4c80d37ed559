"""vLLM on a CPU: linear layers that follow later loads of weights.

vLLM packs the weights of a linear layer once, when the model is loaded. The packed copy would not
follow a later load. The layers here are chosen by the dtype of the weights:

- float32: plain matrix products that are batch-invariant. A plain product changes its order of
  summation when it has fewer than `INVARIANT_ROWS` rows. Padding to that number makes samples
  independent of the other episodes in flight. A run can then be repeated bit for bit although its
  episodes run asynchronously.
- bfloat16, float16: products with packed weights, several times faster for a language model. Each
  layer packs its weights again after they have changed. On a processor without products in these
  dtypes the packed weights are float32. Equal seeds give equal distributions, not equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

INVARIANT_ROWS = 16
"""Number of rows from which a float32 product gives every row the same bits.

The value was found by experiment, and a test checks it. The minimum is 4 while torch
keeps its initial number of threads, and 12 after a call of `torch.set_num_threads`.
"""

BLOCK_TOKENS = 32
"""Tokens in a block of the prefix cache.

With vLLM's default on a CPU, 128, most of a short dialogue would be recomputed in each turn.
"""

LARGE_VOCABULARY = 8192
"""Number of tokens from which the sampler draws one random number per token, not one per logit.

vLLM's sampler draws an exponential variate for each logit, which takes a third of the decoding time
of a small language model.
"""

SAMPLING_BLOCK = 256
"""Tokens in a block of the sampler, about the square root of a large vocabulary."""

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Computes x @ weight.T + bias from x, weight and bias."""


def invariant_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute x @ weight.T + bias so that each row's bits do not depend on the other rows.

    Args:
        x: Input, shape (rows, in).
        weight: Weight, shape (out, in).
        bias: Bias, shape (out,), or None.
    """
    rows = x.shape[0]
    if x.dim() == 2 and rows < INVARIANT_ROWS:
        return functional.linear(functional.pad(x, (0, 0, 0, INVARIANT_ROWS - rows)), weight, bias)[
            :rows
        ]
    return functional.linear(x, weight, bias)


class PackedLinear:
    """Computes x @ weight.T + bias with a packed copy of the weight.

    The copy is renewed at the first call after `note_load`.

    Attributes:
        loads: Number of loads of weights in this process.
    """

    loads = 0

    def __init__(self) -> None:
        self._packed: Linear = functional.linear
        self._packed_at = -1

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the product.

        Args:
            x: Input, shape (..., in).
            weight: Weight, shape (out, in).
            bias: Bias, shape (out,), or None.
        """
        if self._packed_at != PackedLinear.loads:
            self._packed, self._packed_at = packed_product(weight), PackedLinear.loads
        return self._packed(x, weight, bias)


def note_load() -> None:
    """Renew all packed weights of this process before their next use."""
    PackedLinear.loads += 1


def packed_product(weight: torch.Tensor) -> Linear:
    """Pack a weight with oneDNN.

    Without AVX-512, oneDNN has no products in bfloat16 or float16, and torch's own are several times
    slower than float32. Then the packed copy is float32. Without oneDNN, the plain product is
    returned.
    """
    import vllm._custom_ops as custom_ops

    for dtype in dict.fromkeys((weight.dtype, torch.float32)):
        try:
            handler = custom_ops.create_onednn_mm(weight.t().to(dtype), 32)
        except (AttributeError, RuntimeError):
            continue
        return partial(_packed_product, handler, dtype)
    return functional.linear


def _packed_product(
    handler: Any, dtype: torch.dtype, x: torch.Tensor, _: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Compute x @ weight.T + bias in the dtype of the packed weight. The result has x's dtype."""
    import vllm._custom_ops as custom_ops

    bias = None if bias is None else bias.to(dtype)
    product: torch.Tensor = custom_ops.onednn_mm(handler, x.to(dtype), bias)
    return product.to(x.dtype)


def sampled(probabilities: torch.Tensor, generators: Mapping[int, torch.Generator]) -> torch.Tensor:
    """Sample one token per row by inverting the cumulative distribution.

    A row's result is independent of the other rows. A cumulative sum over a large vocabulary is
    slow, so a block of tokens is drawn first, and then a token of this block.

    Args:
        probabilities: Shape (rows, vocabulary).
        generators: Generators of the rows that have their own seed.

    Returns:
        Token ids, shape (rows,).
    """
    rows, vocabulary = probabilities.shape
    blocks = functional.pad(probabilities, (0, -vocabulary % SAMPLING_BLOCK))
    blocks = blocks.view(rows, -1, SAMPLING_BLOCK)
    draws = torch.rand(rows, 1, dtype=torch.float64)
    for row, generator in generators.items():
        draws[row] = torch.rand(1, dtype=torch.float64, generator=generator)
    of_blocks = blocks.sum(dim=-1).double().cumsum(dim=-1)
    draws *= of_blocks[:, -1:]
    block = _first_above(of_blocks, draws)
    before = functional.pad(of_blocks, (1, 0)).gather(1, block)
    of_tokens = blocks[torch.arange(rows), block.view(-1)].double().cumsum(dim=-1)
    return (block * SAMPLING_BLOCK + _first_above(of_tokens, draws - before)).view(-1)


def _first_above(cumulative: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the first place of each row whose cumulative sum is above a value.

    A value that rounding moved to the last sum or above counts as one just below. So the place is
    one where the sum rises.

    Args:
        cumulative: Shape (rows, columns).
        values: Shape (rows, 1).
    """
    last = cumulative[:, -1:]
    below = torch.minimum(values, torch.nextafter(last, torch.zeros_like(last)))
    return torch.searchsorted(cumulative, below, right=True)


def add_adapter(
    self: Any,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    **_: Any,
) -> None:
    """Add the product of each token's adapter to the output of a layer.

    vLLM's own method copies the adapter once per token. The arguments are those of
    `PunicaWrapperCPU.add_lora_linear`.
    """
    tokens = x.view(-1, x.shape[-1])
    outputs = torch.split(y.view(-1, y.shape[-1]), list(output_slices), dim=1)
    for slot in self.token_lora_indices.unique().tolist():
        if slot < 0:  # tokens without an adapter
            continue
        rows = self.token_lora_indices == slot
        for output, a, b in zip(outputs, lora_a_stacked, lora_b_stacked, strict=True):
            output[rows] += scale * invariant_linear(
                invariant_linear(tokens[rows], a[slot, 0]), b[slot, 0]
            )


def prepare_vllm() -> None:
    """Patch vLLM for engines on a CPU that are started later.

    Their linear layers and experts follow each load of weights, and their samplers are fast for a
    large vocabulary. A LoRA adapter is computed as the trainer does, once per layer and only in the
    linear layers.
    """
    import torch._dynamo
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
    from vllm.model_executor.layers import utils as layer_utils
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
    )
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        note_load()  # vLLM calls this when it reloads layers, and others may be tied to them
        invariant = layer.weight.dtype == torch.float32 or layer.weight.ndim != 2
        layer.cpu_linear = invariant_linear if invariant else PackedLinear()  # type: ignore[assignment]

    def set_up(self: Any, *tensors: Any, **named: Any) -> None:
        self.moe_kernel = None  # otherwise vLLM does not pack the experts of a later load
        first_set_up(self, *tensors, **named)

    # vLLM compiles its sampler at the first request even in eager mode. That takes 16 s and a C++
    # compiler, which may be missing.
    torch._dynamo.config.disable = True
    layer_utils.dispatch_cpu_unquantized_gemm = dispatch
    PunicaWrapperCPU.add_lora_linear = add_adapter
    # Adapters leave these layers unchanged.
    for method in ("add_lora_embedding", "add_lora_logits"):
        setattr(PunicaWrapperCPU, method, lambda *_, **__: None)
    if TopKTopPSampler.forward_cpu.__module__ == __name__:
        return
    first_set_up: Any = UnquantizedFusedMoEMethod._setup_kernel
    UnquantizedFusedMoEMethod._setup_kernel = set_up
    by_exponentials: Any = TopKTopPSampler.forward_cpu

    def sample(
        self: TopKTopPSampler,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if logits.shape[-1] < LARGE_VOCABULARY or self.logprobs_mode != "processed_logprobs":
            found: tuple[torch.Tensor, torch.Tensor | None] = by_exponentials(
                self, logits, generators, k, p
            )
            return found
        log_probabilities = apply_top_k_top_p(logits, k, p).log_softmax(dim=-1)  # float32
        return sampled(log_probabilities.exp(), generators), log_probabilities

    TopKTopPSampler.forward_cpu = sample
