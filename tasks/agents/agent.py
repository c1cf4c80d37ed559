"""The contract of who plays: anything that reads an observation and answers with a message.

A language model behind an engine (`token_policy`), a chat endpoint that shows text alone (`chat_policy`), a world's expert
(`oracle_policy`): an episode does not know which of them it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """What a policy says in one turn.

    Attributes:
        text: Its text, without special tokens.
        action: What the text tells the environment to do; None when no action can be read from it.
        problem: Why not: what the policy is answered in the environment's place.
        tokens: Its token ids; empty when the policy has none.
        log_probabilities: As sampled, one per token; NaN where the policy does not tell.
        policy_version: Training step of the weights that wrote it.
        cut: The budget that ended the message before the policy did, e.g. "rollout.turn_tokens"; empty otherwise.
    """

    text: str
    action: str | None
    problem: str = ""
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    policy_version: int = 0
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Budgets:
    """What an episode may use.

    Attributes:
        temperature: Sampling temperature; 0 is greedy.
        turn_tokens: Most tokens of one message.
        trajectory_tokens: Most tokens of the whole trajectory.
    """

    temperature: float
    turn_tokens: int
    trajectory_tokens: int


class TokenBudgetError(Exception):
    """There is no room for another message. The text names the budget."""


class Conversation(Protocol):
    """One episode of a policy.

    Attributes:
        prompt: Token ids before the first message; empty when the policy has none.
    """

    prompt: list[int]

    async def speak(self, turn: int) -> Message:
        """The policy's message of this turn, counted from 0.

        Raises:
            EngineError: No answer could be had.
            TokenBudgetError: There is no room for one.
        """
        ...

    def recall(self, message: Message) -> None:
        """Takes a message that was written before for its own, in place of `speak`: so an episode can go on where another one stood."""
        ...

    async def hear(self, observation: str) -> list[int]:
        """Takes in what answers the last message; returns the token ids that carry it, shape (R,), empty when the policy has none.

        Raises:
            EngineError: The policy cannot go on.
            TokenBudgetError: It leaves no room for another message.
        """
        ...

    async def close(self) -> None:
        """Frees what the episode holds."""
        ...


class Policy(Protocol):
    """Who plays."""

    @property
    def name(self) -> str:
        """For the records, e.g. "vllm"."""
        ...

    @property
    def version(self) -> int:
        """Training step of its present weights."""
        ...

    @property
    def kv_cache_tokens(self) -> int | None:
        """Tokens of conversations that it holds at once at no cost; None where that bounds nothing."""
        ...

    async def begin(self, task: int, seed: int, observation: str, budgets: Budgets) -> Conversation:
        """Begins an episode with the environment's first observation.

        Raises:
            EngineError: It cannot.
        """
        ...
