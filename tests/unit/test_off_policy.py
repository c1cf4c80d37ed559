"""How far off the policy a batch is: each figure against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.training.off_policy import LossTokens, OffPolicyMeter


def alone(values: torch.Tensor) -> torch.Tensor:
    return values


def seen(logps: list[float], sampled: list[float], old: list[float], advantages: list[float], mask: list[int]) -> LossTokens:
    rows = [torch.tensor([row]) for row in (logps, sampled, old, advantages)]
    return LossTokens(*rows, entropies=torch.tensor([[2.0, 1.0, 9.0]]), mask=torch.tensor([mask]), kept=torch.ones(1, 3))


def test_gap_weights_and_effective_sample_size_are_those_of_the_policys_tokens() -> None:
    meter = OffPolicyMeter(cap=2.0, clip_low=0.2, clip_high=0.2)
    meter.add(seen([math.log(3.0), 0.0, 7.0], [0.0, 0.0, -7.0], [math.log(3.0), 0.0, 0.0], [1.0, 1.0, 1.0], [1, 1, 0]), first_update=True)
    found = meter.take(alone, alone)
    assert found["update/logp_gap_mean"] == pytest.approx(math.log(3.0) / 2)
    assert found["update/logp_gap_largest"] == pytest.approx(math.log(3.0))
    assert found["update/capped_weights"] == 0.5  # 3 exceeds the cap, 1 does not
    assert found["update/effective_sample_size"] == pytest.approx((3 + 1) ** 2 / (2 * (9 + 1)))
    assert found["update/entropy"] == 1.5
    assert found["update/clip_fraction_low"] == found["update/clip_fraction_high"] == 0


def test_clipping_is_counted_where_it_stops_the_gradient_and_later_updates_do_not_widen_the_gap() -> None:
    meter = OffPolicyMeter(cap=2.0, clip_low=0.2, clip_high=0.3)
    low, high = math.log(0.7), math.log(1.4)
    meter.add(seen([low, high, high], [0.0] * 3, [0.0] * 3, [-1.0, 1.0, -1.0], [1, 1, 1]), first_update=False)
    found = meter.take(alone, alone)
    assert found["update/clip_fraction_low"] == found["update/clip_fraction_high"] == pytest.approx(1 / 3)
    assert found["update/logp_gap_mean"] == found["update/logp_gap_largest"] == 0
    assert found["update/effective_sample_size"] == 1
    assert meter.take(alone, alone)["update/clip_fraction_low"] == 0  # each step begins anew
