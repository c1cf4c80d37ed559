"""How a message says its action: "react" (arXiv 2210.03629) = free thought, then "Action: ..."; "bare" = the message is the action."""

from __future__ import annotations

import re
from typing import Literal

from configs.rules import Rules

ActionFormat = Literal["react", "react-last", "bare"]
"""How a message is read. "react-last" is "react" as AgentGym's client of SciWorld reads it: everything after the last "Action:"."""

REACT_FORM = """Answer each observation with one message of this form:
Thought:
what you make of the situation and what you want to do next

Action:
one single action

Write "Action:" once in a message. Only the line that follows it is performed."""

_ACTION = re.compile(r"Action:[^\S\n]*\n?\s*([^\n]*)")


class MalformedActionError(Exception):
    """No action can be read from the policy's message. The text is what the agent gets to see as its observation."""


def reading_of(action_format: Literal["react", "bare"], world: str, rules: Rules) -> ActionFormat:
    """How messages of a format are read in a world.

    AgentGym's clients of TextCraft and BabyAI take one line after one "Action:", as "react" does. What else they do to an action, the
    worlds do under AgentGym's rules.
    """
    return "react-last" if (action_format, world, rules) == ("react", "sciworld", "agentgym") else action_format


def with_format(instruction: str | None, action_format: ActionFormat) -> str | None:
    """The environment's instruction, for "react" followed by the form that a message must have; None stays None."""
    if instruction is None or action_format == "bare":
        return instruction
    return f"{instruction.rstrip()}\n\n{REACT_FORM}"


def said(action: str, thought: str, action_format: ActionFormat) -> str:
    """The message that does `action`: for "react" with a thought, which may be empty, before it."""
    return action if action_format == "bare" else f"Thought:\n{thought}\n\nAction:\n{action}"


def react_action(text: str) -> str:
    """The action of a message in the "react" form: what follows "Action:", on its line or on the next that is not empty.

    Raises:
        MalformedActionError: "Action:" is missing, stands there more than once, or nothing follows it.
    """
    count = text.count("Action:")
    if count == 0:
        raise MalformedActionError('Nothing was done: the message holds no "Action:". End your message with "Action:" and one action.')
    if count > 1:
        raise MalformedActionError(
            f'Nothing was done: the message holds "Action:" {count} times. Write it once, before the one next action.'
        )
    match = _ACTION.search(text)
    action = match.group(1).strip() if match else ""
    if not action:
        raise MalformedActionError('Nothing was done: nothing follows "Action:". Write the action after it.')
    return action


def after_thought(text: str, opened: bool = False) -> str:
    """Returns what a message says after its thought.

    Args:
        text: The message. A thought stands between <think> and </think>.
        opened: Whether the prompt already opened the thought, so that the message holds only </think>.

    Raises:
        MalformedActionError: The message ends inside its thought.
    """
    _, closed, after = text.rpartition("</think>")
    if "<think>" in after or (opened and not closed):
        raise MalformedActionError(
            "Nothing was done: the message ended inside its thought. Think less and write the action after </think>."
        )
    return after


def read_action(text: str, action_format: ActionFormat, thought_opened: bool = False) -> str:
    """Reads the action of a message in either form, after its thought.

    Args:
        text: The message.
        action_format: Its form.
        thought_opened: See `after_thought`.

    Raises:
        MalformedActionError: The message ends inside its thought or, for "react", does not have the agreed form.
    """
    text = after_thought(text, thought_opened)
    if action_format == "bare":
        return text.strip()
    if action_format == "react-last":  # without "Action:" its client sends an empty action, and the world is asked
        return text.rpartition("Action:")[2].strip() if "Action:" in text else ""
    return react_action(text)
