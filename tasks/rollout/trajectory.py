"""Trajectories: what an episode leaves behind, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How an episode ended."""

    SUCCESS = "success"
    """The world ended it and the rewards add up to 1."""
    FINISHED = "finished"
    """The world ended it short of success."""
    TRUNCATED = "truncated"
    """The horizon or a token budget cut it, or a script knew no further action; the rewards so far count."""
    FAILED = "failed"
    """Infrastructure broke it: never learned from, never scored."""


@dataclass(slots=True)
class Turn:
    """One message of the policy and what answered it.

    Attributes:
        tokens: Token ids that the policy wrote, end-of-turn token included when it wrote one; empty for a policy without any.
        log_probabilities: Their natural-log probabilities under the sampling distribution, as sampled; same length. NaN where the
            policy does not tell (the oracle, a chat endpoint): such turns can be imitated, not reinforced.
        action: The text that went to the environment.
        observation: What came back.
        observation_tokens: Token ids that carry the observation to the next turn; empty when no turn follows.
        reward: What the action earned.
        malformed: Whether no action could be read from the message (the environment was then not asked).
        refused: Whether the world did not carry out the action; see `environments.environment.Step`. None where its server does not
            say.
        generate_seconds: Wall time from asking the engine to its answer.
        environment_seconds: Wall time of the environment's answer.
        message: The text of what the policy wrote, without special tokens.
        policy_version: Training step of the weights that wrote it.
        cut: The budget that ended the message before the policy did, e.g. "rollout.turn_tokens"; empty otherwise.
        state_key: The world's digest of the state that the turn began in; empty where the world tells none.
        began: When the engine was asked, in seconds since 1970; 0 where it was not recorded. `generate_seconds` and `environment_seconds`
            follow it, one after the other.
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


@dataclass(slots=True)
class Trajectory:
    """One episode.

    Attributes:
        environment: Name of the world.
        task: Task index.
        group: Which group of the batch it belongs to.
        member: Its place in the group.
        seed: Seed of its sampling.
        horizon: Turn limit it ran under.
        policy_version: Training step of the weights with which it began; each turn has its own.
        engine: What generated it, e.g. "vllm".
        prompt: Token ids before the first turn.
        first_observation: The text behind the prompt.
        turns: The turns in order.
        outcome: How it ended.
        reason: What cut or broke it, e.g. "horizon"; empty otherwise.
        attempts: Attempts made, failed ones included.
        seconds: Wall time of the last attempt.
        began: When the last attempt began, in seconds since 1970; 0 where it was not recorded.
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
        """The episode's score: the sum of its turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def succeeded(self) -> bool:
        """Whether the world ended the episode with the full score."""
        return self.outcome is Outcome.SUCCESS

    @property
    def completion(self) -> list[int]:
        """Token ids after the prompt: the policy's and the environment's, in order. Shape (T,)."""
        return [token for turn in self.turns for token in (*turn.tokens, *turn.observation_tokens)]

    @property
    def policy_mask(self) -> list[int]:
        """1 where the policy wrote the token of `completion`, 0 where the environment did. Shape (T,)."""
        return [bit for turn in self.turns for bit in (*[1] * len(turn.tokens), *[0] * len(turn.observation_tokens))]

    @property
    def log_probabilities(self) -> list[float]:
        """Log-probabilities of `completion` as sampled, 0.0 on the environment's tokens. Shape (T,)."""
        return [x for turn in self.turns for x in (*turn.log_probabilities, *[0.0] * len(turn.observation_tokens))]

    def sampled_under(self, version: int) -> list[bool]:
        """Whether the policy wrote the token of `completion` with the weights of this version. Shape (T,)."""
        return [
            bit
            for turn in self.turns
            for bit in (*[turn.policy_version == version] * len(turn.tokens), *[False] * len(turn.observation_tokens))
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
    """The share of the turns whose action the world refused, of those whose server says; nan where none does."""
    known = [turn.refused for turn in turns if turn.refused is not None]
    return sum(known) / len(known) if known else math.nan


def staleness(trajectories: Sequence[Trajectory], step: int) -> list[int]:
    """How many training steps older than `step` the weights of each policy token are, in order. Shape (policy tokens,)."""
    return [step - turn.policy_version for t in trajectories for turn in t.turns for _ in turn.tokens]
