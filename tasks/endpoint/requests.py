"""Requests and answers of chat clients, in OpenAI's and in Anthropic's form."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, Field, Json, ValidationError, model_validator
from pydantic_core import from_json

from tasks.agents.chat_format import Message

M = TypeVar("M", bound=BaseModel)


class RequestError(Exception):
    """A request that the endpoint does not answer.

    Attributes:
        status: HTTP status.
        code: The kind of the problem.
        parameter: Field of the request, or empty.
    """

    def __init__(self, text: str, status: int, code: str, parameter: str = "") -> None:
        """Raise with the problem and its fix."""
        super().__init__(text)
        self.status, self.code, self.parameter = status, code, parameter


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the policy.

    Attributes:
        id: Unique name of the call.
        episode: Id of its episode.
        model: Name of the policy.
        text: The text, without special tokens and calls.
        thoughts: The thoughts, if they are not in the text.
        calls: The calls of tools, in the form of `Message`: an id, and a function with its name and
            an object of arguments.
        is_cut: Whether a token budget ended it.
        prompt_tokens, tokens: Number of token ids given and sampled.
    """

    id: str
    episode: str
    model: str
    text: str
    thoughts: str
    calls: list[dict[str, Any]]
    is_cut: bool
    prompt_tokens: int
    tokens: int


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text", "input_text"]
    text: str


Content = str | list[TextPart]


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class CalledFunction(BaseModel):
    """The function of a call in OpenAI's form. Its arguments are the text of a JSON object."""

    name: str
    arguments: Json[dict[str, Any]]


class ToolCall(BaseModel):
    """A call of a tool in OpenAI's form."""

    id: str
    function: CalledFunction


class ChatMessage(BaseModel):
    """A message in OpenAI's form."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str = ""

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("the content is missing")
        return self


class Function(BaseModel):
    """The function of a tool in OpenAI's form. Its parameters are a JSON schema."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}


class OpenAITool(BaseModel):
    """A tool in OpenAI's form."""

    type: Literal["function"]
    function: Function


class ToolUse(BaseModel):
    """A call of a tool in Anthropic's form."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResult(BaseModel):
    """The result of a call in Anthropic's form."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Content = ""


Block = Annotated[TextPart | ToolUse | ToolResult, Field(discriminator="type")]


class AnthropicMessage(BaseModel):
    """A message in Anthropic's form."""

    role: Literal["user", "assistant"]
    content: str | list[Block]

    def parts(self) -> list[Message]:
        """Return the results of calls, and the message without them if it has other content."""
        blocks = (
            [TextPart(type="text", text=self.content)]
            if isinstance(self.content, str)
            else self.content
        )
        results: list[Message] = [
            {"role": "tool", "tool_call_id": each.tool_use_id, "content": _text(each.content)}
            for each in blocks
            if isinstance(each, ToolResult)
        ]
        text = _text([each for each in blocks if isinstance(each, TextPart)])
        message: Message = {"role": self.role, "content": text}
        if calls := [
            _call(each.id, each.name, each.input) for each in blocks if isinstance(each, ToolUse)
        ]:
            message["tool_calls"] = calls
        return results if results and not text else [*results, message]


class AnthropicTool(BaseModel):
    """A tool in Anthropic's form. Its schema is a JSON schema."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str = ""
    input_schema: dict[str, Any]


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": call_id, "function": function}


def _with_names(messages: list[Message]) -> list[Message]:
    """Return the messages with the name of the tool in each result.

    Raises:
        RequestError: The result of a call has no call.
    """
    names = dict[str, str]()
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        if message["role"] == "tool":
            if message["tool_call_id"] not in names:
                raise RequestError(
                    f"messages: no earlier message has the call {message['tool_call_id']!r} of a "
                    "result; give the id of a call",
                    400,
                    "invalid_value",
                    "messages",
                )
            message["name"] = names[message["tool_call_id"]]
    return messages


class ChatRequest(BaseModel):
    """The fields that both forms share."""

    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields that would change the answer and are not supported -> the values that change nothing."""

    model: str = ""
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    seed: int | None = None
    stream: bool = False
    metadata: dict[str, Any] | None = None

    def conversation(self) -> list[Message]:
        """Return the messages with the roles of a chat template."""
        raise NotImplementedError

    def schemas(self) -> list[dict[str, Any]]:
        """Return the tools in OpenAI's form."""
        raise NotImplementedError

    def token_limit(self) -> int | None:
        """Return the most tokens of the answer, or None if the client gives no limit."""
        raise NotImplementedError

    def client(self) -> str | None:
        """Return the field in which the form names the conversation's user."""
        raise NotImplementedError


