"""Tests that our loss has the values and gradients of TRL's loss, for every form and option."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from configs.policy_gradient import GRPO
from tasks.training.off_policy import LossTokens
from tasks.training.policy_loss import kept_tokens, policy_loss, sequence_old

ROWS, LENGTH, LONGEST, RANKS = 5, 9, 20, 2
TOKENS, TRAJECTORIES = 60, 12  # in the whole mini-batch, on all ranks
NAMES = {"tokens": "dapo", "trajectory": "grpo", "constant": "dr_grpo"}

CASES: dict[str, dict[str, Any]] = {
    "mean over tokens": {"loss_aggregation": "tokens"},
    "mean over trajectories": {"loss_aggregation": "trajectory"},
    "constant length": {"loss_aggregation": "constant"},
    "other clips": {"clip_low": 0.1, "clip_high": 0.3},
    "dual clip": {"dual_clip": 1.3},
    "kl": {"kl_coefficient": 0.3},
    "kl over trajectories": {"kl_coefficient": 0.3, "loss_aggregation": "trajectory"},
    "off-policy mask": {"off_policy_mask": 0.05, "kl_coefficient": 0.1},
    "cispo": {"loss": "cispo", "clip_high": 0.1},
    "sapo": {"loss": "sapo", "loss_aggregation": "trajectory"},
    "vespo": {"loss": "vespo", "importance_correction": "behaviour"},
    "luspo": {"loss": "luspo", "ratio": "sequence", "loss_aggregation": "trajectory"},
    "gspo": {"ratio": "sequence", "loss_aggregation": "trajectory", "clip_high": 0.01},
}


def batch() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    shape = (ROWS, LENGTH)
    logps = -torch.rand(shape, generator=random, dtype=torch.float64) - 0.1
    noise = torch.randn((3, *shape), generator=random, dtype=torch.float64) * 0.3
    mask = (torch.rand(shape, generator=random) < 0.7).long()
    mask[0] = 0  # like the row of an empty micro-batch
    return {
        "logps": logps,
        "old": logps + noise[0],
        "sampled": logps + noise[1],
        "reference": logps + noise[2],
        "advantages": torch.randn(shape, generator=random, dtype=torch.float64),
        "mask": mask,
    }


def our_loss(algorithm: GRPO, found: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    logps, mask, old = found["logps"].clone().requires_grad_(), found["mask"], found["old"]
    if algorithm.ratio == "sequence":
        old = sequence_old(logps, old, mask)
    kept = mask
    if algorithm.off_policy_mask is not None:
        kept = kept_tokens(
            found["advantages"], logps, found["sampled"], mask, algorithm.off_policy_mask
        )
    tokens = LossTokens(
        logps,
        found["sampled"],
        old,
        found["advantages"],
        torch.zeros_like(logps),
        mask,
        kept,
        found["reference"] if algorithm.kl_coefficient else None,
    )
    of = TOKENS if algorithm.loss_aggregation == "tokens" else TRAJECTORIES
    loss = policy_loss(tokens, algorithm, torch.tensor(of / RANKS, dtype=torch.float64), LONGEST)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logps.grad is not None
    return float(loss.detach()), logps.grad


def trl_loss(algorithm: GRPO, found: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    from trl import GRPOConfig, GRPOTrainer

    logps = found["logps"].clone().requires_grad_()
    defaults = {
        name: GRPOConfig.__dataclass_fields__[name].default
        for name in (
            "sapo_temperature_pos",
            "sapo_temperature_neg",
            "vespo_k_pos",
            "vespo_lambda_pos",
            "vespo_k_neg",
            "vespo_lambda_neg",
            "use_bias_correction_kl",
        )
    }
    clipped = algorithm.loss == "clipped"
    trainer = SimpleNamespace(
        args=SimpleNamespace(delta=algorithm.dual_clip, steps_per_generation=1, **defaults),
        accelerator=SimpleNamespace(
            num_processes=RANKS, reduce=lambda x, **_: x, gather=lambda x: x
        ),
        model=SimpleNamespace(training=True),
        loss_type=NAMES[algorithm.loss_aggregation] if clipped else algorithm.loss,
        importance_sampling_level="token" if algorithm.ratio == "token" else "sequence",
        epsilon_low=algorithm.clip_low,
        epsilon_high=algorithm.clip_high + (algorithm.loss == "cispo"),
        off_policy_mask_threshold=algorithm.off_policy_mask,
        beta=algorithm.kl_coefficient,
        max_completion_length=LONGEST,
        top_entropy_quantile=1.0,
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logps, torch.zeros_like(logps), None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )
    advantages = found["advantages"]
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1),
        "prompt_mask": torch.ones(ROWS, 1),
        "completion_ids": torch.zeros(ROWS, LENGTH),
        "completion_mask": torch.ones(ROWS, LENGTH),
        "tool_mask": found["mask"],
        "advantages": advantages,
        "old_per_token_logps": found["old"],
        "sampling_per_token_logps": found["sampled"],
        "ref_per_token_logps": found["reference"],
        "num_items_in_batch": torch.tensor(float(TOKENS)),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    if algorithm.loss_aggregation != "tokens":  # TRL takes the mean over the micro-batch's rows
        loss = loss * ROWS * RANKS / TRAJECTORIES
    loss.backward()
    assert logps.grad is not None
    return float(loss.detach()), logps.grad


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_equal_those_of_trl(case: str) -> None:
    algorithm, found = GRPO(name="grpo", steps=1, **CASES[case]), batch()
    if algorithm.ratio == "sequence":
        # TRL's sequence ratio needs one advantage per trajectory.
        found["advantages"] = found["advantages"][:, :1].expand(-1, LENGTH)
    (loss, gradient), (expected, right) = our_loss(algorithm, found), trl_loss(algorithm, found)
    assert float(right.norm()) > 1e-3
    assert loss == pytest.approx(expected, rel=1e-9)
    assert float((gradient - right).norm() / right.norm()) < 1e-9


@pytest.mark.parametrize("by", NAMES)
def test_entropy_is_averaged_like_the_loss(by: str) -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    entropies = torch.tensor([[1.0, 2.0, 9.0], [6.0, 9.0, 9.0]])
    zeros = torch.zeros_like(entropies)
    tokens = LossTokens(zeros, zeros, zeros, zeros, entropies, mask, mask)
    algorithm = GRPO(name="grpo", steps=1, entropy_coefficient=0.5, loss_aggregation=by)
    loss = policy_loss(tokens, algorithm, torch.tensor(3.0 if by == "tokens" else 2.0), longest=4)
    means = {"tokens": 9 / 3, "trajectory": (1.5 + 6) / 2, "constant": (3 / 4 + 6 / 4) / 2}
    assert float(loss) == pytest.approx(-0.5 * means[by])
