"""How much a recipe plays: turns and tokens of each phase, between those of an expert and those of a policy that never comes to an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from configs.experiment import Experiment
from environments.environment import World
from tasks.curriculum.horizon import Phase

CHARACTERS_PER_TOKEN = 4
MOST_TURNS = 200


@dataclass(frozen=True, slots=True)
class ExpertEpisode:
    """An episode of the world's expert.

    Attributes:
        turns: Its length.
        characters: Of first observation, actions and observations.
        actions: Characters of the actions alone.
    """

    turns: int
    characters: int
    actions: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a number of episodes come to under one horizon; each pair is (least, most).

    Attributes:
        episodes: Their number.
        turns: If all go as the expert's do (cut by the horizon); if all run into the horizon. Without an expert both are the latter.
        policy_tokens: What the policy writes: as many tokens as the expert's bare actions; `rollout.turn_tokens` in each turn.
        tokens: All tokens of the trajectories; at most `rollout.trajectory_tokens` each.
    """

    episodes: int
    turns: tuple[int, int]
    policy_tokens: tuple[int, int]
    tokens: tuple[int, int]


def play_expert(world: World, task: int) -> ExpertEpisode:
    """Plays one task by the world's expert.

    Raises:
        OracleError: The expert has no solution.
    """
    environment = world.create()
    try:
        characters, actions, turns, done = len(environment.reset(task)), 0, 0, False
        while not done and turns < MOST_TURNS:
            action = environment.oracle_action()
            step = environment.step(action)
            done, turns = step.done, turns + 1
            actions += len(action)
            characters += len(action) + len(step.observation)
        return ExpertEpisode(turns, characters, actions)
    finally:
        environment.close()


def work(experiment: Experiment, episodes: int, horizon: int, expert: Sequence[ExpertEpisode]) -> Work:
    """What so many episodes under a horizon come to.

    Args:
        experiment: Its budgets.
        episodes: Their number.
        horizon: Turn limit.
        expert: Episodes of the expert on such tasks; may be empty.
    """
    rollout = experiment.rollout
    most = horizon * episodes
    most_written = min(most * rollout.turn_tokens, episodes * rollout.trajectory_tokens)
    if not expert:
        limits = (episodes * rollout.trajectory_tokens,) * 2
        return Work(episodes, (most, most), (most_written, most_written), limits)
    shares = [min(1.0, horizon / max(1, each.turns)) for each in expert]  # of each episode, before the horizon cuts it
    turns, actions, characters = (
        episodes * fmean(share * getattr(each, name) for share, each in zip(shares, expert, strict=True))
        for name in ("turns", "actions", "characters")
    )
    return Work(
        episodes,
        (round(turns), most),
        (round(actions / CHARACTERS_PER_TOKEN), most_written),
        (round(characters / CHARACTERS_PER_TOKEN), episodes * rollout.trajectory_tokens),
    )


def phase_work(experiment: Experiment, phase: Phase, expert: Sequence[ExpertEpisode]) -> Work:
    """What the training episodes of a phase come to; what dynamic sampling plays anew is not counted."""
    per_step = experiment.rollout.tasks_per_step * experiment.rollout.group_size
    return work(experiment, per_step * (phase.end_step - phase.first_step), phase.horizon, expert)
