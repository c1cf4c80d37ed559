"""Tests of the gradient of fused layers and flash-attention on a GPU."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from configs.experiment import Policy
from tasks.inference.fused_layers import fuse_layers
from tasks.training.packing import SHARED, packed_scores, score_places, share_prefixes

pytestmark = pytest.mark.gpu
VOCABULARY = 5000
LAYERS = Qwen2Config(
    vocab_size=VOCABULARY,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Return padded rows and their mask: four with a common prefix of 300 tokens, one without."""
    prompt = torch.randint(VOCABULARY, (300,))
    made = [torch.cat([prompt, torch.randint(VOCABULARY, (n,))]) for n in (500, 200, 333, 90)]
    made.append(torch.randint(VOCABULARY, (700,)))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(made, True).cuda(), pad([torch.ones_like(row) for row in made], True).cuda()


def gradient(compute: torch.dtype, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    model = fuse_layers(Qwen2ForCausalLM(LAYERS).train().cuda(), compute)
    add_fused_lm_head(model)
    score_places(share_prefixes(model, Policy(attn_implementation=SHARED)))
    scored = mask.bool().clone()
    scored[:, :310] = False
    with torch.autocast("cuda", torch.bfloat16, enabled=compute == torch.bfloat16):
        scores, _ = packed_scores(model, ids, mask, scored)
    (scores.sum() / scored.sum()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gradient_equals_that_of_float32_within_the_rounding_of_bfloat16() -> None:
    torch.manual_seed(1)
    ids, mask = rows()
    exact, fused = (gradient(dtype, ids, mask) for dtype in (torch.float32, torch.bfloat16))
    # The measured difference is 0.012. Plain layers give 0.010.
    assert (fused - exact).norm() < 0.03 * exact.norm()
