"""Tool calls in a model's messages: found by transformers' response templates.

A response template describes the form in which a family of models writes thoughts and calls. A
tokenizer may have its own. Otherwise the one is used that reads what the model's chat template
writes for a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from environments.tools import Tool, ToolCallError, action_of, call_of, integer, text, texts
from tasks.agents.action_format import MalformedActionError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ResponseTemplate = Mapping[str, Any]

PROBE = Tool(
    "probe",
    "Probe.",
    {"count": integer("A number."), "item": text("A text."), "others": texts("Texts.")},
)
PROBE_CALL: dict[str, Any] = {"count": 3, "item": "oak log", "others": ["1 a", "2 b"]}

_MISTRAL: ResponseTemplate = {
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {
            "open": "[TOOL_CALLS]",
            "close_pattern": r"</s>|$",
            "content": "json",
            "transform_each": True,
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{arguments}"},
            },
        },
        "content": {"close_pattern": r"</s>", "content": "text"},
    },
}
_MISTRAL_ARGUMENTS: ResponseTemplate = {
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\[TOOL_CALLS\](?P<name>[^\[\s{]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?(?=\{)",
            "close_pattern": r"(?=\[TOOL_CALLS\])|</s>|$",
            "repeats": True,
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"</s>", "content": "text"},
    },
}
"""The two forms of Mistral's models, which TRL does not have."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool.

    Attributes:
        arguments: Its arguments. Anything but an object is malformed.
    """

    name: str
    arguments: Any


def find_response_template(
    tokenizer: PreTrainedTokenizerBase,
    written: str,
    prefix: str,
    message: Mapping[str, Any],
) -> ResponseTemplate | None:
    """Return the response template that reads what a chat template writes for a message.

    Args:
        written: What the chat template writes for the message.
        prefix: End of the prompt before the message.
        message: The message. It calls no tool but `PROBE`.

    Returns:
        None if no template reads it.
    """
    called = [
        Call(call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    for template in _candidates(tokenizer):
        try:
            parsed, calls = parse_message(tokenizer, template, written, prefix, [PROBE.schema])
        except MalformedActionError:
            continue
        if calls == called and (called or parsed.get("content") == message["content"]):
            return template
    return None


def _candidates(tokenizer: PreTrainedTokenizerBase) -> Iterator[ResponseTemplate]:
    if own := getattr(tokenizer, "response_template", None):
        yield own
    from trl import chat_template_utils as trl

    yield from (
        trl.qwen3_template,
        trl.qwen3_5_template,
        trl.glm4moe_template,
        trl.llama3_template,
        _harmony(trl.gptoss_template),
    )
    yield from (
        trl.lfm2_2_5_template,
        trl.nemotron_3_template,
        trl.gemma4_template,
        _MISTRAL,
        _MISTRAL_ARGUMENTS,
    )


def _harmony(template: ResponseTemplate) -> ResponseTemplate:
    """Return TRL's response template of gpt-oss with a call's header in both forms.

    The chat template writes " to=functions.NAME<|channel|>commentary json". The model also writes
    "<|channel|>commentary to=functions.NAME <|constrain|>json".
    """
    header = (
        r"to=functions\.(?P<name>[^\s<]+)(?:<\|channel\|>commentary)?"
        r"\s*(?:<\|constrain\|>)?\s*(?:json)?<\|message\|>"
    )
    fields = template["fields"]
    calls = {**fields["tool_calls"], "open_pattern": header}
    return {**template, "fields": {**fields, "tool_calls": calls}}


def parse_message(
    tokenizer: PreTrainedTokenizerBase,
    template: ResponseTemplate,
    message: str,
    prefix: str,
    schemas: list[dict[str, Any]],
) -> tuple[dict[str, Any], list[Call]]:
    """Return a message in the parts that a chat template takes, and its calls.

    Args:
        template: The response template of the model.
        message: Text of the message, special tokens included.
        prefix: End of the prompt before the message.
        schemas: The tools in the form of OpenAI's chat protocol.

    Raises:
        MalformedActionError: A call cannot be read, e.g. because it is not JSON, is nested more
            than 200 levels deep, or cannot be written as UTF-8.
    """
    try:
        parsed: dict[str, Any] = tokenizer.parse_response(
            message, dict(template), prefix=prefix, tools=schemas
        )
        functions = [each["function"] for each in parsed.get("tool_calls", ())]
        calls = [Call(function["name"], function.get("arguments", {})) for function in functions]
        # Unlike the json module, it rejects lone surrogates, which have no form in UTF-8, and a
        # nesting that could exceed the interpreter's stack later. JSON has no NaN.
        from_json(json.dumps(functions, allow_nan=False))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as unreadable:
        raise MalformedActionError(
            f"Nothing was done: the tool call cannot be read ({str(unreadable)[:200]}).",
            code="unreadable_call",
        ) from unreadable
    if not all(isinstance(call.name, str) and isinstance(call.arguments, dict) for call in calls):
        raise MalformedActionError(
            "Nothing was done: a tool call needs a name and an object of arguments.",
            code="unreadable_call",
        )
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return parsed | {
        "tool_calls": [{"type": "function", "function": function} for function in functions]
    }, calls


def action_of_calls(calls: Sequence[Call], tools: Sequence[Tool]) -> str:
    """Return the action of a message with these calls.

    Raises:
        MalformedActionError: There is not exactly one call, or it does not fit its tool.
    """
    if not calls:
        raise MalformedActionError(
            "Nothing was done: the message calls no tool. Call one tool in each message.",
            code="no_call",
        )
    if len(calls) > 1:
        raise MalformedActionError(
            f"Nothing was done: the message calls {len(calls)} tools. Call one tool in each "
            "message.",
            code="several_calls",
        )
    try:
        return action_of(tools, calls[0].name, calls[0].arguments)
    except ToolCallError as unfit:
        raise MalformedActionError(f"Nothing was done: {unfit}", code="invalid_call") from unfit


def to_call(action: str, tools: Sequence[Tool]) -> Call:
    """Return the call that performs an action.

    Raises:
        ToolCallError: No tool performs it.
    """
    return Call(*call_of(tools, action))


def plain_text(content: str, calls: Sequence[Call]) -> str:
    """Return a message with calls for records without a chat template: one JSON object a line."""
    lines = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        for call in calls
    ]
    return "\n".join([*([content] if content else []), *lines])


def plain_calls(message: str) -> list[Call]:
    """Return the calls in a text of `plain_text`: the JSON objects at its end."""
    calls: list[Call] = []
    for line in reversed(message.split("\n")):  # JSON contains other line separators as they are
        try:
            read = from_json(line)
            calls.insert(0, Call(read["name"], read["arguments"]))
        except (ValueError, LookupError, TypeError):
            break
    return calls
