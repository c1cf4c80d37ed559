"""Retokenisation: messages of agents that have only text, in the token ids of the policy that will learn from them."""

from __future__ import annotations

import math

from tasks.agents.action_format import ActionFormat, MalformedActionError, read_action
from tasks.agents.agent import Message
from tasks.agents.chat_format import ChatFormat


class Retokenisation:
    """The tokens of one episode's texts, in order; none without a chat format."""

    def __init__(self, chat_format: ChatFormat | None, action_format: ActionFormat, observation: str) -> None:
        """
        Args:
            chat_format: Chat template and tokenizer of the policy that is to learn from the episode.
            action_format: How a message says its action.
            observation: The first observation.
        """
        self._chat_format = chat_format
        self._action_format: ActionFormat = action_format
        self._last: list[int] = []
        self.prompt = chat_format.prompt(observation) if chat_format else []

    def message(self, text: str, cut: str = "") -> Message:
        """A message that says `text`; `cut` is the budget that ended it, if one did."""
        tokens = self._chat_format.message(text) if self._chat_format else []
        if cut:
            tokens = tokens[:-1]  # it was not the policy that ended the turn
        self._last = tokens
        try:
            action, problem = (self._chat_format.action_in(text) if self._chat_format else read_action(text, self._action_format)), ""
        except MalformedActionError as malformed:
            action, problem = None, str(malformed)
        return Message(text, action, problem, tokens, [math.nan] * len(tokens), cut=cut)

    def reply(self, observation: str) -> list[int]:
        """The tokens that carry an observation to the next message."""
        return self._chat_format.reply(observation, self._last) if self._chat_format else []
