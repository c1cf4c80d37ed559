"""The contract of an agent: it reads observations and answers each with a message.

The implementations are a language model behind an engine (`token_agent`), a text-only chat endpoint
(`chat_agent`) and a world's expert (`scripted_agent`). An episode treats them all alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """An agent's message of one turn.

    Attributes:
        text: Its text, without special tokens.
        action: Action read from the text. None if the text holds no readable action.
        problem: Error text if there is no action. The agent gets it as its observation.
        tokens: Token ids. Empty for an agent without tokens.
        log_probabilities: One per token, as sampled. NaN if the agent does not report them.
        policy_version: Training step of the oldest weights that wrote it.
        cut: Budget that cut the message, e.g. "rollout.turn_tokens". Empty if it was not cut.
        context: Token ids before the message if earlier turns were written again. Empty: those of
            the earlier turns.
    """

    text: str
    action: str | None
    problem: str = ""
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    policy_version: int = 0
    cut: str = ""
    context: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Sampling temperature and token budgets of an episode.

    Attributes:
        temperature: Sampling temperature. 0 is greedy.
        turn_tokens: Maximum tokens of one message.
        trajectory_tokens: Maximum tokens of the whole trajectory.
    """

    temperature: float
    turn_tokens: int
    trajectory_tokens: int


class TokenBudgetError(Exception):
    """There is no room for another message. The text names the budget."""


class NoActionError(Exception):
    """The policy has no action for this state. The text gives the reason.

    This is a failure of the policy, not of the infrastructure.
    """


class Conversation(Protocol):
    """One episode of an agent.

    Attributes:
        prompt: Token ids before the first message. Empty for an agent without tokens.
    """

    prompt: list[int]

    async def act(self, turn: int) -> Message:
        """Return the agent's message of this turn, counted from 0.

        Raises:
            EngineError: The engine gave no answer.
            TokenBudgetError: There is no room for a message.
            NoActionError: A scripted policy has no action.
        """
        ...

    def recall(self, message: Message) -> None:
        """Record an earlier message as the agent's own instead of calling `act`.

        This lets an episode continue from the state of another one.
        """
        ...

    async def observe(self, observation: str) -> list[int]:
        """Take in the environment's answer to the last message.

        Returns:
            The token ids that carry the answer, shape (R,). Empty for an agent without tokens, and
            if the next message has a `context` of its own.

        Raises:
            EngineError: The agent cannot continue.
            TokenBudgetError: The answer leaves no room for another message.
        """
        ...

    async def close(self) -> None:
        """Free the resources of the episode."""
        ...


class Agent(Protocol):
    """An agent that plays episodes."""

    @property
    def name(self) -> str:
        """Name for the records."""
        ...

    @property
    def version(self) -> int:
        """Training step of the current weights."""
        ...

    @property
    def kv_cache_tokens(self) -> int | None:
        """Number of conversation tokens that can be cached at once, None for no limit."""
        ...

    @property
    def out_of_process(self) -> bool:
        """Whether the agent generates outside this process."""
        ...

    @property
    def progress(self) -> int | None:
        """Counter that grows while messages are written, None if it cannot be observed."""
        ...

    async def begin(self, task: int, seed: int, observation: str, budgets: Budgets) -> Conversation:
        """Begin an episode with the environment's first observation.

        Raises:
            EngineError: The engine cannot begin an episode.
        """
        ...
