"""How a conversation begins: the messages before the first observation, and their roles."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from configs.config_model import ConfigModel
from configs.files import file_of_field

ROLES = {"human": "user", "gpt": "assistant"}
"""AgentGym's role names, mapped to those of chat templates."""


class OpeningMessage(ConfigModel):
    """A message before the first observation. AgentGym's `from`, `value` and `loss` also work."""

    role: Literal["system", "user", "assistant"]
    """Role of the message: system, user or assistant."""
    content: str = Field(min_length=1)
    """Text of the message. It must not be empty."""


def _read(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and value not in ("system", "agentgym"):
        path = file_of_field(value, info)
        if path is None:
            raise ValueError(
                "is neither system nor agentgym nor an existing file; use one of the two, or the "
                "path of a JSON file with messages"
            )
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as fault:
            raise ValueError(
                f"{path} is not JSON: {fault}; give a JSON list of messages"
            ) from fault
    if isinstance(value, list | tuple):
        return [_message(each) for each in value]
    return value


def _message(given: Any) -> Any:
    if not isinstance(given, dict) or "from" not in given:
        return given
    return {"role": ROLES.get(given["from"], given["from"]), "content": given.get("value")}


ConversationStart = Annotated[
    Literal["system", "agentgym"] | Annotated[tuple[OpeningMessage, ...], Field(min_length=1)],
    BeforeValidator(_read),
]
"""How a conversation begins: one of the following.

- "system": the instruction is a system message. If the chat template has no system role, the
  instruction precedes the first observation.
- "agentgym": as in AgentGym's clients. The user gives the instruction, the assistant agrees, and
  the first observation is the next user message.
- A list of messages, or a JSON file that holds AgentGym's `conversation_start`. These messages
  replace the instruction and must include the action format.
"""
