"""A language model behind an engine: token in, token out."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.agents.agent import Budgets, Message, TokenBudgetError
from tasks.agents.chat_format import ChatFormat, MalformedActionError
from tasks.agents.sampling_seeds import stable_seed
from tasks.inference.engine import Engine, Sampling


@dataclass(frozen=True, slots=True)
class TokenAgent:
    """A `Policy` that an engine samples and a dialogue puts into words."""

    engine: Engine
    dialogue: ChatFormat

    @property
    def name(self) -> str:
        """The engine's."""
        return self.engine.name

    @property
    def version(self) -> int:
        """Training step of the engine's present weights."""
        return self.engine.policy_version

    @property
    def kv_cache_tokens(self) -> int | None:
        """What the engine's KV cache holds."""
        return self.engine.kv_cache_tokens

    async def begin(self, task: int, seed: int, observation: str, budgets: Budgets) -> TokenConversation:
        """Begins an episode; see `Policy.begin`."""
        return TokenConversation(self, seed, self.dialogue.prompt(observation), budgets)


class TokenConversation:
    """One episode of a `TokenAgent`; its context only grows, so that the engine's prefix cache serves every later turn."""

    def __init__(self, policy: TokenAgent, seed: int, prompt: list[int], budgets: Budgets) -> None:
        """`prompt` holds the token ids before the first message."""
        self.prompt = prompt
        self._policy = policy
        self._seed = seed
        self._budgets = budgets
        self._context = list(prompt)
        self._last: list[int] = []

    async def speak(self, turn: int) -> Message:
        """Samples a message with a seed of its own; see `Conversation.speak`."""
        engine, dialogue, budgets = self._policy.engine, self._policy.dialogue, self._budgets
        length, limit = self._limit()
        room = length - len(self._context)
        if room < 1:
            raise TokenBudgetError(limit)
        sampling = Sampling(
            temperature=budgets.temperature,
            max_tokens=min(budgets.turn_tokens, room),
            stop_tokens=dialogue.stop_tokens,
            seed=stable_seed(self._seed, turn),
        )
        generation = await engine.generate(self._context, sampling, self)
        self._last = generation.tokens
        cut = ""
        if generation.tokens[-1] not in dialogue.stop_tokens:
            cut = "rollout.turn_tokens" if budgets.turn_tokens <= room else limit
        text = dialogue.text(generation.tokens)
        try:
            action, problem = dialogue.action_in(text), ""
        except MalformedActionError as malformed:
            action, problem = None, str(malformed)
        return Message(text, action, problem, generation.tokens, generation.log_probabilities, generation.policy_version, cut)

    def recall(self, message: Message) -> None:
        """See `Conversation.recall`. A message without tokens, by another agent, gets those that this one would have written."""
        self._last = message.tokens or self._policy.dialogue.message(message.text)

    async def hear(self, observation: str) -> list[int]:
        """Appends the last message and the observation to the context; see `Conversation.hear`."""
        reply = self._policy.dialogue.reply(observation, self._last)
        self._context += self._last
        self._context += reply
        length, limit = self._limit()
        if len(self._context) >= length:
            raise TokenBudgetError(limit)
        return reply

    async def close(self) -> None:
        """Nothing is held."""

    def _limit(self) -> tuple[int, str]:
        """Most tokens of the context, and what sets it."""
        engine = self._policy.engine
        if self._budgets.trajectory_tokens <= engine.context_length:
            return self._budgets.trajectory_tokens, "rollout.trajectory_tokens"
        return engine.context_length, f"context length of the engine ({engine.context_length})"
