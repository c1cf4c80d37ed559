"""Conversations of a chat client as token ids.

The first request of a conversation is rendered by the chat template. In every later request the
policy's own answers stay the tokens that it sampled. Only the text after the last answer is
encoded.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from jinja2 import TemplateError

from configs.experiment import Thinking
from environments.tools import Tool
from tasks.agents.action_format import MalformedActionError
from tasks.agents.chat_format import CALL_ID, ChatFormat, ChatTemplateError, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TOOL_LISTS = 64
"""Lists of tools whose forms are kept."""

THOUGHTS = ("reasoning_content", "thinking")
"""Fields of a message that have its thoughts. Each family of models has one of them."""

_ARGUMENT = "QzArgumentzQ"


class UnsuitableMessagesError(ValueError):
    """The chat template cannot render the messages. The text gives the template's reason."""


class UnsuitableToolsError(ValueError):
    """The chat template cannot carry the tools. The text gives the reason."""


class ClientTool(Tool, frozen=True):
    """A tool of a client.

    Attributes:
        given: The tool in the form of OpenAI's chat protocol.
    """

    given: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as the client gave it."""
        return self.given


class ChatTokens(ChatFormat):
    """The chat template of a policy that answers the requests of a chat client."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        thinking: Thinking = "keep",
        tools: Sequence[Tool] = (),
    ) -> None:
        """Check the chat template, as `ChatFormat` does.

        With `thinking` "strip" the template writes earlier answers again.
        With `tools` the template carries them, and answers may call them.
        """
        super().__init__(
            tokenizer,
            "tools" if tools else "bare",
            None,
            chat_template_kwargs=chat_template_kwargs,
            thinking=thinking,
            tools=tools,
        )

        def of_list(schemas: str) -> ChatTokens:
            given = [
                ClientTool(each["function"]["name"], "", given=each) for each in json.loads(schemas)
            ]
            return ChatTokens(tokenizer, chat_template_kwargs, thinking, given)

        self._of_list = lru_cache(maxsize=TOOL_LISTS)(of_list)

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> ChatTokens:
        """Return the form of conversations with these tools.

        Args:
            schemas: The tools in the form of OpenAI's chat protocol. Empty: no tools.

        Raises:
            UnsuitableToolsError: The chat template cannot carry them, or no response template reads
                its calls.
        """
        if not schemas:
            return self
        text = json.dumps(schemas, ensure_ascii=False)
        if self._has_special_text(text):
            raise UnsuitableToolsError("they contain a special token of the tokenizer; remove it")
        try:
            return self._of_list(text)
        except (ChatTemplateError, TemplateError, TypeError) as problem:
            raise UnsuitableToolsError(str(problem)) from problem

    def answer(self, tokens: Sequence[int]) -> Message:
        """Return the policy's answer as a message.

        With tools or channels, thoughts have a field of their own, see `THOUGHTS`, and calls are
        read. Each call gets an id. An answer that cannot be read is a text.
        """
        text = self.text(tokens)
        if not self._response_template:
            return {"role": "assistant", "content": text}
        try:
            parsed, calls = self._parse(text)
        except MalformedActionError:
            return {"role": "assistant", "content": text}
        thoughts = {
            name: self._without_special_texts(parsed[name]) for name in THOUGHTS if name in parsed
        }
        content = parsed.get("content") or ("" if calls or thoughts else text)
        message: Message = {"role": "assistant", "content": content, **thoughts}
        if calls:
            # Mistral's templates require nine letters or digits.
            message["tool_calls"] = [
                {**call, "id": secrets.token_hex(5)[:9]} for call in parsed["tool_calls"]
            ]
        return message

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
            self._shown(i, message, is_answer=i in answers) for i, message in enumerate(messages)
        ]
        try:
            text = self._render(shown, opens_answer)
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
            if messages[place].get("tool_calls"):
                text = text[self._call_start :]
        return (*pieces, text)

    def _shown(self, place: int, message: Message, *, is_answer: bool) -> Message:
        """Return a message as the chat template gets it, with marks as in `pieces`.

        An answer with calls becomes one call whose argument is the mark. Calls have the ids that
        they have in training.
        """
        calls = message.get("tool_calls")
        if calls and is_answer:
            function = {
                "name": calls[-1]["function"]["name"],
                "arguments": {_ARGUMENT: _answer(place)},
            }
            calls = [{"type": "function", "function": function}]
            message = {**message, "content": ""}
        elif is_answer:
            return self._spoken(_answer(place))
        elif calls and self._has_special_text(json.dumps(calls, ensure_ascii=False)):
            raise UnsuitableMessagesError(
                f"a call in message {place} contains a special token of the tokenizer; remove it"
            )
        elif self._is_marked(message):
            message = {**message, "content": _content(place)}
        if calls:
            return {**message, "tool_calls": [{**call, "id": CALL_ID} for call in calls]}
        if message["role"] == "assistant":
            return {**message, **self._spoken(message["content"])}
        return {**message, "tool_call_id": CALL_ID} if message["role"] == "tool" else message

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
        if last_tokens:
            is_call = self._last_call(last_tokens) is not None
            end = self._end_of_call if is_call else self._end_of_turn
            if end in tokens and last_tokens[-1] in (end, self._own_end):
                return tokens[tokens.index(end) + 1 :]
        return tokens

    def _encoded(self, text: str, after_answer: bool) -> list[int]:
        return self._encode_after_reply(text) if after_answer else self._encode(text)

    def _is_marked(self, message: Message) -> bool:
        return self._has_special_text(message["content"])


def _answer(place: int) -> str:
    return f"QzAnswer{place}zQ"


def _content(place: int) -> str:
    return f"QzContent{place}zQ"
