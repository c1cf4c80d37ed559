"""Estimates of the turns and tokens that a recipe generates per phase.

`work` has bounds: an expert's episodes, and a policy that always reaches the horizon. `likely_work`
has the range that is assumed for estimates of time.
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
LIKELY_TURNS = 2.5
"""Most turns of a likely episode, as a multiple of the expert's.

In the published runs a step's mean was 0.9 to 2.5 times the expert's, cut off at the horizon. In
one of more than a hundred runs it reached 3.3.
"""
LIKELY_TOKENS = 2.0
"""Most tokens of a likely turn, as a multiple of the expert's action with THOUGHT_TOKENS."""
THOUGHT_TOKENS = 50
"""Assumed tokens of a thought before an action, if the action format asks for thoughts."""


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


def likely_work(
    experiment: Experiment, episodes: int, horizon: int, expert: Sequence[ExpertEpisode]
) -> Work:
    """Estimate the likely turns and tokens of a number of episodes under a horizon.

    Episodes have 1 to LIKELY_TURNS times the expert's turns, up to the horizon, and turns 1 to
    LIKELY_TOKENS times the expert's tokens. Prompts are not counted: a group's is computed once.
    Without an expert the result is that of `work`. For the arguments see there.
    """
    if not expert:
        return work(experiment, episodes, horizon, expert)
    thought = THOUGHT_TOKENS if experiment.policy.action_format == "react" else 0
    ends = []
    for longer, wordier in ((1.0, 1.0), (LIKELY_TURNS, LIKELY_TOKENS)):
        totals = [0.0, 0.0, 0.0]
        for each in expert:
            length = max(1, each.turns)
            turns = min(float(horizon), longer * length)
            action = wordier * (each.actions / CHARACTERS_PER_TOKEN / length + thought)
            written = turns * min(action, experiment.rollout.turn_tokens)
            read = (each.characters - each.actions) / CHARACTERS_PER_TOKEN * turns / length
            tokens = min(written + read, experiment.rollout.trajectory_tokens)
            for at, amount in enumerate((turns, min(written, tokens), tokens)):
                totals[at] += amount * episodes / len(expert)
        ends.append([round(total) for total in totals])
    least, most = ends
    pairs = [(least[at], most[at]) for at in range(3)]
    return Work(episodes, *pairs)


def phase_episodes(experiment: Experiment, phase: Phase) -> int:
    """Return the number of training episodes of a phase, without dynamic-sampling retries."""
    per_step = experiment.rollout.tasks_per_step * experiment.rollout.group_size
    return per_step * (phase.end_step - phase.first_step)
