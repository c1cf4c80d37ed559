"""Tests of vLLM on a CPU in bfloat16: the packed product and the fast sampler."""

from __future__ import annotations

import torch

from tasks.inference.vllm_cpu import packed_product, sampled


def test_packed_product_equals_that_of_float32_to_the_precision_of_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 64, generator=generator).bfloat16()
    bias = torch.randn(48, generator=generator).bfloat16()
    packed = packed_product(weight)
    for rows in (1, 16, 33):
        x = torch.randn(rows, 64, generator=generator).bfloat16()
        product = packed(x, weight, bias)
        exact = x.float() @ weight.float().T + bias.float()
        assert product.dtype == torch.bfloat16
        assert torch.allclose(product.float(), exact, rtol=2**-7, atol=2**-6)
    assert packed is not torch.nn.functional.linear  # the plain product is several times slower


def test_fast_sampler_follows_the_distribution_and_ignores_other_rows() -> None:
    tokens = torch.tensor([0, 255, 256, 600, 699])  # in blocks of 256 tokens. The last has 188
    logits = torch.full((700,), float("-inf"))
    logits[tokens] = torch.tensor([2.0, 0.0, 0.5, 1.0, -1.0])
    rows = 20_000
    seeded = {row: torch.Generator().manual_seed(row) for row in range(rows)}
    expected = torch.softmax(logits, dim=0)
    drawn = sampled(expected.repeat(rows, 1), seeded)
    shares = torch.bincount(drawn, minlength=700) / rows
    assert set(drawn.unique().tolist()) <= set(tokens.tolist())
    assert ((shares - expected).abs() <= 4 * (expected * (1 - expected) / rows).sqrt()).all()
    alone = torch.cat(
        [
            sampled(expected.unsqueeze(0), {0: torch.Generator().manual_seed(row)})
            for row in range(50)
        ]
    )
    assert torch.equal(alone, drawn[:50])
