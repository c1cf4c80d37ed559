"""A language model behind an engine: token in, token out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.agents.action_format import MalformedActionError
from tasks.agents.agent import Budgets, Message, TokenBudgetError
from tasks.agents.chat_format import ChatFormat, of_task
from tasks.agents.history import History
from tasks.agents.observation_cut import cut_to_fit
from tasks.agents.sampling_seeds import stable_seed
from tasks.inference.engine import Engine, EngineError, Sampling


@dataclass(frozen=True, slots=True)
class TokenAgent:
    """An `Agent` whose messages are sampled by an engine and rendered by a chat format.

    Attributes:
        chat_formats: The chat format of each world of a mixture, in its order, or one for all.
    """

    engine: Engine
    chat_formats: Sequence[ChatFormat]

    @property
    def name(self) -> str:
        """Name of the engine."""
        return self.engine.name

    @property
    def version(self) -> int:
        """Training step of the engine's current weights."""
        return self.engine.policy_version

    @property
    def kv_cache_tokens(self) -> int | None:
        """Capacity of the engine's KV cache in tokens."""
        return self.engine.kv_cache_tokens

    @property
    def out_of_process(self) -> bool:
        """Whether the engine runs outside this process."""
        return self.engine.out_of_process

    @property
    def progress(self) -> int | None:
        """Progress counter of the engine."""
        return self.engine.progress

    async def begin(
        self, task: int, seed: int, observation: str, budgets: Budgets
    ) -> TokenConversation:
        """Begin an episode, as in `Agent.begin`."""
        length, _ = _limit(self.engine, budgets)
        chat_format = of_task(self.chat_formats, task)
        prompt = chat_format.prompt(observation)
        if len(prompt) + budgets.turn_tokens > length:
            shorter = cut_to_fit(
                observation,
                length - budgets.turn_tokens,
                lambda text: len(chat_format.prompt(text)),
            )
            observation = observation if shorter is None else shorter
        return TokenConversation(self.engine, chat_format, seed, observation, budgets)


class TokenConversation:
    """One episode of a `TokenAgent`.

    Its context only grows, so the engine's prefix cache serves every later turn, unless the chat
    format rewrites earlier turns or compacts the context.
    """

    def __init__(
        self,
        engine: Engine,
        chat_format: ChatFormat,
        seed: int,
        observation: str,
        budgets: Budgets,
    ) -> None:
        """Start with the first observation."""
        self._engine = engine
        self._chat_format = chat_format
        self._seed = seed
        self._budgets = budgets
        self._history = History(chat_format, observation)
        self.prompt = self._history.tokens
        self._last: list[int] = []

    async def act(self, turn: int) -> Message:
        """Sample a message with its own seed, as in `Conversation.act`.

        The first message must have room for `rollout.turn_tokens`. Otherwise it is an
        `EngineError`: the budgets would end it, and not the policy. Later messages get what is
        left.
        """
        engine, chat_format, budgets = self._engine, self._chat_format, self._budgets
        length, limit = _limit(engine, budgets)
        room = length - len(self._history.tokens)
        if turn == 0 and room < budgets.turn_tokens:
            raise EngineError(
                f"rollout.turn_tokens: {budgets.turn_tokens} tokens for the first message of an "
                f"episode and {len(self._history.tokens)} for its prompt exceed the {limit} of "
                f"{length} tokens; lower the first, raise the last, or shorten "
                "environment.instruction"
            )
        if room < 1:
            raise TokenBudgetError(limit)
        sampling = Sampling(
            temperature=budgets.temperature,
            max_tokens=min(budgets.turn_tokens, room),
            stop_tokens=chat_format.stop_tokens,
            seed=stable_seed(self._seed, turn),
        )
        generation = await engine.generate(self._history.tokens, sampling, self)
        self._last = generation.tokens
        cut = ""
        if generation.tokens[-1] not in chat_format.stop_tokens:
            cut = "rollout.turn_tokens" if budgets.turn_tokens <= room else limit
        text = chat_format.text(generation.tokens)
        try:
            action, problem = chat_format.action_in(text), ""
        except MalformedActionError as malformed:
            action, problem = None, str(malformed)
        context = list(self._history.tokens) if self._history.begins_row else []
        return Message(
            text,
            action,
            problem,
            generation.tokens,
            generation.log_probabilities,
            generation.policy_version,
            cut,
            context,
        )

    def recall(self, message: Message) -> None:
        """Record an earlier message, as in `Conversation.recall`.

        A message without tokens, by another agent, is encoded by the chat format.
        """
        self._last = message.tokens or self._chat_format.message(message.text)

    async def observe(self, observation: str) -> list[int]:
        """Append the last message and the observation, as in `Conversation.observe`."""
        length, limit = _limit(self._engine, self._budgets)
        reply = self._history.add(self._last, observation, length, self._budgets.turn_tokens)
        if len(self._history.tokens) >= length:
            raise TokenBudgetError(limit)
        return reply

    async def close(self) -> None:
        """Do nothing: the episode holds no resources."""


def _limit(engine: Engine, budgets: Budgets) -> tuple[int, str]:
    """Return the maximum number of context tokens and the name of the limit."""
    if budgets.trajectory_tokens <= engine.context_length:
        return budgets.trajectory_tokens, "rollout.trajectory_tokens"
    return engine.context_length, f"context length of the engine ({engine.context_length})"
