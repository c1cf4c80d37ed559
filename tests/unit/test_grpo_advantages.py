"""GRPO's advantage against hand-worked cases and its known properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.training.advantages.grpo import grpo_advantages

groups = (
    st.integers(2, 8)
    .flatmap(lambda n: st.lists(st.lists(st.floats(0, 1, width=32), min_size=n, max_size=n), min_size=1, max_size=5))
    .map(lambda rows: torch.tensor(rows, dtype=torch.float64))
)


def test_a_hand_worked_group() -> None:
    # mean 0.25, sample variance (0.75^2 + 3 * 0.25^2) / 3 = 0.25, standard deviation 0.5
    advantages = grpo_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64), scale=True)
    assert advantages.tolist()[0] == pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3])


def test_without_scaling_only_the_mean_is_taken_off() -> None:
    assert grpo_advantages(torch.tensor([[1.0, 0.0, 0.5, 0.5]]), scale=False).tolist() == [[0.5, -0.5, 0.0, 0.0]]


def test_a_group_without_spread_teaches_nothing() -> None:
    assert grpo_advantages(torch.full((2, 8), 1.0), scale=True).abs().max() == 0


@given(groups)
def test_advantages_of_a_group_add_up_to_nothing(rewards: torch.Tensor) -> None:
    assert grpo_advantages(rewards, scale=True).sum(dim=1).abs().max() < 1e-9


@given(groups, st.floats(-3, 3))
def test_shifting_all_rewards_changes_nothing(rewards: torch.Tensor, shift: float) -> None:
    torch.testing.assert_close(grpo_advantages(rewards + shift, True), grpo_advantages(rewards, True), atol=1e-6, rtol=1e-6)


@given(groups, st.integers(0, 10**6))
def test_the_order_of_a_groups_members_does_not_matter(rewards: torch.Tensor, seed: int) -> None:
    order = torch.randperm(rewards.shape[1], generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(grpo_advantages(rewards[:, order], True), grpo_advantages(rewards, True)[:, order])


@given(groups)
def test_groups_do_not_see_each_other(rewards: torch.Tensor) -> None:
    alone = torch.cat([grpo_advantages(row.unsqueeze(0), True) for row in rewards])
    torch.testing.assert_close(grpo_advantages(rewards, True), alone)
