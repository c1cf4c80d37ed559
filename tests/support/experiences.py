"""Experience for tests of advantages: hand-written, random, and as a Hypothesis strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import torch
from hypothesis import settings
from hypothesis import strategies as st

from tasks.rollout.trajectory import Outcome, Trajectory, Turn
from tasks.training.algorithms.gigpo import gigpo_advantages
from tasks.training.algorithms.grpo import grpo_advantages
from tasks.training.algorithms.ppo import gae_advantages
from tasks.training.algorithms.reinforce_plus_plus import reinforce_plus_plus_advantages
from tasks.training.algorithms.rloo import rloo_advantages
from tasks.training.experience import Experience, experience_of

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


def trajectory(
    group: int, *turns: tuple[int, int, float], seen: tuple[str, ...] = ()
) -> Trajectory:
    """Return a trajectory.

    Args:
        group: Group and task of the trajectory.
        turns: Policy tokens, environment tokens and reward of each turn.
        seen: First observations of the trajectory. The remaining ones are unique to the group.
    """
    texts = [*seen, *(f"{group} {i}" for i in range(len(seen), len(turns) + 1))]
    made = Trajectory(
        "textcraft",
        group,
        group,
        0,
        0,
        8,
        0,
        "vllm",
        prompt=[1],
        first_observation=texts[0],
        outcome=Outcome.FINISHED,
    )
    made.turns = [
        Turn([1] * tokens, [-0.5] * tokens, "look", texts[i + 1], [2] * others, reward)
        for i, (tokens, others, reward) in enumerate(turns)
    ]
    return made


def random_experience(seed: int) -> Experience:
    """Return 1 to 3 groups of 2 to 4 trajectories of varying lengths, with random values.

    Hypothesis draws only the seed, which keeps the property tests fast.
    """
    random = Random(seed)
    size, groups = random.randint(2, 4), random.sample(range(3), random.randint(1, 3))

    def turns() -> list[tuple[int, int, float]]:
        return [
            (
                random.randint(1, 4),
                random.randint(0, 3),
                random.choice([0, 0, 1, random.uniform(-1, 1)]),
            )
            for _ in range(random.randint(1, 4))
        ]

    made = experience_of(
        [
            trajectory(group, *turns(), seen=tuple(random.choices("abc", k=5)))
            for group in groups
            for _ in range(size)
        ]
    )
    generator = torch.Generator().manual_seed(seed)
    return replace(
        made, values=torch.randn(made.policy_mask.shape, dtype=torch.float64, generator=generator)
    )


def experiences() -> st.SearchStrategy[Experience]:
    return st.integers(0, 10**9).map(random_experience)


def of_scores(*groups: list[float]) -> Experience:
    """Return experience with one trajectory of one turn for each score of each group."""
    return experience_of(
        [trajectory(g, (2, 0, score)) for g, scores in enumerate(groups) for score in scores]
    )
