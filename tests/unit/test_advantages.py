"""Each advantage estimator against cases worked by hand and against its known properties."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from threading import Barrier

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.training.algorithms.gigpo import gigpo_advantages
from tasks.training.algorithms.grpo import grpo_advantages
from tasks.training.algorithms.ppo import gae_advantages
from tasks.training.algorithms.reinforce_plus_plus import reinforce_plus_plus_advantages
from tasks.training.algorithms.rloo import rloo_advantages
from tasks.training.experience import Experience, experience_of, policy_places
from tasks.training.whitening import whitened

few = settings(max_examples=40)

ESTIMATORS: dict[str, Callable[[Experience], torch.Tensor]] = {
    "grpo": lambda e: grpo_advantages(e, scale=True),
    "grpo, not scaled": lambda e: grpo_advantages(e, scale=False),
    "rloo": rloo_advantages,
    "reinforce++": lambda e: reinforce_plus_plus_advantages(e, discount=0.9),
    "gae": lambda e: gae_advantages(e, discount=0.9, gae_lambda=0.7),
    "gigpo": lambda e: gigpo_advantages(e, discount=0.9, step_weight=1.0, scale=True),
}
GROUP_RELATIVE = ["grpo", "grpo, not scaled", "rloo", "gigpo"]


def trajectory(group: int, *turns: tuple[int, int, float], seen: tuple[str, ...] = ()) -> Trajectory:
    """A trajectory of turns (policy tokens, environment tokens, reward); `seen` are the observations before its turns."""
    texts = [*seen, *(f"{group} {i}" for i in range(len(seen), len(turns) + 1))]
    made = Trajectory("textcraft", group, group, 0, 0, 8, 0, "vllm", prompt=[1], first_observation=texts[0], outcome=Outcome.FINISHED)
    made.turns = [
        Turn([1] * tokens, [-0.5] * tokens, "look", texts[i + 1], [2] * others, reward) for i, (tokens, others, reward) in enumerate(turns)
    ]
    return made


def random_experience(seed: int) -> Experience:
    """Up to three groups of two to four ragged trajectories, with values. One number to draw keeps the property tests quick."""
    random = Random(seed)
    size, groups = random.randint(2, 4), random.sample(range(3), random.randint(1, 3))

    def turns() -> list[tuple[int, int, float]]:
        return [
            (random.randint(1, 4), random.randint(0, 3), random.choice([0, 0, 1, random.uniform(-1, 1)]))
            for _ in range(random.randint(1, 4))
        ]

    made = experience_of([trajectory(group, *turns(), seen=tuple(random.choices("abc", k=5))) for group in groups for _ in range(size)])
    generator = torch.Generator().manual_seed(seed)
    return replace(made, values=torch.randn(made.policy_mask.shape, dtype=torch.float64, generator=generator))


def experiences() -> st.SearchStrategy[Experience]:
    return st.integers(0, 10**9).map(random_experience)


def of_scores(*groups: list[float]) -> Experience:
    return experience_of([trajectory(g, (2, 0, score)) for g, scores in enumerate(groups) for score in scores])


# What the tensors hold


def test_rewards_of_turns_lie_on_their_last_tokens() -> None:
    experience = experience_of([trajectory(0, (2, 2, 0.5), (1, 1, 0.0), (3, 0, 0.25)), trajectory(0, (1, 0, 1.0))])
    assert experience.token_rewards().tolist() == [[0, 0.5, 0, 0, 0, 0, 0, 0, 0.25], [1.0, *[0] * 8]]
    assert experience.scores().tolist() == [0.75, 1.0]
    assert experience.turn_numbers()[0].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_states_are_equal_where_the_policy_saw_the_same() -> None:
    one, other = trajectory(0, (1, 1, 0), (1, 0, 0), seen=("x", "y")), trajectory(0, (1, 1, 0), (1, 1, 0), (1, 0, 0), seen=("x", "z", "y"))
    states = experience_of([one, other]).states.tolist()
    assert states[0][0] == states[1][0]
    assert states[0][1] == states[1][2] != states[1][1]
    assert states[0][2] == -1


def test_states_with_a_key_of_the_world_are_told_apart_by_it_whatever_the_policy_saw() -> None:
    one, other = (trajectory(0, (1, 1, 0), (1, 1, 0), (1, 0, 0), seen=("x", "y", "y")) for _ in range(2))
    for turn, key in zip([*one.turns, *other.turns], ["s", "a", "b", "s", "b", "y"], strict=True):
        turn.state_key = key
    states = experience_of([one, other]).states.tolist()
    assert states[0][0] == states[1][0]
    assert states[0][2] == states[1][1] != states[0][1]
    other.turns[2].state_key = ""  # no key: known by what was seen, which is no key
    assert len({*map(tuple, states), tuple(experience_of([one, other]).states[1].tolist())}) == 2
    assert len({*states[0], *states[1]}) == 4


# Worked by hand


def test_grpo_divides_by_the_spread_of_the_group() -> None:
    # mean 0.25, sample variance (0.75^2 + 3 * 0.25^2) / 3 = 0.25, standard deviation 0.5
    advantages = grpo_advantages(of_scores([1.0, 0.0, 0.0, 0.0]), scale=True)
    assert advantages[:, 0].tolist() == pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3])
    assert grpo_advantages(of_scores([1.0, 0.0, 0.5, 0.5]), scale=False)[:, 1].tolist() == [0.5, -0.5, 0.0, 0.0]


def test_rloo_leaves_the_trajectory_out_of_its_own_baseline() -> None:
    assert rloo_advantages(of_scores([1.0, 0.0, 0.5], [1.0, 1.0]))[:, 0].tolist() == [0.75, -0.75, 0.0, 0.0, 0.0]


def test_reinforce_plus_plus_discounts_policy_tokens_and_skips_the_environments() -> None:
    experience = experience_of([trajectory(0, (2, 3, 1.0), (2, 0, 4.0)), trajectory(1, (1, 0, 2.0))])
    # backwards over the policy's four tokens: 4, 0.5 * 4 = 2, 1 + 0.5 * 2 = 2, 1
    assert reinforce_plus_plus_advantages(experience, 0.5).tolist() == [[1, 2, 0, 0, 0, 2, 4], [2, 0, 0, 0, 0, 0, 0]]


def test_gae_bridges_the_environments_tokens() -> None:
    experience = experience_of([trajectory(0, (1, 2, 1.0), (2, 0, 2.0)), trajectory(0, (1, 0, 0.0))])
    values = torch.tensor([[1.0, 9.0, 9.0, 2.0, 3.0], [4.0, 9.0, 9.0, 9.0, 9.0]], dtype=torch.float64)
    # deltas with gamma 1/2: 1 + 2/2 - 1 = 1; 0 + 3/2 - 2 = -1/2; 2 + 0 - 3 = -1; sums with gamma * lambda = 1/4
    advantages = gae_advantages(replace(experience, values=values), discount=0.5, gae_lambda=0.5)
    assert advantages.tolist() == [[1 + (-0.75) / 4, 0, 0, -0.75, -1.0], [-4.0, 0, 0, 0, 0]]
    # cut instead of ended, with something of the value 6 still to come
    cut = gae_advantages(replace(experience, values=values, last_values=torch.tensor([6.0, 0.0], dtype=torch.float64)), 0.5, 0.5)
    assert cut.tolist() == [[1 + 0 / 4, 0, 0, -0.5 + 2 / 4, 2.0], [-4.0, 0, 0, 0, 0]]


def test_gigpo_compares_the_turns_that_began_in_the_same_state() -> None:
    experience = experience_of(
        [
            trajectory(0, (1, 1, 0.0), (1, 0, 1.0), seen=("start", "left")),
            trajectory(0, (1, 1, 0.0), (1, 1, 0.0), (1, 0, 0.0), seen=("start", "left", "right")),
            trajectory(1, (1, 0, 5.0), seen=("start",)),
        ]
    )
    # state "start" of group 0: returns 1/2 and 0; state "left": 1 and 0; "right" and the other group's "start" are met once
    advantages = gigpo_advantages(experience, discount=0.5, step_weight=2.0, scale=False)
    assert advantages.tolist() == [[0.5 + 0.5, 0, 0.5 + 1, 0, 0], [-0.5 - 0.5, 0, -0.5 - 1, 0, -0.5], [0, 0, 0, 0, 0]]


def test_a_penalty_is_taken_off_every_token_and_off_the_score() -> None:
    experience = experience_of([trajectory(0, (2, 1, 0.0), (1, 0, 1.0)), trajectory(0, (1, 0, 1.0))])
    experience = replace(experience, penalties=torch.full(experience.policy_mask.shape, 0.1, dtype=torch.float64))
    assert experience.scores().tolist() == pytest.approx([0.7, 0.9])
    assert reinforce_plus_plus_advantages(experience, 1.0)[0].tolist() == pytest.approx([0.7, 0.8, 0, 0.9])


def test_normalising_over_the_batch_weighs_every_policy_token_alike() -> None:
    mask = torch.tensor([[1, 0, 1], [1, 0, 0]], dtype=torch.bool)
    made = whitened(torch.tensor([[1.0, 99.0, 2.0], [6.0, 99.0, 99.0]], dtype=torch.float64), mask)
    # mean 3, sample variance (4 + 1 + 9) / 2 = 7
    assert made[mask].tolist() == pytest.approx([-2 / 7**0.5, -1 / 7**0.5, 3 / 7**0.5])
    assert made[~mask].abs().max() == 0


# Properties


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(experience=experiences())
def test_nothing_falls_outside_the_mask(name: str, experience: Experience) -> None:
    advantages = ESTIMATORS[name](experience)
    assert advantages.shape == experience.policy_mask.shape
    assert advantages.isfinite().all()
    assert (advantages[~experience.policy_mask] == 0).all()


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(experience=experiences(), seed=st.integers(0, 10**6))
def test_the_order_of_trajectories_and_the_numbers_of_groups_do_not_matter(name: str, experience: Experience, seed: int) -> None:
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
def test_what_every_episode_of_a_group_earns_anyway_teaches_nothing(name: str, experience: Experience, shift: float) -> None:
    """The reward is shifted on the last turn. GiGPO's discounted returns shift differently in turns of different distance, so gamma 1."""
    estimator = ESTIMATORS[name] if name != "gigpo" else lambda e: gigpo_advantages(e, discount=1.0, step_weight=1.0, scale=False)
    last = (experience.turn_ends >= 0).sum(dim=1, keepdim=True) - 1
    shifted = replace(experience, rewards=experience.rewards.scatter_add(1, last, torch.full(last.shape, shift, dtype=torch.float64)))
    torch.testing.assert_close(estimator(shifted), estimator(experience), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["grpo, not scaled", "rloo", "reinforce++", "gae"])
