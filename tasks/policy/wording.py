"""Token ids for policies that have only text: what they said, as the policy that will learn from it would have written it."""

from __future__ import annotations

import math
from typing import Literal

from tasks.policy.dialogue import Dialogue, MalformedAction, read_action
from tasks.policy.policy import Message

Form = Literal["react", "bare"]


class Wording:
    """The tokens of one episode's texts, in order; none without a dialogue."""

    def __init__(self, dialogue: Dialogue | None, form: Form, observation: str) -> None:
        """
        Args:
            dialogue: Chat template and tokenizer of the policy that is to learn from the episode.
            form: Form of a message.
            observation: The first observation.
        """
        self._dialogue = dialogue
        self._form: Form = form
        self._last: list[int] = []
        self.prompt = dialogue.prompt(observation) if dialogue else []

    def message(self, text: str, cut: str = "") -> Message:
        """A message that says `text`; `cut` is the budget that ended it, if one did."""
        tokens = self._dialogue.message(text) if self._dialogue else []
        if cut:
            tokens = tokens[:-1]  # it was not the policy that ended the turn
        self._last = tokens
        try:
            action, problem = read_action(text, self._form), ""
        except MalformedAction as malformed:
            action, problem = None, str(malformed)
        return Message(text, action, problem, tokens, [math.nan] * len(tokens), cut=cut)

    def reply(self, observation: str) -> list[int]:
        """The tokens that carry an observation to the next message."""
        return self._dialogue.reply(observation, self._last) if self._dialogue else []
