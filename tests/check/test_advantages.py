"""Tests of each advantage estimator against cases worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tasks.training.algorithms.gigpo import gigpo_advantages
from tasks.training.algorithms.grpo import grpo_advantages
from tasks.training.algorithms.ppo import gae_advantages
from tasks.training.algorithms.reinforce_plus_plus import reinforce_plus_plus_advantages
from tasks.training.algorithms.rloo import rloo_advantages
from tasks.training.experience import experience_of
from tasks.training.whitening import whitened
from tests.support.experiences import of_scores, trajectory


def test_turn_rewards_are_on_the_last_policy_token() -> None:
    experience = experience_of(
        [trajectory(0, (2, 2, 0.5), (1, 1, 0.0), (3, 0, 0.25)), trajectory(0, (1, 0, 1.0))]
    )
    assert experience.token_rewards().tolist() == [
        [0, 0.5, 0, 0, 0, 0, 0, 0, 0.25],
        [1.0, *[0] * 8],
    ]
    assert experience.scores().tolist() == [0.75, 1.0]
    assert experience.turn_numbers()[0].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_states_with_equal_context_are_equal() -> None:
    one, other = (
        trajectory(0, (1, 1, 0), (1, 0, 0), seen=("x", "y")),
        trajectory(0, (1, 1, 0), (1, 1, 0), (1, 0, 0), seen=("x", "z", "y")),
    )
    states = experience_of([one, other]).states.tolist()
    assert states[0][0] == states[1][0]
    assert states[0][1] == states[1][2] != states[1][1]
    assert states[0][2] == -1


def test_state_key_of_the_world_identifies_states() -> None:
    one, other = (
        trajectory(0, (1, 1, 0), (1, 1, 0), (1, 0, 0), seen=("x", "y", "y")) for _ in range(2)
    )
    for turn, key in zip([*one.turns, *other.turns], ["s", "a", "b", "s", "b", "y"], strict=True):
        turn.state_key = key
    states = experience_of([one, other]).states.tolist()
    assert states[0][0] == states[1][0]
    assert states[0][2] == states[1][1] != states[0][1]
    other.turns[2].state_key = ""  # without a key, the observations identify the state
    assert len({*map(tuple, states), tuple(experience_of([one, other]).states[1].tolist())}) == 2
    assert len({*states[0], *states[1]}) == 4


def test_grpo_divides_by_the_standard_deviation_of_the_group() -> None:
    # mean 0.25, sample variance (0.75^2 + 3 * 0.25^2) / 3 = 0.25, standard deviation 0.5
    advantages = grpo_advantages(of_scores([1.0, 0.0, 0.0, 0.0]), scale=True)
    assert advantages[:, 0].tolist() == pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3])
    assert grpo_advantages(of_scores([1.0, 0.0, 0.5, 0.5]), scale=False)[:, 1].tolist() == [
        0.5,
        -0.5,
        0.0,
        0.0,
    ]


def test_rloo_baseline_excludes_the_trajectory_itself() -> None:
    assert rloo_advantages(of_scores([1.0, 0.0, 0.5], [1.0, 1.0]))[:, 0].tolist() == [
        0.75,
        -0.75,
        0.0,
        0.0,
        0.0,
    ]


def test_reinforce_plus_plus_discounts_over_policy_tokens_only() -> None:
    experience = experience_of(
        [trajectory(0, (2, 3, 1.0), (2, 0, 4.0)), trajectory(1, (1, 0, 2.0))]
    )
    # backwards over the policy's four tokens: 4, 0.5 * 4 = 2, 1 + 0.5 * 2 = 2, 1
    assert reinforce_plus_plus_advantages(experience, 0.5).tolist() == [
        [1, 2, 0, 0, 0, 2, 4],
        [2, 0, 0, 0, 0, 0, 0],
    ]


def test_gae_skips_environment_tokens() -> None:
    experience = experience_of(
        [trajectory(0, (1, 2, 1.0), (2, 0, 2.0)), trajectory(0, (1, 0, 0.0))]
    )
    values = torch.tensor(
        [[1.0, 9.0, 9.0, 2.0, 3.0], [4.0, 9.0, 9.0, 9.0, 9.0]], dtype=torch.float64
    )
    # deltas with gamma 1/2: 1 + 2/2 - 1 = 1; 0 + 3/2 - 2 = -1/2; 2 + 0 - 3 = -1; sums with gamma *
    # lambda = 1/4
    advantages = gae_advantages(replace(experience, values=values), discount=0.5, gae_lambda=0.5)
    assert advantages.tolist() == [[1 + (-0.75) / 4, 0, 0, -0.75, -1.0], [-4.0, 0, 0, 0, 0]]
    # truncated: the value of the final state is 6
    cut = gae_advantages(
        replace(
            experience, values=values, last_values=torch.tensor([6.0, 0.0], dtype=torch.float64)
        ),
        0.5,
        0.5,
    )
    assert cut.tolist() == [[1 + 0 / 4, 0, 0, -0.5 + 2 / 4, 2.0], [-4.0, 0, 0, 0, 0]]


def test_gigpo_compares_turns_with_the_same_start_state() -> None:
    experience = experience_of(
        [
            trajectory(0, (1, 1, 0.0), (1, 0, 1.0), seen=("start", "left")),
            trajectory(0, (1, 1, 0.0), (1, 1, 0.0), (1, 0, 0.0), seen=("start", "left", "right")),
            trajectory(1, (1, 0, 5.0), seen=("start",)),
        ]
    )
    # Returns in group 0: 1/2 and 0 from state "start", 1 and 0 from "left".
    # State "right" and the other group's "start" occur only once.
    advantages = gigpo_advantages(experience, discount=0.5, step_weight=2.0, scale=False)
    assert advantages.tolist() == [
        [0.5 + 0.5, 0, 0.5 + 1, 0, 0],
        [-0.5 - 0.5, 0, -0.5 - 1, 0, -0.5],
        [0, 0, 0, 0, 0],
    ]


def test_kl_penalty_reduces_token_rewards_and_score() -> None:
    experience = experience_of(
        [trajectory(0, (2, 1, 0.0), (1, 0, 1.0)), trajectory(0, (1, 0, 1.0))]
    )
    experience = replace(
        experience, penalties=torch.full(experience.policy_mask.shape, 0.1, dtype=torch.float64)
    )
    assert experience.scores().tolist() == pytest.approx([0.7, 0.9])
    assert reinforce_plus_plus_advantages(experience, 1.0)[0].tolist() == pytest.approx(
        [0.7, 0.8, 0, 0.9]
    )


def test_batch_normalisation_weights_policy_tokens_equally() -> None:
    mask = torch.tensor([[1, 0, 1], [1, 0, 0]], dtype=torch.bool)
    made = whitened(torch.tensor([[1.0, 99.0, 2.0], [6.0, 99.0, 99.0]], dtype=torch.float64), mask)
    # mean 3, sample variance (4 + 1 + 9) / 2 = 7
    assert made[mask].tolist() == pytest.approx([-2 / 7**0.5, -1 / 7**0.5, 3 / 7**0.5])
    assert made[~mask].abs().max() == 0
