"""Trajectories: the token-level record of an episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Outcome(StrEnum):
    """Outcome of an episode."""

    SUCCESS = "success"
    """The world ended the episode and the rewards reach the success score (default 1)."""
    FINISHED = "finished"
    """The world ended the episode below the success score."""
    TRUNCATED = "truncated"
    """The horizon, a token budget or a script without an action ended it. Rewards so far count."""
    FAILED = "failed"
    """Infrastructure failed. The episode is never used for training or scoring."""


@dataclass(slots=True)
class Turn:
    """One message of the policy and the environment's answer.

    Attributes:
        tokens: Token ids that the policy wrote, including an end-of-turn token if it wrote one.
            Empty for a policy without tokens.
        log_probabilities: Natural-log probabilities of `tokens` under the sampling distribution, as
            sampled, same length. NaN if the policy does not report them (the oracle, a chat
            endpoint): such turns are usable for behaviour cloning, but not for RL.
        action: Text sent to the environment.
        observation: The environment's answer.
        observation_tokens: Token ids that carry the observation to the next turn. Empty if no turn
            follows.
        reward: Reward of the action.
        malformed: Whether the message holds no readable action. The environment was then not
            called.
        refused: Whether the world did not carry out the action, see
            `environments.environment.Step`. None if its server does not report it.
        generate_seconds: Wall time from the request to the engine to its answer.
        environment_seconds: Wall time of the environment's answer.
        message: Text of the policy's message, without special tokens.
        policy_version: Training step of the oldest weights that wrote it.
        cut: Budget that cut the message, e.g. "rollout.turn_tokens". Empty if it was not cut.
        state_key: The world's digest of the state at the start of the turn. Empty if the world
            provides none.
        began: Time of the request to the engine, in seconds since 1970. 0 if it was not recorded.
            `generate_seconds` starts then, and `environment_seconds` follows it.
        context: Token ids before the message if the chat template wrote earlier turns again. Empty:
            those of the earlier turns. See `Trajectory.rows`.
    """

    tokens: list[int]
    log_probabilities: list[float]
    action: str
    observation: str = ""
    observation_tokens: list[int] = field(default_factory=list)
    reward: float = 0.0
    malformed: bool = False
    refused: bool | None = False
    generate_seconds: float = 0.0
    environment_seconds: float = 0.0
    message: str = ""
    policy_version: int = 0
    cut: str = ""
    state_key: str = ""
    began: float = 0.0
    context: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Trajectory:
    """One episode.

    Attributes:
        environment: Name of the world.
        group: Index of its group in the batch.
        member: Index within the group.
        seed: Seed for sampling.
        horizon: Maximum number of turns.
        policy_version: Training step of the weights at the start. Each turn has its own version.
        engine: Engine or agent that generated it, e.g. "vllm".
        prompt: Token ids before the first turn.
        first_observation: Text of the environment's first observation.
        turns: The turns in order.
        outcome: Outcome of the episode.
        reason: What cut or broke it, e.g. "horizon". Empty otherwise.
        attempts: Number of attempts, including failed ones.
        seconds: Wall time of the last attempt.
        began: Start of the last attempt, in seconds since 1970. 0 if it was not recorded.
    """

    environment: str
    task: int
    group: int
    member: int
    seed: int
    horizon: int
    policy_version: int
    engine: str
    prompt: list[int] = field(default_factory=list)
    first_observation: str = ""
    turns: list[Turn] = field(default_factory=list)
    outcome: Outcome = Outcome.FAILED
    reason: str = ""
    attempts: int = 1
    seconds: float = 0.0
    began: float = 0.0

    @property
    def reward(self) -> float:
        """Score of the episode: the sum of its turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def succeeded(self) -> bool:
        """Whether the world ended the episode with a success."""
        return self.outcome is Outcome.SUCCESS

    @property
    def rows(self) -> list[Trajectory]:
        """The episode as sequences of tokens, each with the context that its messages were sampled in.

        A row begins at each turn with a context of its own, which is then its prompt. The
        completions of the rows in order are the completion of the episode.
        """
        starts = [0, *(i for i, turn in enumerate(self.turns) if i and turn.context)]
        if len(starts) == 1:
            return [self]
        parts = [
            self.turns[begin:end] for begin, end in zip(starts, [*starts[1:], None], strict=True)
        ]
        return [
            replace(self, turns=part, prompt=part[0].context if i else self.prompt)
            for i, part in enumerate(parts)
        ]

    @property
    def completion(self) -> list[int]:
        """Token ids after the prompt, of policy and environment in order. Shape (T,)."""
        return [token for turn in self.turns for token in (*turn.tokens, *turn.observation_tokens)]

    @property
    def policy_mask(self) -> list[int]:
        """1 for the policy's tokens of `completion`, 0 for the environment's. Shape (T,)."""
        return self._by_token(lambda turn: [1] * len(turn.tokens), 0)

    @property
    def log_probabilities(self) -> list[float]:
        """Log-probabilities of `completion` as sampled, 0.0 for environment tokens. Shape (T,)."""
        return self._by_token(lambda turn: turn.log_probabilities, 0.0)

    def sampled_under(self, version: int) -> list[bool]:
        """Whether each token of `completion` was sampled under this version. Shape (T,)."""
        return self._by_token(
            lambda turn: [turn.policy_version == version] * len(turn.tokens), False
        )

    def _by_token(self, of_policy: Callable[[Turn], list[T]], of_environment: T) -> list[T]:
        """Return a value for each token of `completion`. Shape (T,)."""
        return [
            value
            for turn in self.turns
            for value in (*of_policy(turn), *[of_environment] * len(turn.observation_tokens))
        ]

    @property
    def turn_ends(self) -> list[int]:
        """Index in `completion` of each turn's last policy token. Shape (number of turns,)."""
        ends, position = [], 0
        for turn in self.turns:
            ends.append(position + len(turn.tokens) - 1)
            position += len(turn.tokens) + len(turn.observation_tokens)
        return ends


def refused_share(turns: Sequence[Turn]) -> float:
    """Return the fraction of turns whose action the world refused.

    Turns whose server does not report refusals are left out. NaN if no turn remains.
    """
    known = [turn.refused for turn in turns if turn.refused is not None]
    return sum(known) / len(known) if known else math.nan


def staleness(trajectories: Sequence[Trajectory], step: int) -> list[int]:
    """Return for each policy token how many steps its weights are older than `step`.

    The order is that of the trajectories and their turns. Shape (policy tokens,).
    """
    return [
        step - turn.policy_version for t in trajectories for turn in t.turns for _ in turn.tokens
    ]
