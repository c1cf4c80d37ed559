"""Tools: a world's actions as functions with a JSON schema, and their form as action texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Schema = dict[str, Any]
"""JSON schema of one argument."""

_FIELD = re.compile(r"\{(\w+)\}")
_SEPARATOR = ", "
_PATTERNS = {"integer": r"-?\d+"}


class ToolCallError(ValueError):
    """A call does not fit its tool, or no tool performs an action. The text is for the agent."""


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """One action of a world, in the form of a function.

    Attributes:
        name: Name of the function, e.g. "get".
        description: What it does, for the agent.
        parameters: JSON schema of each argument. Strings, integers and lists of strings are
            possible. All arguments are required.
        action: Text of the action with the arguments in braces, e.g. "get {count} {item}". A list
            is joined by commas. Empty: the action is the call as a JSON object.
    """

    name: str
    description: str
    parameters: dict[str, Schema] = {}
    action: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the form of OpenAI's chat protocol, which chat templates take."""
        properties = {
            "type": "object",
            "properties": self.parameters,
            "required": list(self.parameters),
        }
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": properties,
            },
        }

    def action_of(self, arguments: Mapping[str, Any]) -> str:
        """Return the action text of a call.

        Raises:
            ToolCallError: An argument is missing, unknown or of another type.
        """
        if not self.action:
            return json.dumps({"name": self.name, "arguments": dict(arguments)}, ensure_ascii=False)
        if set(arguments) != set(self.parameters):
            given = ", ".join(arguments) or "none"
            raise ToolCallError(
                f"{self.name} takes the arguments {', '.join(self.parameters) or 'none'}, but the "
                f"call has {given}."
            )
        texts = {name: self._text(name, value) for name, value in arguments.items()}
        return _FIELD.sub(lambda field: texts[field[1]], self.action)

    def arguments_of(self, action: str) -> dict[str, Any] | None:
        """Return the arguments of the call that performs an action. None: the tool does not."""
        if not self.action:
            return None
        pieces = _FIELD.split(self.action)  # text, name, text, name, ..., text
        pattern = "".join(
            f"(?P<{piece}>{_PATTERNS.get(self.parameters[piece]['type'], '.*?')})"
            if place % 2
            else re.escape(piece)
            for place, piece in enumerate(pieces)
        )
        if (found := re.fullmatch(pattern, action, re.DOTALL)) is None:
            return None
        arguments = {name: self._value(name, text) for name, text in found.groupdict().items()}
        try:
            return arguments if self.action_of(arguments) == action else None
        except ToolCallError:
            return None

    def _text(self, name: str, value: Any) -> str:
        """Return the text of an argument.

        Raises:
            ToolCallError: It is of another type.
        """
        schema = self.parameters[name]
        match schema["type"], value:
            case "integer", int() if not isinstance(value, bool):
                pass
            case "string", str():
                pass
            case "array", list() if all(isinstance(each, str) for each in value):
                value = _SEPARATOR.join(value)
            case kind, _:
                raise ToolCallError(
                    f"{name} of {self.name} must be of type {kind}, not {_shown(value)}."
                )
        if value not in schema.get("enum", (value,)):
            raise ToolCallError(
                f"{name} of {self.name} must be one of {', '.join(map(str, schema['enum']))}."
            )
        return str(value)

    def _value(self, name: str, text: str) -> Any:
        kind = self.parameters[name]["type"]
        return (
            int(text) if kind == "integer" else text.split(_SEPARATOR) if kind == "array" else text
        )


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)[:100]
    except RecursionError:
        return "a deeply nested value"


ANY_ACTION = Tool(
    "act",
    "Perform one action.",
    {"action": {"type": "string", "description": "The text of the action."}},
    "{action}",
)
"""The tool of a world that declares none."""


def text(description: str, *enum: str) -> Schema:
    """Return the schema of a string argument, one of `enum` if given."""
    return {"type": "string", "description": description} | ({"enum": list(enum)} if enum else {})


def integer(description: str, *enum: int) -> Schema:
    """Return the schema of an integer argument, one of `enum` if given."""
    return {"type": "integer", "description": description} | ({"enum": list(enum)} if enum else {})


def texts(description: str) -> Schema:
    """Return the schema of a list of strings."""
    return {"type": "array", "items": {"type": "string"}, "description": description}


def call_of(tools: Sequence[Tool], action: str) -> tuple[str, dict[str, Any]]:
    """Return the name and arguments of the first tool that performs an action.

    Raises:
        ToolCallError: No tool performs it.
    """
    for tool in tools:
        if (arguments := tool.arguments_of(action)) is not None:
            return tool.name, arguments
    raise ToolCallError(
        f"no tool performs the action {action[:100]!r}. The tools are "
        f"{', '.join(tool.name for tool in tools)}."
    )


def action_of(tools: Sequence[Tool], name: str, arguments: object) -> str:
    """Return the action text of a call.

    Raises:
        ToolCallError: There is no such tool, or the arguments do not fit it.
    """
    for tool in tools:
        if tool.name == name:
            if not isinstance(arguments, dict):
                raise ToolCallError(f"the arguments of {name} must be an object.")
            return tool.action_of(arguments)
    raise ToolCallError(
        f"there is no tool {name[:50]!r}. The tools are {', '.join(tool.name for tool in tools)}."
    )