class OpenAIRequest(ChatRequest):
    """A request to /v1/chat/completions."""

    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "n": (1,),
        "top_p": (1,),
        "top_k": (0, -1),
        "min_p": (0,),
        "stop": ([], ""),
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "logit_bias": ({},),
        "logprobs": (False,),
        "functions": ([],),
        "tool_choice": ("auto", "none"),
        "parallel_tool_calls": (True,),
        "response_format": ({"type": "text"},),
        # vLLM's own fields
        "repetition_penalty": (1,),
        "length_penalty": (1,),
        "stop_token_ids": ([],),
        "bad_words": ([],),
        "min_tokens": (0,),
        "ignore_eos": (False,),
        "chat_template_kwargs": ({},),
        "structured_outputs": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[OpenAITool] | None = None
    tool_choice: Any = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    max_completion_tokens: Annotated[int, Field(gt=0)] | None = None
    user: str | None = None

    def conversation(self) -> list[Message]:
        """Return the messages. Implements `ChatRequest.conversation`."""
        messages = list[Message]()
        for each in self.messages:
            role = "system" if each.role == "developer" else each.role
            message: Message = {"role": role, "content": _text(each.content or "")}
            if each.tool_calls:
                message["tool_calls"] = [
                    _call(call.id, call.function.name, call.function.arguments)
                    for call in each.tool_calls
                ]
            if role == "tool":
                message["tool_call_id"] = each.tool_call_id
            messages.append(message)
        return _with_names(messages)

    def schemas(self) -> list[dict[str, Any]]:
        """Return `tools`, unless none may be called. Implements `ChatRequest.schemas`."""
        return [tool.model_dump() for tool in self.tools or () if self.tool_choice != "none"]

    def token_limit(self) -> int | None:
        """Return the newer field or the older one. Implements `ChatRequest.token_limit`."""
        return self.max_completion_tokens or self.max_tokens

    def client(self) -> str | None:
        """Return `user`. Implements `ChatRequest.client`."""
        return self.user


class AnthropicRequest(ChatRequest):
    """A request to /v1/messages."""

    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "top_p": (1,),
        "top_k": (0,),
        "stop_sequences": ([],),
        "tool_choice": (
            {"type": "auto"},
            {"type": "auto", "disable_parallel_tool_use": False},
            {"type": "none"},
        ),
        "thinking": ({"type": "disabled"},),
    }

    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    tools: list[AnthropicTool] | None = None
    tool_choice: Any = None
    max_tokens: Annotated[int, Field(gt=0)]
    system: Content | None = None

    def conversation(self) -> list[Message]:
        """Return the system text and the messages. Implements `ChatRequest.conversation`."""
        system: list[Message] = (
            [{"role": "system", "content": _text(self.system)}] if self.system else []
        )
        return _with_names([*system, *(part for each in self.messages for part in each.parts())])

    def schemas(self) -> list[dict[str, Any]]:
        """Return `tools` in OpenAI's form, unless none may be called.

        Implements `ChatRequest.schemas`.
        """
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                },
            }
            for tool in self.tools or ()
            if self.tool_choice != {"type": "none"}
        ]

    def token_limit(self) -> int | None:
        """Return `max_tokens`. Implements `ChatRequest.token_limit`."""
        return self.max_tokens

    def client(self) -> str | None:
        """Return `metadata.user_id`. Implements `ChatRequest.client`."""
        user = (self.metadata or {}).get("user_id")
        return None if user is None else str(user)


class EpisodeReward(BaseModel):
    """A request to /v1/episodes/{id}/reward. Without `reward`, the verifier scores the episode."""

    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None