@few
@given(experience=experiences(), factor=st.floats(0.1, 10))
def test_advantages_grow_with_the_rewards(name: str, experience: Experience, factor: float) -> None:
    assert experience.values is not None
    larger = replace(experience, rewards=factor * experience.rewards, values=factor * experience.values)
    torch.testing.assert_close(ESTIMATORS[name](larger), factor * ESTIMATORS[name](experience))


@few
@given(experiences(), st.floats(0.5, 10), st.integers(0, 10**9))
def test_grpo_is_blind_to_the_scale_of_rewards_that_spread(experience: Experience, factor: float, seed: int) -> None:
    drawn = torch.randn(experience.rewards.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    rewards = 100 * drawn * (experience.turn_ends >= 0)
    scores = rewards.sum(dim=1)
    groups = [scores[experience.groups == group] for group in experience.groups.unique()]
    assume(all(float(some.std()) > 10 for some in groups if len(some) > 1))  # large beside the small number that is added to it
    one, other = replace(experience, rewards=rewards), replace(experience, rewards=factor * rewards)
    torch.testing.assert_close(grpo_advantages(other, True), grpo_advantages(one, True), atol=1e-3, rtol=1e-3)


@few
@given(experiences())
def test_rloo_is_grpo_without_scaling_times_n_over_n_minus_1(experience: Experience) -> None:
    n = int((experience.groups == experience.groups[0]).sum())
    torch.testing.assert_close(rloo_advantages(experience), grpo_advantages(experience, scale=False) * n / (n - 1))


@few
@given(experiences())
def test_advantages_of_a_group_add_up_to_nothing(experience: Experience) -> None:
    for advantages in (grpo_advantages(experience, True), grpo_advantages(experience, False), rloo_advantages(experience)):
        per_trajectory = advantages.gather(1, experience.turn_ends[:, :1]).squeeze(1)
        sums = torch.zeros(3, dtype=torch.float64).index_add_(0, experience.groups, per_trajectory)
        assert sums.abs().max() < 1e-9


@few
@given(experiences())
def test_groups_do_not_see_each_other(experience: Experience) -> None:
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
def test_gae_at_lambda_1_is_the_return_less_the_value(experience: Experience, discount: float) -> None:
    assert experience.values is not None
    expected = (reinforce_plus_plus_advantages(experience, discount) - experience.values) * experience.policy_mask
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
            assert float(advantages[i, here]) == pytest.approx(float(rewards[i, here] + discount * coming - experience.values[i, here]))


@few
@given(experiences())
def test_right_values_leave_no_advantage(experience: Experience) -> None:
    perfect = replace(experience, values=reinforce_plus_plus_advantages(experience, 0.9))
    assert gae_advantages(perfect, 0.9, 0.5).abs().max() < 1e-9


@few
@given(experiences())
def test_gigpo_without_its_step_part_is_grpo(experience: Experience) -> None:
    torch.testing.assert_close(gigpo_advantages(experience, 0.9, 0.0, True), grpo_advantages(experience, True))


@few
@given(experiences())
def test_normalising_does_not_depend_on_how_the_batch_lies_on_processes(experience: Experience) -> None:
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
        torch.testing.assert_close(torch.cat(list(threads.map(part_of, [0, 1]))), whitened(values, mask))
