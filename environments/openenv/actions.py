"""How the text of an action becomes the data of an OpenEnv step, and an observation becomes text."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from environments.environment import InvalidActionError

METADATA = "metadata"
"""Field that every OpenEnv action and observation has, for purposes other than the task."""
NUMBERS: dict[str, type[int] | type[float]] = {"integer": int, "number": float}
CALL_TOOL = "call_tool"
TOOL_CALL = '{"name": TOOL, "arguments": {ARGUMENTS}}'

Schema = Mapping[str, Any]


class ActionForm(ABC):
    """The form of the actions of an environment.

    Attributes:
        described: The form in words, for the agent's instruction.
    """

    described: str

    @abstractmethod
    def data(self, text: str) -> dict[str, Any]:
        """Return the data of a step.

        Raises:
            InvalidActionError: The text is not an action. The message is for the agent.
        """


class OneField(ActionForm):
    """Actions with one field: the text is its value."""

    def __init__(self, name: str, schema: Schema) -> None:
        """
        Args:
            schema: Its JSON schema.
        """
        self._name = name
        self._choices = {str(choice).casefold(): choice for choice in schema.get("enum", ())}
        self._number: type[int] | type[float] | None = NUMBERS.get(schema.get("type", ""))
        described = f" ({schema['description']})" if schema.get("description") else ""
        if self._choices:
            self.described = (
                f"The action is one of: {', '.join(map(str, self._choices.values()))}{described}."
            )
        else:
            kind = {"integer": "an integer", "number": "a number"}.get(
                schema.get("type", ""), "a text"
            )
            self.described = f"The action is {kind}{described}."

    def data(self, text: str) -> dict[str, Any]:
        """See `ActionForm.data`."""
        text = text.strip()
        try:
            if self._choices:
                return {self._name: self._choices[text.casefold()]}
            value = self._number(text) if self._number else text
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(text)
            return {self._name: value}
        except (KeyError, ValueError):
            raise InvalidActionError(f"{text[:100]!r} is not an action. {self.described}") from None


class JsonObject(ActionForm):
    """Actions with several fields: the text is a JSON object."""

    def __init__(self, schema: Schema) -> None:
        """
        Args:
            schema: JSON schema of the action.
        """
        fields = {
            name: each for name, each in schema.get("properties", {}).items() if name != METADATA
        }
        self._required = [name for name in schema.get("required", ()) if name in fields]
        shown = {
            name: {key: each[key] for key in ("type", "enum", "description") if key in each}
            for name, each in fields.items()
        }
        self.described = f"The action is a JSON object with the fields {json.dumps(shown)}. Required: {', '.join(self._required)}."

    def data(self, text: str) -> dict[str, Any]:
        """See `ActionForm.data`."""
        read = _object(text)
        if read is None or not all(name in read for name in self._required):
            raise InvalidActionError(f"This is not an action. {self.described}")
        return read


class ToolCall(ActionForm):
    """Actions of an MCP environment: the text is a tool call as a JSON object."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """
        Args:
            tools: The environment's tools, as `tools/list` returns them.
        """
        self._names = [str(tool["name"]) for tool in tools]
        listed = "\n".join(
            f"- {tool['name']}: {' '.join(str(tool.get('description') or '').split())} "
            f"Arguments: {json.dumps((tool.get('inputSchema') or tool.get('input_schema') or {}).get('properties', {}))}"
            for tool in tools
        )
        self.described = (
            f"The action is a tool call as a JSON object: {TOOL_CALL}\nTools:\n{listed}"
        )

    def data(self, text: str) -> dict[str, Any]:
        """See `ActionForm.data`."""
        read = _object(text)
        if (
            read is None
            or read.get("name") not in self._names
            or not isinstance(read.get("arguments", {}), dict)
        ):
            raise InvalidActionError(
                f"This is not a tool call. Write {TOOL_CALL}. Tools: {', '.join(self._names)}"
            )
        return {
            "type": CALL_TOOL,
            "tool_name": read["name"],
            "arguments": read.get("arguments", {}),
        }


def form_of(action: Schema, tools: Sequence[Mapping[str, Any]]) -> ActionForm:
    """Return the form of an environment's actions.

    Args:
        action: JSON schema of its actions.
        tools: Its MCP tools, if any.
    """
    if tools:
        return ToolCall(tools)
    fields = {name: each for name, each in action.get("properties", {}).items() if name != METADATA}
    required = [name for name in action.get("required", ()) if name in fields] or list(fields)
    if len(required) == 1:
        field = _resolved(fields[required[0]], action)
        if field.get("type") in ("string", "integer", "number"):
            return OneField(required[0], field)
    return JsonObject(action)


def text_of(observation: Mapping[str, Any]) -> str:
    """Return an observation as text.

    It is the value of its only field with a text. With several fields it is a JSON object without
    empty fields. The result of a tool is the text that it returned.
    """
    fields = {
        name: value
        for name, value in observation.items()
        if name != METADATA and value not in (None, "", [], {})
    }
    if "tool_name" in fields and "error" not in fields:
        return _tool_result(fields.get("result"))
    if len(fields) == 1 and isinstance(only := next(iter(fields.values())), str):
        return only
    return json.dumps(fields, ensure_ascii=False)


def _tool_result(result: Any) -> str:
    if isinstance(result, dict) and "data" in result:
        result = result["data"]
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        result = "\n".join(
            str(part.get("text", part)) for part in result["content"] if isinstance(part, dict)
        )
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _object(text: str) -> dict[str, Any] | None:
    try:
        # Unlike the json module, it limits the nesting, to 200 levels.
        read = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


def _resolved(field: Schema, schema: Schema) -> Schema:
    """Return a field's schema with a reference to `$defs` followed."""
    for reference in (field.get("$ref"), *(each.get("$ref") for each in field.get("allOf", ()))):
        if isinstance(reference, str):
            found = schema.get("$defs", {}).get(reference.rpartition("/")[2], {})
            return {
                **found,
                **{key: value for key, value in field.items() if key not in ("$ref", "allOf")},
            }
    return field
