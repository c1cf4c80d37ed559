"""Action formats: how the action is read from a message.

"react" (arXiv 2210.03629) is free thought followed by "Action: ...". With "bare" the whole message
is the action. With "tools" the message calls one of the world's tools, see
`tasks.agents.tool_calls`.
"""

from __future__ import annotations

import re
from typing import Literal

from configs.rules import Rules

ActionFormat = Literal["react", "react-last", "bare", "tools"]
"""Format in which a message is read.

"react-last" is "react" as AgentGym's client of SciWorld reads it: the action is everything after
the last "Action:".
"""

REACT_FORM = """Answer each observation with one message of this form:
Thought:
what you make of the situation and what you want to do next

Action:
one single action

Write "Action:" once in a message. Only the line that follows it is performed."""

TOOLS_FORM = """Answer each observation by calling exactly one of your tools. Each tool performs one of these actions."""

MalformedCode = Literal[
    "no_label",
    "several_labels",
    "no_action",
    "open_thought",
    "no_call",
    "several_calls",
    "unreadable_call",
    "invalid_call",
]

_ACTION = re.compile(r"Action:[^\S\n]*\n?\s*([^\n]*)")


class MalformedActionError(Exception):
    """No action can be read from the message. The agent gets the text as its observation.

    Attributes:
        code: The kind of the problem.
    """

    def __init__(self, text: str, code: MalformedCode) -> None:
        """Raise with the observation for the agent."""
        super().__init__(text)
        self.code = code


def reading_format(
    action_format: Literal["react", "bare", "tools"], world: str, rules: Rules
) -> ActionFormat:
    """Return the format in which a world reads messages of an action format.

    AgentGym's clients of TextCraft and BabyAI take one line after one "Action:", as "react" does.
    Their other changes to an action are part of the worlds under AgentGym's rules.
    """
    if (action_format, world, rules) == ("react", "sciworld", "agentgym"):
        return "react-last"
    return action_format


def with_format(instruction: str | None, action_format: ActionFormat) -> str | None:
    """Return the instruction with the message form appended, except for "bare". None stays None."""
    if instruction is None or action_format == "bare":
        return instruction
    return f"{instruction.rstrip()}\n\n{TOOLS_FORM if action_format == 'tools' else REACT_FORM}"


def format_message(action: str, thought: str, action_format: ActionFormat) -> str:
    """Format the message that performs `action`, for "react" with a preceding thought.

    The thought may be empty. Messages with tool calls need a chat template or
    `tasks.agents.tool_calls.plain_text`.
    """
    return action if action_format == "bare" else f"Thought:\n{thought}\n\nAction:\n{action}"


def react_action(text: str) -> str:
    """Read the action of a "react" message: the text after "Action:".

    The action is on the same line or on the next non-empty line.

    Raises:
        MalformedActionError: "Action:" is missing or occurs more than once, or no action follows
            it.
    """
    count = text.count("Action:")
    if count == 0:
        raise MalformedActionError(
            'Nothing was done: the message holds no "Action:". End your message with "Action:" and '
            "one action.",
            code="no_label",
        )
    if count > 1:
        raise MalformedActionError(
            f'Nothing was done: the message holds "Action:" {count} times. Write it once, before '
            "the one next action.",
            code="several_labels",
        )
    match = _ACTION.search(text)
    action = match.group(1).strip() if match else ""
    if not action:
        raise MalformedActionError(
            'Nothing was done: nothing follows "Action:". Write the action after it.',
            code="no_action",
        )
    return action


def after_thought(text: str, opened: bool = False) -> str:
    """Return the text of a message after its thought.

    Args:
        text: The message. A thought is enclosed in <think> and </think>.
        opened: Whether the prompt already opened the thought, so that the message holds only
            </think>.

    Raises:
        MalformedActionError: The message ends inside its thought.
    """
    _, closed, after = text.rpartition("</think>")
    if "<think>" in after or (opened and not closed):
        raise MalformedActionError(
            "Nothing was done: the message ended inside its thought. Think less and write the "
            "action after </think>.",
            code="open_thought",
        )
    return after


def read_action(text: str, action_format: ActionFormat, thought_opened: bool = False) -> str:
    """Read the action of a message in any format, after its thought.

    Args:
        thought_opened: The argument `opened` of `after_thought`.

    Raises:
        MalformedActionError: The message ends inside its thought or, for "react", is malformed.
    """
    text = after_thought(text, thought_opened)
    if action_format == "bare":
        return text.strip()
    # without "Action:" AgentGym's client sends an empty action to the world
    if action_format == "react-last":
        return text.rpartition("Action:")[2].strip() if "Action:" in text else ""
    return react_action(text)
