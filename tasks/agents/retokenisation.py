"""Retokenisation: encode text-only messages in the token ids of the policy trained on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from environments.tools import Tool
from tasks.agents.action_format import (
    ActionFormat,
    MalformedActionError,
    format_message,
    read_action,
)
from tasks.agents.agent import Budgets, Message
from tasks.agents.chat_format import ChatFormat
from tasks.agents.history import History
from tasks.agents.tool_calls import Call, action_of_calls, plain_calls, plain_text, to_call


class Retokenisation:
    """Encodes the texts of one episode in order. Without a chat format there are no tokens."""

    def __init__(
        self,
        chat_format: ChatFormat | None,
        action_format: ActionFormat,
        observation: str,
        tools: Sequence[Tool],
        budgets: Budgets,
    ) -> None:
        """Encode the prompt.

        Args:
            chat_format: Chat template and tokenizer of the policy that is trained on the episode.
            action_format: Format in which a message gives its action.
            observation: The first observation.
            tools: The world's tools.
            budgets: Token budgets, for a chat format that compacts the context.
        """
        self._chat_format = chat_format
        self._tools = tools
        self._action_format: ActionFormat = action_format
        self._last: list[int] = []
        self._history = History(chat_format, observation) if chat_format else None
        self.prompt = self._history.tokens if self._history else []
        compacts = chat_format is not None and chat_format.compacts
        self._length = budgets.trajectory_tokens if compacts else None
        self._turn_tokens = budgets.turn_tokens

    def message(self, text: str, cut: str = "") -> Message:
        """Return the message with this text. `cut` names the budget that ended it, if any."""
        tokens = self._chat_format.message(text) if self._chat_format else []
        if cut:
            tokens = tokens[:-1]  # the policy did not end the turn
        self._last = tokens
        try:
            action, problem = self._action_in(text), ""
        except MalformedActionError as malformed:
            action, problem = None, str(malformed)
        context = self._history.tokens if self._history and self._history.begins_row else []
        return Message(
            text, action, problem, tokens, [math.nan] * len(tokens), cut=cut, context=context
        )

    def demonstration(self, action: str, thought: str) -> Message:
        """Return the message that performs an action, after a thought if it has one.

        Raises:
            ToolCallError: No tool performs the action.
        """
        if self._action_format == "tools":
            return self.calls(thought, [to_call(action, self._tools)])
        return self.message(format_message(action, thought, self._action_format))

    def calls(self, content: str, calls: Sequence[Call], cut: str = "") -> Message:
        """Return the message with this text and these tool calls.

        Only a message with one well-formed call has a form in the chat template. Any other is
        written as by `plain_text`, and no action is read from it.
        """
        if self._chat_format and len(calls) == 1 and isinstance(calls[0].arguments, dict):
            return self.message(
                self._chat_format.call_text(calls[0].name, calls[0].arguments, content), cut
            )
        return self.message(plain_text(content, calls), cut)

    def _action_in(self, text: str) -> str:
        if self._chat_format:
            return self._chat_format.action_in(text)
        if self._action_format == "tools":
            return action_of_calls(plain_calls(text), self._tools)
        return read_action(text, self._action_format)

    def reply(self, observation: str) -> list[int]:
        """Return the tokens that carry an observation to the next message, as `Conversation.observe`."""
        if self._history is None:
            return []
        return self._history.add(self._last, observation, self._length, self._turn_tokens)
