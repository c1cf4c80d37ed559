"""Retokenisation: encode text-only messages in the token ids of the policy trained on them."""

from __future__ import annotations

import math

from tasks.agents.action_format import ActionFormat, MalformedActionError, read_action
from tasks.agents.agent import Message
from tasks.agents.chat_format import ChatFormat


class Retokenisation:
    """Encodes the texts of one episode in order. Without a chat format there are no tokens."""

    def __init__(self, chat_format: ChatFormat | None, action_format: ActionFormat, observation: str) -> None:
        """Encode the prompt.

        Args:
            chat_format: Chat template and tokenizer of the policy that is trained on the episode.
            action_format: Format in which a message gives its action.
            observation: The first observation.
        """
        self._chat_format = chat_format
        self._action_format: ActionFormat = action_format
        self._last: list[int] = []
        self.prompt = chat_format.prompt(observation) if chat_format else []

    def message(self, text: str, cut: str = "") -> Message:
        """Return the message with this text. `cut` names the budget that ended it, if any."""
        tokens = self._chat_format.message(text) if self._chat_format else []
        if cut:
            tokens = tokens[:-1]  # the policy did not end the turn
        self._last = tokens
        try:
            action, problem = (self._chat_format.action_in(text) if self._chat_format else read_action(text, self._action_format)), ""
        except MalformedActionError as malformed:
            action, problem = None, str(malformed)
        return Message(text, action, problem, tokens, [math.nan] * len(tokens), cut=cut)

    def reply(self, observation: str) -> list[int]:
        """Return the tokens that carry an observation to the next message."""
        return self._chat_format.reply(observation, self._last) if self._chat_format else []
