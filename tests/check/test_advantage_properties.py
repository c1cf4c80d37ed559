"""Property tests of advantages: masks, order, shifts, scales, groups and special cases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tasks.training.algorithms.gigpo import gigpo_advantages
from tasks.training.algorithms.grpo import grpo_advantages
from tasks.training.algorithms.ppo import gae_advantages
from tasks.training.algorithms.reinforce_plus_plus import reinforce_plus_plus_advantages
from tasks.training.algorithms.rloo import rloo_advantages
from tasks.training.experience import Experience, policy_places
from tasks.training.whitening import whitened
from tests.support.experiences import ESTIMATORS, GROUP_RELATIVE, experiences, few


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(experience=experiences())
def test_advantages_are_zero_outside_the_mask(name: str, experience: Experience) -> None:
    advantages = ESTIMATORS[name](experience)
    assert advantages.shape == experience.policy_mask.shape
    assert advantages.isfinite().all()
    assert (advantages[~experience.policy_mask] == 0).all()


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(experience=experiences(), seed=st.integers(0, 10**6))
def test_advantages_do_not_depend_on_trajectory_order_or_group_numbers(
    name: str, experience: Experience, seed: int
) -> None:
    order = torch.randperm(len(experience.groups), generator=torch.Generator().manual_seed(seed))
    assert experience.values is not None
    mixed = Experience(
        experience.rewards[order],
        experience.turn_ends[order],
        experience.policy_mask[order],
        100 - 7 * experience.groups[order],
        experience.states[order],
        experience.values[order],
    )
    torch.testing.assert_close(ESTIMATORS[name](mixed), ESTIMATORS[name](experience)[order])


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@few
@given(experience=experiences(), shift=st.floats(-3, 3))
def test_constant_reward_in_a_group_does_not_change_advantages(
    name: str, experience: Experience, shift: float
) -> None:
    """Shift the reward of the last turn.

    GiGPO is tested with discount 1. A smaller discount would shift the returns of earlier turns
    by different amounts.
    """
    estimator = (
        ESTIMATORS[name]
        if name != "gigpo"
        else lambda e: gigpo_advantages(e, discount=1.0, step_weight=1.0, scale=False)
    )
    last = (experience.turn_ends >= 0).sum(dim=1, keepdim=True) - 1
    shifted = replace(
        experience,
        rewards=experience.rewards.scatter_add(
            1, last, torch.full(last.shape, shift, dtype=torch.float64)
        ),
    )
    torch.testing.assert_close(estimator(shifted), estimator(experience), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["grpo, not scaled", "rloo", "reinforce++", "gae"])
@few
@given(experience=experiences(), factor=st.floats(0.1, 10))
def test_advantages_scale_with_the_rewards(
    name: str, experience: Experience, factor: float
) -> None:
    assert experience.values is not None
    larger = replace(
        experience, rewards=factor * experience.rewards, values=factor * experience.values
    )
    torch.testing.assert_close(ESTIMATORS[name](larger), factor * ESTIMATORS[name](experience))


@few
@given(experiences(), st.floats(0.5, 10), st.integers(0, 10**9))
def test_grpo_does_not_depend_on_the_reward_scale(
    experience: Experience, factor: float, seed: int
) -> None:
    drawn = torch.randn(
        experience.rewards.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    rewards = 100 * drawn * (experience.turn_ends >= 0)
    scores = rewards.sum(dim=1)
    groups = [scores[experience.groups == group] for group in experience.groups.unique()]
    # The standard deviations must be large compared with the constant that is added to them.
    assume(all(float(some.std()) > 10 for some in groups if len(some) > 1))
    one, other = replace(experience, rewards=rewards), replace(experience, rewards=factor * rewards)
    torch.testing.assert_close(
        grpo_advantages(other, True), grpo_advantages(one, True), atol=1e-3, rtol=1e-3
    )


@few
@given(experiences())
def test_rloo_is_grpo_without_scaling_times_n_over_n_minus_1(experience: Experience) -> None:
    n = int((experience.groups == experience.groups[0]).sum())
    torch.testing.assert_close(
        rloo_advantages(experience), grpo_advantages(experience, scale=False) * n / (n - 1)
    )


@few
@given(experiences())
def test_advantages_of_a_group_sum_to_zero(experience: Experience) -> None:
    for advantages in (
        grpo_advantages(experience, True),
        grpo_advantages(experience, False),
        rloo_advantages(experience),
    ):
        per_trajectory = advantages.gather(1, experience.turn_ends[:, :1]).squeeze(1)
        sums = torch.zeros(3, dtype=torch.float64).index_add_(0, experience.groups, per_trajectory)
        assert sums.abs().max() < 1e-9


@few
@given(experiences())
def test_groups_are_independent(experience: Experience) -> None:
    for group in experience.groups.unique():
        rows = experience.groups == group
        alone = replace(
            experience,
            rewards=experience.rewards[rows],
            turn_ends=experience.turn_ends[rows],
            policy_mask=experience.policy_mask[rows],
            groups=experience.groups[rows],
            states=experience.states[rows],
        )
        for name in GROUP_RELATIVE:
            torch.testing.assert_close(ESTIMATORS[name](experience)[rows], ESTIMATORS[name](alone))


@few
@given(experiences(), st.floats(0, 1))
def test_gae_at_lambda_1_is_return_minus_value(experience: Experience, discount: float) -> None:
    assert experience.values is not None
    expected = (
        reinforce_plus_plus_advantages(experience, discount) - experience.values
    ) * experience.policy_mask
    torch.testing.assert_close(gae_advantages(experience, discount, 1.0), expected)


@few
@given(experiences(), st.floats(0, 1))
def test_gae_at_lambda_0_is_the_one_step_error(experience: Experience, discount: float) -> None:
    assert experience.values is not None
    advantages, rewards = gae_advantages(experience, discount, 0.0), experience.token_rewards()
    places, inside = policy_places(experience.policy_mask)
    for i in range(len(places)):
        own = places[i][inside[i]].tolist()
        for here, following in zip(own, [*own[1:], None], strict=True):
            coming = 0.0 if following is None else float(experience.values[i, following])
            assert float(advantages[i, here]) == pytest.approx(
                float(rewards[i, here] + discount * coming - experience.values[i, here])
            )


@few
@given(experiences())
def test_exact_values_give_zero_advantage(experience: Experience) -> None:
    perfect = replace(experience, values=reinforce_plus_plus_advantages(experience, 0.9))
    assert gae_advantages(perfect, 0.9, 0.5).abs().max() < 1e-9


@few
@given(experiences())
def test_gigpo_without_step_advantage_is_grpo(experience: Experience) -> None:
    torch.testing.assert_close(
        gigpo_advantages(experience, 0.9, 0.0, True), grpo_advantages(experience, True)
    )


@few
@given(experiences())
def test_normalisation_does_not_depend_on_the_split_across_processes(
    experience: Experience,
) -> None:
    assert experience.values is not None
    values, mask = experience.values, experience.policy_mask
    parts, met, shared = [slice(0, 1), slice(1, None)], Barrier(2), dict[int, torch.Tensor]()

    def part_of(number: int) -> torch.Tensor:
        def total(sums: torch.Tensor) -> torch.Tensor:
            shared[number] = sums
            met.wait()
            added = shared[0] + shared[1]
            met.wait()
            return added

        return whitened(values[parts[number]], mask[parts[number]], total)

    with ThreadPoolExecutor(2) as threads:
        torch.testing.assert_close(
            torch.cat(list(threads.map(part_of, [0, 1]))), whitened(values, mask)
        )