def read(model: type[M], body: bytes) -> M:
    """Read a request.

    Raises:
        RequestError: It is invalid, or has a field whose value is not supported.
    """
    try:
        # Unlike the json module, it rejects lone surrogates, and more than 200 levels of nesting.
        given = from_json(body or b"{}")
        found = model.model_validate(given)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(
            f"{where}: {first['msg']}; correct the field", 400, "invalid_value", where
        ) from None
    except ValueError as problem:
        raise RequestError(
            f"the body is not JSON ({problem}); send a JSON object", 400, "invalid_json"
        ) from None
    for name, values in getattr(found, "fixed", {}).items():
        if (value := given.get(name)) is not None and value not in values:
            raise RequestError(
                f"{name}: {value!r} is not supported; leave the field out",
                400,
                "unsupported_value",
                name,
            )
    return found


def openai_body(answer: Answer) -> dict[str, Any]:
    """Return an answer in OpenAI's form.

    `episode` is a field of this endpoint, and `reasoning_content` of other servers of this form.
    """
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.thoughts:
        message["reasoning_content"] = answer.thoughts
    if answer.calls:
        message["tool_calls"] = _openai_calls(answer)
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": _finish_reason(answer),
        "logprobs": None,
    }
    head = _openai_head(answer, "chat.completion")
    return {**head, "choices": [choice], "usage": _openai_usage(answer)}


def openai_events(answer: Answer) -> Iterator[str]:
    """Return the events of a streamed answer in OpenAI's form.

    The last one has the number of tokens, whether or not the client asked for it.
    """
    calls = [{"index": i, **call} for i, call in enumerate(_openai_calls(answer))]
    deltas: list[tuple[dict[str, Any], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        *([({"reasoning_content": answer.thoughts}, None)] if answer.thoughts else []),
        ({"content": answer.text}, None),
        *(({"tool_calls": [call]}, None) for call in calls),
        ({}, _finish_reason(answer)),
    ]
    for delta, reason in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        chunk = {**_openai_head(answer, "chat.completion.chunk"), "choices": [choice]}
        if reason is not None:
            chunk["usage"] = _openai_usage(answer)
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


def anthropic_body(answer: Answer) -> dict[str, Any]:
    """Return an answer in Anthropic's form. `episode` is a field of this endpoint."""
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [
            *([{"type": "text", "text": answer.text}] if answer.text or not answer.calls else []),
            *(
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "input": call["function"]["arguments"],
                }
                for call in answer.calls
            ),
        ],
        "stop_reason": "max_tokens"
        if answer.is_cut
        else "tool_use"
        if answer.calls
        else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.tokens},
        "episode": answer.episode,
    }


def anthropic_events(answer: Answer) -> Iterator[str]:
    """Return the events of a streamed answer in Anthropic's form."""
    whole = anthropic_body(answer)
    begun = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": 0},
    }
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun},
        *(event for i, block in enumerate(whole["content"]) for event in _block_events(i, block)),
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": answer.tokens}},
        {"type": "message_stop"},
    ]
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def _block_events(index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the events of a streamed block in Anthropic's form."""
    if block["type"] == "text":
        empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        arguments = json.dumps(block["input"], ensure_ascii=False)
        empty = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": arguments}
    yield {"type": "content_block_start", "index": index, "content_block": empty}
    yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def openai_error(problem: RequestError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    kind = "server_error" if problem.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": str(problem),
            "type": kind,
            "param": problem.parameter or None,
            "code": problem.code,
        }
    }


def anthropic_error(problem: RequestError) -> dict[str, Any]:
    """Return an error in Anthropic's form, with the fields `code` and `param` of OpenAI's."""
    kind = "api_error" if problem.status >= 500 else "invalid_request_error"
    error = {
        "type": kind,
        "message": str(problem),
        "code": problem.code,
        "param": problem.parameter or None,
    }
    return {"type": "error", "error": error}


def _finish_reason(answer: Answer) -> str:
    return "length" if answer.is_cut else "tool_calls" if answer.calls else "stop"


def _openai_calls(answer: Answer) -> list[dict[str, Any]]:
    """Return the calls with their arguments as text, as OpenAI's form has them."""
    return [
        {
            **call,
            "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in answer.calls
    ]


def _openai_usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens,
        "total_tokens": answer.prompt_tokens + answer.tokens,
    }


def _openai_head(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": int(time.time()),
        "model": answer.model,
        "episode": answer.episode,
    }
