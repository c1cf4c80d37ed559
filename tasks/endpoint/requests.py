"""Requests and answers of chat clients, in OpenAI's and in Anthropic's form."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

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
        text: The text, without special tokens.
        is_cut: Whether a token budget ended it.
        prompt_tokens, tokens: Number of token ids given and sampled.
    """

    id: str
    episode: str
    model: str
    text: str
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


class ChatMessage(BaseModel):
    """A message in OpenAI's form."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class AnthropicMessage(BaseModel):
    """A message in Anthropic's form."""

    role: Literal["user", "assistant"]
    content: Content


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
        "tools": ([],),
        "functions": ([],),
        "response_format": ({"type": "text"},),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    max_completion_tokens: Annotated[int, Field(gt=0)] | None = None
    user: str | None = None

    def conversation(self) -> list[Message]:
        """Return the messages. Implements `ChatRequest.conversation`."""
        roles = {"developer": "system"}
        return [
            {"role": roles.get(each.role, each.role), "content": _text(each.content)}
            for each in self.messages
        ]

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
        "tools": ([],),
        "thinking": ({"type": "disabled"},),
    }

    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(gt=0)]
    system: Content | None = None

    def conversation(self) -> list[Message]:
        """Return the system text and the messages. Implements `ChatRequest.conversation`."""
        system: list[Message] = (
            [{"role": "system", "content": _text(self.system)}] if self.system else []
        )
        return [
            *system,
            *({"role": each.role, "content": _text(each.content)} for each in self.messages),
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
        given = json.loads(body or b"{}")
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
    """Return an answer in OpenAI's form. `episode` is a field of this endpoint."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": answer.text},
        "finish_reason": "length" if answer.is_cut else "stop",
        "logprobs": None,
    }
    usage = {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens,
        "total_tokens": answer.prompt_tokens + answer.tokens,
    }
    return {**_openai_head(answer, "chat.completion"), "choices": [choice], "usage": usage}


def openai_events(answer: Answer) -> Iterator[str]:
    """Return the events of a streamed answer in OpenAI's form."""
    deltas: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        ({"content": answer.text}, None),
        ({}, "length" if answer.is_cut else "stop"),
    ]
    for delta, reason in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        yield f"data: {json.dumps({**_openai_head(answer, 'chat.completion.chunk'), 'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


def anthropic_body(answer: Answer) -> dict[str, Any]:
    """Return an answer in Anthropic's form. `episode` is a field of this endpoint."""
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [{"type": "text", "text": answer.text}],
        "stop_reason": "max_tokens" if answer.is_cut else "end_turn",
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
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": answer.text},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": answer.tokens}},
        {"type": "message_stop"},
    ]
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


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


def _openai_head(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": int(time.time()),
        "model": answer.model,
        "episode": answer.episode,
    }
