"""Packed trajectories: the same log-probabilities, entropies and gradients as padded ones, whatever computes the attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from tasks.training.critic import ValueModel
from tasks.training.micro_batches import pad_trajectories, whole_rows
from tasks.training.packing import pack, packed_scores, packed_values, unpack
from tests.support.recorded import recorded_trajectories


def test_packing_round_trip_without_padding() -> None:
    ids = torch.tensor([[0, 5, 6, 7, 8], [3, 4, 9, 0, 0]])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    packed = pack(ids, mask, torch.tensor([[-100, -100, 6, 7, 8], [-100, -100, 9, 0, 0]]))
    assert packed.ids.tolist() == [[5, 6, 7, 8, 3, 4, 9]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    assert packed.labels.tolist() == [[-100, 6, 7, 8, -100, -100, 9]]
    back = unpack(
        torch.tensor([[0.6, 0.7, 0.8, 0.3, 0.4, 0.9]]), packed.places[1:], torch.Size([2, 5])
    )
    assert torch.equal(back, torch.tensor([[0, 0, 0.6, 0.7, 0.8], [0.3, 0.4, 0.9, 0, 0]]))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packing_matches_padding_in_log_probabilities_entropies_and_gradients(
    attention: str, policy: str
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(
        policy, dtype=torch.float32, attn_implementation=attention
    )
    add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))
    tensors = pad_trajectories(recorded_trajectories(policy, 0), pad_token=0)
    ids, mask = whole_rows(tensors, torch.device("cpu"))
    length, own = tensors["completion_ids"].size(1), tensors["tool_mask"]
    seen: list[torch.Size] = []
    model.model.layers[0].register_forward_pre_hook(lambda _, hidden: seen.append(hidden[0].shape))

    def gradients(logps: torch.Tensor, entropies: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        ((logps - 0.1 * entropies) * own).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    labels = ids.masked_fill(mask == 0, -100)
    padded = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    logps, entropies = packed_scores(model, ids, mask, length)
    assert entropies is not None
    assert [tuple(shape[:2]) for shape in seen] == [tuple(ids.shape), (1, int(mask.sum()))]
    for ours, theirs in ((logps, padded.log_probs), (entropies, padded.entropy)):
        assert torch.allclose(ours * own, theirs[:, -length:] * own, atol=1e-5)
    right = gradients(padded.log_probs[:, -length:], padded.entropy[:, -length:])
    for name, gradient in gradients(logps, entropies).items():
        assert (gradient - right[name]).norm() < 1e-3 * right[name].norm(), name


def test_packing_matches_padding_in_values_and_gradients(policy: str) -> None:
    torch.manual_seed(0)
    model = ValueModel(AutoModel.from_pretrained(policy, dtype=torch.float64)).double()
    torch.nn.init.normal_(model.head.weight)
    tensors = pad_trajectories(recorded_trajectories(policy, 0), pad_token=0)
    ids, mask = whole_rows(tensors, torch.device("cpu"))
    seen: list[torch.Size] = []
    model.backbone.layers[0].register_forward_pre_hook(
        lambda _, hidden: seen.append(hidden[0].shape)
    )

    def gradients(values: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        ((values * mask) ** 2).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    padded, packed = model(ids, mask), packed_values(model, ids, mask)
    assert [tuple(shape[:2]) for shape in seen] == [tuple(ids.shape), (1, int(mask.sum()))]
    assert torch.allclose(packed, padded * mask, atol=1e-5)
    right = gradients(padded)
    for name, gradient in gradients(packed).items():
        assert (gradient - right[name]).norm() < 1e-5 * right[name].norm(), name
