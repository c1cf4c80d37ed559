"""Tests of the off-policy metrics of a batch, each against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from configs.policy_gradient import GRPO
from tasks.training.off_policy import LossTokens, OffPolicyMeter
from tasks.training.policy_loss import clipped_tokens


def single_rank(values: torch.Tensor) -> torch.Tensor:
    return values


PPO_CLIPS = GRPO(name="grpo", steps=1, clip_low=0.2, clip_high=0.2)


def added(meter: OffPolicyMeter, tokens: LossTokens) -> None:
    """Add a micro-batch before the first update."""
    meter.add(tokens, clipped_tokens(tokens, PPO_CLIPS), first_update=True)


def loss_tokens(
    logps: list[float],
    sampled: list[float],
    old: list[float],
    advantages: list[float],
    mask: list[int],
) -> LossTokens:
    rows = [torch.tensor([row]) for row in (logps, sampled, old, advantages)]
    return LossTokens(
        *rows,
        entropies=torch.tensor([[2.0, 1.0, 9.0]]),
        mask=torch.tensor([mask]),
        kept=torch.ones(1, 3),
    )


def test_gap_weights_and_effective_sample_size_cover_policy_tokens() -> None:
    meter = OffPolicyMeter("truncated", cap=2.0)
    added(
        meter,
        loss_tokens(
            [math.log(3.0), 0.0, 7.0],
            [0.0, 0.0, -7.0],
            [math.log(3.0), 0.0, 0.0],
            [1.0, 1.0, 1.0],
            [1, 1, 0],
        ),
    )
    found = meter.take(single_rank, single_rank)
    assert found["update/logp_gap_mean"] == pytest.approx(math.log(3.0) / 2)
    assert found["update/logp_gap_largest"] == pytest.approx(math.log(3.0))
    assert found["update/capped_weights"] == 0.5  # 3 exceeds the cap, 1 does not
    assert found["update/effective_sample_size"] == pytest.approx((3 + 1) ** 2 / (2 * (9 + 1)))
    assert found["update/entropy"] == 1.5
    assert found["update/clip_fraction_low"] == found["update/clip_fraction_high"] == 0


def test_sequence_weights_count_whole_trajectories() -> None:
    meter = OffPolicyMeter("sequence_masked", cap=2.0)
    gaps = [math.log(1.5), math.log(1.5), 7.0]
    added(meter, loss_tokens(gaps, [0.0] * 3, gaps, [1.0] * 3, [1, 1, 0]))
    found = meter.take(single_rank, single_rank)
    assert found["update/capped_weights"] == 1.0  # 1.5 * 1.5 exceeds the cap, 1.5 does not
    assert found["update/logp_gap_mean"] == pytest.approx(math.log(1.5))


def test_kl_and_clip_fraction_do_not_depend_on_micro_batches() -> None:
    """Use micro-batches of 1 and 2 tokens, so that an unweighted mean would give another result."""
    old = torch.log(torch.tensor([[0.5, 1.5, 1.0]]))
    tokens = LossTokens(
        logps=torch.zeros(1, 3),
        sampled=torch.zeros(1, 3),
        old=-old,
        advantages=torch.tensor([[-1.0, 1.0, 1.0]]),
        entropies=torch.ones(1, 3),
        mask=torch.ones(1, 3),
        kept=torch.ones(1, 3),
        reference=torch.tensor([[0.3, -0.2, 0.1]]),
    )
    found = []
    for cuts in ([slice(0, 3)], [slice(0, 1), slice(1, 3)]):
        meter = OffPolicyMeter("truncated", cap=2.0)
        for cut in cuts:
            values = {
                field: getattr(tokens, field)[:, cut] for field in LossTokens.__dataclass_fields__
            }
            added(meter, LossTokens(**values))
        found.append(meter.take(single_rank, single_rank))
    assert found[0] == pytest.approx(found[1])
    assert found[0]["update/clip_fraction"] == pytest.approx(2 / 3)
    assert found[0]["update/kl"] == pytest.approx(
        sum(math.exp(r) - r - 1 for r in (0.3, -0.2, 0.1)) / 3
    )


def test_kl_is_absent_without_a_reference() -> None:
    meter = OffPolicyMeter("truncated", cap=2.0)
    added(meter, loss_tokens([0.0] * 3, [0.0] * 3, [0.0] * 3, [1.0] * 3, [1, 1, 1]))
    assert "update/kl" not in meter.take(single_rank, single_rank)


def test_a_step_without_tokens_in_the_loss_has_no_metrics() -> None:
    meter = OffPolicyMeter("truncated", cap=2.0)
    added(meter, loss_tokens([0.0] * 3, [0.0] * 3, [0.0] * 3, [1.0] * 3, [0, 0, 0]))
    assert meter.take(single_rank, single_rank) == {}


def test_the_gap_ignores_later_updates() -> None:
    meter = OffPolicyMeter("truncated", cap=2.0)
    tokens = loss_tokens([0.3, 0.0, 0.0], [0.0] * 3, [0.0] * 3, [1.0] * 3, [1, 1, 1])
    meter.add(tokens, clipped_tokens(tokens, PPO_CLIPS), first_update=False)
    found = meter.take(single_rank, single_rank)
    assert "update/logp_gap_mean" not in found
    assert found["update/entropy"] == 4.0
    assert meter.take(single_rank, single_rank) == {}  # take() resets the meter


@pytest.mark.parametrize(
    ("algorithm", "low", "high"),
    [
        ({}, [1, 0, 0, 0], [0, 0, 0, 1]),
        ({"loss": "cispo"}, [0, 0, 0, 0], [0, 0, 1, 1]),
        ({"loss": "sapo", "loss_aggregation": "trajectory"}, [0, 0, 0, 0], [0, 0, 0, 0]),
        ({"loss": "vespo", "importance_correction": "behaviour"}, [0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_clipped_tokens_are_those_whose_ratio_the_loss_clips(
    algorithm: dict[str, str], low: list[int], high: list[int]
) -> None:
    """Use the ratios 0.7 and 1.4, each with a negative and a positive advantage."""
    small, large = math.log(0.7), math.log(1.4)
    tokens = LossTokens(
        logps=torch.tensor([[small, small, large, large]]),
        sampled=torch.zeros(1, 4),
        old=torch.zeros(1, 4),
        advantages=torch.tensor([[-1.0, 1.0, -1.0, 1.0]]),
        entropies=torch.zeros(1, 4),
        mask=torch.ones(1, 4),
        kept=torch.ones(1, 4),
    )
    settings = GRPO(name="grpo", steps=1, clip_low=0.2, clip_high=0.3, **algorithm)
    found = [each.int().tolist() for each in clipped_tokens(tokens, settings)]
    assert found == [[low], [high]]
