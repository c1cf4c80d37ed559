"""The contract of an agent: it reads observations and answers each with a message.

A language model behind an engine (`token_agent`), a chat endpoint that shows text alone (`chat_agent`), a world's expert
(`scripted_agent`): an episode does not know which of them it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """What an agent says in one turn.

    Attributes:
        text: Its text, without special tokens.
        action: What the text tells the environment to do; None when no action can be read from it.
        problem: Why not: the observation that the agent gets in the environment's place.
        tokens: Its token ids; empty when the agent has none.
        log_probabilities: As sampled, one per token; NaN where the agent does not tell.
        policy_version: Training step of the weights that wrote it.
        cut: The budget that ended the message before the agent did, e.g. "rollout.turn_tokens"; empty otherwise.
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


class NoActionError(Exception):
    """The policy knows no action from here: its own failure, not one of the infrastructure. The text says why."""


class Conversation(Protocol):
    """One episode of an agent.

    Attributes:
        prompt: Token ids before the first message; empty when the agent has none.
    """

    prompt: list[int]

    async def act(self, turn: int) -> Message:
        """The agent's message of this turn, counted from 0.

        Raises:
            EngineError: No answer could be had.
            TokenBudgetError: There is no room for one.
            NoActionError: A script knows none.
        """
        ...

    def recall(self, message: Message) -> None:
        """Takes a message that was written before for its own, in place of `act`: so an episode can go on where another one stood."""
        ...

    async def observe(self, observation: str) -> list[int]:
        """Takes in the answer to the last message; returns the token ids that carry it, shape (R,), empty when the agent has none.

        Raises:
            EngineError: The agent cannot go on.
            TokenBudgetError: It leaves no room for another message.
        """
        ...

    async def close(self) -> None:
        """Frees what the episode holds."""
        ...


class Agent(Protocol):
    """Who plays.

    Attributes:
        name: For the records, e.g. "vllm".
        version: Training step of its present weights.
        kv_cache_tokens: Tokens of conversations that it holds at once at no cost; None where that bounds nothing.
        out_of_process: Whether it generates outside this process, and so may go on while the trainer updates.
        progress: Grows while its messages are written; stands still while nothing is. None where that cannot be seen.
    """

    @property
    def name(self) -> str:
        """See above."""
        ...

    @property
    def version(self) -> int:
        """See above."""
        ...

    @property
    def kv_cache_tokens(self) -> int | None:
        """See above."""
        ...

    @property
    def out_of_process(self) -> bool:
        """See above."""
        ...

    @property
    def progress(self) -> int | None:
        """See above."""
        ...

    async def begin(self, task: int, seed: int, observation: str, budgets: Budgets) -> Conversation:
        """Begins an episode with the environment's first observation.

        Raises:
            EngineError: It cannot.
        """
        ...
