"""Conversations of a chat client as token ids.

The first request of a conversation is rendered by the chat template. In every later request the
policy's own answers stay the tokens that it sampled. Only the text after the last answer is
encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from configs.experiment import Thinking
from tasks.agents.chat_format import ChatFormat, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class UnsuitableMessagesError(ValueError):
    """The chat template cannot render the messages. The text gives the template's reason."""


class ChatTokens(ChatFormat):
    """The chat template of a policy that answers the requests of a chat client."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        thinking: Thinking = "keep",
    ) -> None:
        """Check the chat template, as `ChatFormat` does.

        With `thinking` "strip" every call begins a row, whose earlier answers the template writes.
        """
        super().__init__(
            tokenizer, "bare", None, chat_template_kwargs=chat_template_kwargs, thinking=thinking
        )

    def pieces(
        self, messages: Sequence[Message], answers: Collection[int], *, opens_answer: bool = True
    ) -> tuple[str, ...]:
        """Render the messages, and split the text at the policy's answers.

        Args:
            messages: The messages of a request.
            answers: Indices of the messages that the policy wrote.
            opens_answer: Whether the text ends with the start of the next answer. Otherwise it ends
                with the last message.

        Returns:
            The text before, between and after the answers. Messages that contain special tokens are
            replaced by marks, see `tokens`.

        Raises:
            UnsuitableMessagesError: The chat template does not accept the messages.
        """
        shown = [
            {
                **message,
                "content": _answer(i)
                if i in answers
                else _content(i)
                if self._is_marked(message)
                else message["content"],
            }
            for i, message in enumerate(messages)
        ]
        try:
            text = self._render(
                [
                    self._spoken(each["content"]) if each["role"] == "assistant" else each
                    for each in shown
                ],
                opens_answer,
            )
        except TemplateError as problem:
            raise UnsuitableMessagesError(
                f"the chat template does not accept these messages: {problem}"
            ) from problem
        pieces = list[str]()
        for place in sorted(answers):
            if text.count(_answer(place)) != 1:
                raise UnsuitableMessagesError(
                    f"the chat template does not show message {place} exactly once"
                )
            piece, _, text = text.partition(_answer(place))
            pieces.append(piece)
        return (*pieces, text)

    def tokens(
        self, piece: str, messages: Sequence[Message], last_tokens: Sequence[int] | None = None
    ) -> list[int]:
        """Encode a piece of a rendered conversation.

        Special tokens in the text of a message are encoded as ordinary characters, so a message
        cannot forge the end of a turn.

        Args:
            piece: One of `pieces`.
            messages: The messages of the request.
            last_tokens: The answer before the piece. None at the start of the conversation.

        Returns:
            Token ids, shape (R,). They begin with the template's end of turn only if `last_tokens`
            lack it.
        """
        tokens: list[int] = []
        for i, message in enumerate(messages):
            if self._is_marked(message) and _content(i) in piece:
                before, _, piece = piece.partition(_content(i))
                tokens += self._encoded(
                    before, not tokens and last_tokens is not None
                ) + self._encode_plain(message["content"])
        tokens += self._encoded(piece, not tokens and last_tokens is not None)
        if (
            last_tokens
            and self._end_of_turn is not None
            and last_tokens[-1] == self._end_of_turn
            and self._end_of_turn in tokens
        ):
            return tokens[tokens.index(self._end_of_turn) + 1 :]
        return tokens

    def _encoded(self, text: str, after_answer: bool) -> list[int]:
        return self._encode_after_reply(text) if after_answer else self._encode(text)

    def _is_marked(self, message: Message) -> bool:
        return self._has_special_text(message["content"])


def _answer(place: int) -> str:
    return f"QzAnswer{place}zQ"


def _content(place: int) -> str:
    return f"QzContent{place}zQ"
