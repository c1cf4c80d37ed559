"""The context of an episode: the tokens before the next message, and what becomes of earlier turns."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.agents.chat_format import ChatFormat
from tasks.agents.observation_cut import cut_to_fit

DROPPED = "[observation dropped]"
"""What an observation is replaced by if the chat format compacts the context."""


class History:
    """The tokens before the next message.

    They are those before the last message, the message, and its answer, unless the chat format
    rewrites earlier turns or compacts the context. Then another row of training may begin.

    Attributes:
        tokens: The token ids.
        begins_row: Whether they do not begin with the tokens before the last message and the
            message itself.
    """

    def __init__(self, chat_format: ChatFormat, observation: str) -> None:
        """Begin with the prompt of the first observation."""
        self._chat_format = chat_format
        self._observation = observation
        self._messages: list[Sequence[int]] = []
        self._answers: list[str] = []
        self.tokens = chat_format.prompt(observation)
        self.begins_row = False

    def add(
        self,
        message: Sequence[int],
        observation: str,
        length: int | None = None,
        turn_tokens: int = 0,
    ) -> list[int]:
        """Take in a message and its answer.

        Args:
            message: Token ids of the message.
            observation: The answer. Lines of it are left out if the next message would otherwise
                have too few tokens.
            length: Maximum tokens of the context. None for no limit.
            turn_tokens: Tokens to leave for the next message.

        Returns:
            The token ids that follow the message. Empty if another row begins.
        """
        before = [*self.tokens, *message]
        self._messages.append(message)
        self._answers.append(observation)
        if self._chat_format.rewrites:
            self.tokens = self._written()
        else:
            self.tokens = [*before, *self._chat_format.reply(observation, message)]
        if (
            length is not None
            and self._chat_format.compacts
            and len(self.tokens) + turn_tokens > length
        ):
            self._compact(length // 2)
        if length is not None and len(self.tokens) + turn_tokens > length:
            self._shorten(length - turn_tokens)
        self.begins_row = self.tokens[: len(before)] != before
        return [] if self.begins_row else self.tokens[len(before) :]

    def _written(self) -> list[int]:
        """Return the tokens of the whole conversation."""
        form = self._chat_format
        if form.rewrites:
            return form.conversation(
                self._observation,
                list(zip(map(form.text, self._messages), self._answers, strict=True)),
            )
        turns = zip(self._messages, self._answers, strict=True)
        return [
            *form.prompt(self._observation),
            *(token for m, answer in turns for token in (*m, *form.reply(answer, m))),
        ]

    def _compact(self, length: int) -> None:
        """Drop the oldest answers but the last until the context has at most this length."""
        for place in range(len(self._answers) - 1):
            if len(self.tokens) <= length:
                return
            self._answers[place] = DROPPED
            self.tokens = self._written()

    def _shorten(self, length: int) -> None:
        """Leave out lines of the last answer, if the context then has at most this length."""

        def tokens(text: str) -> int:
            return len(self._chat_format.reply(text, self._messages[-1]))

        answer = self._answers[-1]
        shorter = cut_to_fit(answer, length - len(self.tokens) + tokens(answer), tokens)
        if shorter is not None:
            self._answers[-1] = shorter
            self.tokens = self._written()
