"""Tests of packed trajectories, whose scores, values and gradients equal those of padded ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import pad
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    GptOssConfig,
    MistralConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)
from trl.trainer.utils import add_fused_lm_head

from configs.experiment import Policy
from tasks.rollout.trajectory import Trajectory
from tasks.training import packing
from tasks.training.context_parallel import context_parallel, rank_of_group
from tasks.training.critic import ValueModel
from tasks.training.packing import (
    SHARED,
    UNSUPPORTED,
    pack,
    packed_scores,
    packed_values,
    packs,
    score_places,
    share_prefixes,
    shared_prefix_attention,
)
from tasks.training.row_tensors import pad_trajectories
from tests.support.recorded import recorded_trajectories
from tests.support.tiny_policy import SMALL

OURS = Policy(attn_implementation=SHARED)
IDS = torch.tensor([[0, 5, 6, 7, 8], [5, 6, 7, 9, 0], [5, 6, 0, 0, 0], [3, 0, 0, 0, 0]])
MASK = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])


def test_packing_without_sharing_keeps_every_token() -> None:
    packed = pack(IDS, MASK, share=False)
    assert packed.ids.tolist() == [[5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 3]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0]]
    assert packed.places[0].tolist() == [0, 0, 1, 2, 3]
    assert packed.places[1].tolist() == [4, 5, 6, 7, 0]
    assert all(part.context is None for part in packed.segments.parts)


def test_rows_that_share_a_prefix_hold_it_once() -> None:
    # The sorted rows are [3], [5, 6], [5, 6, 7, 8] and [5, 6, 7, 9].
    # Each row has its own copy of the last common token.
    packed = pack(IDS, MASK, share=True)
    assert packed.ids.tolist() == [[3, 5, 6, 6, 7, 8, 7, 9]]
    assert packed.positions.tolist() == [[0, 0, 1, 1, 2, 3, 2, 3]]
    assert packed.places[0].tolist() == [0, 1, 3, 4, 5]
    assert packed.places[1].tolist() == [1, 3, 6, 7, 0]
    assert [(part.begin, part.end) for part in packed.segments.parts] == [
        (0, 1),
        (1, 3),
        (3, 6),
        (6, 8),
    ]


def test_tokens_that_several_rows_score_are_repeated_with_their_predecessor() -> None:
    scored = torch.tensor([[0, 0, 0, 1, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    packed = pack(IDS, MASK, share=True, repeated=scored.bool())
    assert packed.ids.tolist() == [[3, 5, 6, 6, 7, 8, 6, 7, 9]]  # the last row shares only the 5
    row, column = scored.nonzero(as_tuple=True)
    assert len(set(packed.places[row, column - 1].tolist())) == 3
    assert [packed.ids[0, i].item() for i in packed.places[row, column]] == [7, 7, 9]


def branching(policy: str) -> list[Trajectory]:
    """Return recorded trajectories, some of which begin with the first turn of another."""
    made = recorded_trajectories(policy, 0)
    for t in made[1::4]:
        t.turns[:1] = made[t.group * 4].turns[:1]
    return made


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_equal(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    """Check that the relative error is below 1e-6 in total and below 1e-5 for each weight."""
    errors = {name: (found[name] - right[name]).norm() for name in right}
    norms = {name: right[name].norm() for name in right}
    assert torch.stack([*errors.values()]).norm() < 1e-6 * torch.stack([*norms.values()]).norm()
    assert all(errors[name] < 1e-5 * norms[name] for name in right)


@pytest.mark.parametrize("recomputes", [False, True])
def test_shared_prefixes_match_padding_in_log_probabilities_entropies_and_gradients(
    recomputes: bool, policy: str
) -> None:
    padded, ours = (
        AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64) for _ in range(2)
    )
    for model in (padded, ours):
        add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))
    score_places(share_prefixes(ours, OURS))
    if recomputes:
        ours.train().gradient_checkpointing_enable()
    tensors = pad_trajectories(branching(policy), pad_token=0)
    ids, mask = tensors["input_ids"], tensors["attention_mask"]
    own = pad(tensors["tool_mask"], (ids.size(1) - tensors["tool_mask"].size(1), 0)).bool()
    weights = torch.randn(ids.shape, dtype=torch.float64)
    contexts = [(p.end - p.begin, p.context) for p in pack(ids, mask, share=True).segments.parts]
    # Both forms of the attention below: the prefix is shorter than the row's own tokens, or not.
    assert {len(c) < 2 * own for own, c in contexts if c is not None} == {True, False}
    seen: list[int] = []
    ours.model.layers[0].register_forward_pre_hook(lambda _, x: seen.append(x[0].size(1)))

    labels = ids.masked_fill(mask == 0, -100)
    plain = padded(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    logps, entropies = packed_scores(ours, ids, mask, own)
    assert entropies is not None
    assert seen[0] < int(mask.sum())
    for found, right in ((logps, plain.log_probs), (entropies, plain.entropy)):
        assert torch.allclose(found[:, 1:], right * own[:, 1:], atol=1e-5)
        assert not found[~own].any()
    right = gradients(padded, ((plain.log_probs - plain.entropy) * (weights * own)[:, 1:]).sum())
    assert_equal(gradients(ours, ((logps - entropies) * weights).sum()), right)


def test_gradient_is_zero_without_tokens_to_score(policy: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    add_fused_lm_head(model)
    score_places(share_prefixes(model, OURS))
    logps, _ = packed_scores(model, IDS, MASK, torch.zeros_like(MASK).bool())
    assert not any(g.any() for g in gradients(model, logps.sum()).values())


@pytest.mark.parametrize("shared", [True, False])
def test_packing_matches_padding_in_values_and_gradients(
    shared: bool, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = ValueModel(AutoModel.from_pretrained(policy, dtype=torch.float64)).double()
    torch.nn.init.normal_(model.head.weight)
    tensors = pad_trajectories(branching(policy), pad_token=0)
    ids, mask = tensors["input_ids"], tensors["attention_mask"]
    padded = model(input_ids=ids, attention_mask=mask)
    right = gradients(model, ((padded * mask) ** 2).sum())
    if shared:
        share_prefixes(model.backbone, OURS)
    else:  # only positions separate the rows, as for flash-attention
        monkeypatch.setattr(packing, "FLASH", ("sdpa",))
    packed = packed_values(model, ids, mask)
    assert torch.allclose(packed, padded * mask, atol=1e-5)
    assert_equal(gradients(model, (packed**2).sum()), right)


def test_attention_refuses_padded_rows(policy: str) -> None:
    model = share_prefixes(AutoModelForCausalLM.from_pretrained(policy), OURS)
    with pytest.raises(ValueError, match=SHARED):
        model(input_ids=IDS, attention_mask=MASK)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_attention_refuses_unsupported_options(name: str) -> None:
    states = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=name):
        shared_prefix_attention(None, states, states, states, None, **{name: 1})


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL, sliding_window=4),
        GptOssConfig(**SMALL, head_dim=4, num_local_experts=2, num_experts_per_tok=1),
        MixtralConfig(
            **SMALL, num_local_experts=2, output_router_logits=True, router_aux_loss_coef=0.0
        ),
        Qwen3MoeConfig(
            **SMALL,
            head_dim=4,
            moe_intermediate_size=8,
            num_experts=2,
            num_experts_per_tok=1,
            router_aux_loss_coef=0.001,
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_model_with_unsupported_attention_is_not_packed(config: Any) -> None:
    model = AutoModelForCausalLM.from_config(config)
    assert not packs(share_prefixes(model, Policy(dtype="bfloat16")))
    with pytest.raises(ValueError, match="attn_implementation"):
        share_prefixes(model, OURS)


def test_a_float32_policy_keeps_the_attention_of_transformers(policy: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy)
    assert not packs(share_prefixes(model, Policy(dtype="float32")))
    assert packs(share_prefixes(model, Policy(dtype="bfloat16")))


def test_context_parallelism_requires_packed_rows_and_divisible_heads(policy: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy)
    assert context_parallel(1, model) is None
    with pytest.raises(ValueError, match="context_parallel"):
        context_parallel(2, model)
    with pytest.raises(ValueError, match="heads"):
        context_parallel(3, share_prefixes(model, OURS))


def test_groups_are_distributed_evenly_over_ranks() -> None:
    assert [rank_of_group(group, 4, 1) for group in range(5)] == [0, 1, 2, 3, 0]
    assert [rank_of_group(group, 8, 4) for group in range(5)] == [0, 4, 1, 5, 2]
