"""Estimates of the turns and tokens that a recipe generates per phase.

The lower bound is an expert's episodes, the upper bound a policy that always reaches the horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from configs.experiment import Experiment
from environments.environment import World
from tasks.curriculum.horizon import Phase

CHARACTERS_PER_TOKEN = 4
MAX_TURNS = 200


@dataclass(frozen=True, slots=True)
class ExpertEpisode:
    """Size of one episode of the environment's expert.

    Attributes:
        characters: Characters of the first observation, all actions and all observations.
        actions: Characters of the actions alone.
    """

    turns: int
    characters: int
    actions: int


@dataclass(frozen=True, slots=True)
class Work:
    """Estimated work for a number of episodes under one horizon. Each pair is (least, most).

    Attributes:
        turns: Least: all episodes match the expert's, cut off at the horizon. Most: all episodes
            reach the horizon. Without an expert both values are the latter.
        policy_tokens: Tokens that the policy generates. Least: the length of the expert's bare
            actions. Most: `rollout.turn_tokens` in each turn.
        tokens: All tokens of the trajectories, at most `rollout.trajectory_tokens` each.
    """

    episodes: int
    turns: tuple[int, int]
    policy_tokens: tuple[int, int]
    tokens: tuple[int, int]


def play_expert(world: World, task: int) -> ExpertEpisode:
    """Play one task with the environment's expert.

    Raises:
        OracleError: The expert has no solution.
    """
    environment = world.create()
    try:
        characters, actions, turns, done = len(environment.reset(task)), 0, 0, False
        while not done and turns < MAX_TURNS:
            action = environment.oracle_action()
            step = environment.step(action)
            done, turns = step.done, turns + 1
            actions += len(action)
            characters += len(action) + len(step.observation)
        return ExpertEpisode(turns, characters, actions)
    finally:
        environment.close()


def work(
    experiment: Experiment, episodes: int, horizon: int, expert: Sequence[ExpertEpisode]
) -> Work:
    """Estimate the turns and tokens of a number of episodes under a horizon.

    Args:
        experiment: The recipe, read for its token budgets.
        horizon: Turn limit of an episode.
        expert: Expert episodes on tasks of the same kind. May be empty.
    """
    rollout = experiment.rollout
    most = horizon * episodes
    most_written = min(most * rollout.turn_tokens, episodes * rollout.trajectory_tokens)
    if not expert:
        limits = (episodes * rollout.trajectory_tokens,) * 2
        return Work(episodes, (most, most), (most_written, most_written), limits)
    # Fraction of each expert episode that fits within the horizon
    shares = [min(1.0, horizon / max(1, each.turns)) for each in expert]
    turns, actions, characters = (
        episodes
        * fmean(share * getattr(each, name) for share, each in zip(shares, expert, strict=True))
        for name in ("turns", "actions", "characters")
    )
    return Work(
        episodes,
        (round(turns), most),
        (round(actions / CHARACTERS_PER_TOKEN), most_written),
        (round(characters / CHARACTERS_PER_TOKEN), episodes * rollout.trajectory_tokens),
    )


def phase_work(experiment: Experiment, phase: Phase, expert: Sequence[ExpertEpisode]) -> Work:
    """Estimate the work of a phase's training episodes, without dynamic-sampling retries."""
    per_step = experiment.rollout.tasks_per_step * experiment.rollout.group_size
    return work(experiment, per_step * (phase.end_step - phase.first_step), phase.horizon, expert)
