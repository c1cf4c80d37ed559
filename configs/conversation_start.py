"""What an agent is told before its first observation, and in whose name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo

from configs.part import Part

ROLES = {"human": "user", "gpt": "assistant"}
"""AgentGym's names of the roles, and those of chat templates."""


class OpeningMessage(Part):
    """A message before the first observation; AgentGym's `from`, `value` and `loss` are understood too."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    role: Literal["system", "user", "assistant"]
    """Who says it."""
    content: str = Field(min_length=1)
    """What is said."""


def _read(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and value not in ("system", "agentgym"):
        folders = [Path(), *((info.context or {}).get("folders", ()))]
        path = next((found for folder in folders if (found := folder / Path(value).expanduser()).is_file()), None)
        if path is None:
            raise ValueError("write system, agentgym, or the name of a JSON file with the messages; there is no such file")
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as fault:
            raise ValueError(f"{path} is no JSON: {fault}") from fault
    if isinstance(value, list | tuple):
        return [_message(each) for each in value]
    return value


def _message(given: Any) -> Any:
    if not isinstance(given, dict) or "from" not in given:
        return given
    return {"role": ROLES.get(given["from"], given["from"]), "content": given.get("value")}


ConversationStart = Annotated[
    Literal["system", "agentgym"] | Annotated[tuple[OpeningMessage, ...], Field(min_length=1)], BeforeValidator(_read)
]
"""How a conversation begins. "system": the instruction is a system message, or stands before the first observation where the chat template
has none. "agentgym": the user gives the instruction, the assistant consents, and the first observation is the user's next message, as
AgentGym's clients do it. A list of messages, or a JSON file that holds AgentGym's `conversation_start`: these very messages in place of
the instruction, with the form of an action in them."""
