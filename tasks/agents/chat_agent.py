"""A text-only agent behind an endpoint with OpenAI's chat protocol.

It serves demonstrations and measurements. Its messages are usable for behaviour cloning, but not
for RL, because its tokens have no log-probabilities.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec
from pydantic_core import from_json
from yarl import URL

from configs.conversation_start import ConversationStart
from environments.tools import ANY_ACTION, Tool
from tasks.agents.action_format import ActionFormat, with_format
from tasks.agents.agent import Budgets, Message, TokenBudgetError
from tasks.agents.chat_format import ChatFormat, of_task, opening_messages
from tasks.agents.retokenisation import Retokenisation
from tasks.agents.tool_calls import Call
from tasks.inference.engine import EngineError
from tasks.inference.http_session import PerLoopSession

KEY, ADDRESS = "OPENAI_API_KEY", "OPENAI_BASE_URL"
DEFAULT_ADDRESS = "https://api.openai.com/v1"
ATTEMPTS = 6
LAST_PAUSE_S = 8.0
CONNECT_S = 10.0


def key_address() -> str:
    """Return the endpoint that OPENAI_API_KEY is set for.

    The variable is read as OpenAI's own clients read it.
    """
    return os.environ.get(ADDRESS) or DEFAULT_ADDRESS


def endpoint_key(url: str) -> str | None:
    """Return the key of an endpoint.

    None if no key is set for the origin (scheme, host and port) of this URL.
    """
    try:
        is_bound = URL(url).origin() == URL(key_address()).origin() and URL(url).user is None
    except ValueError:
        is_bound = False
    return (os.environ.get(KEY) or None) if is_bound else None


class ChatAgent:
    """An `Agent` behind POST URL/chat/completions."""

    version = 0

    def __init__(
        self,
        url: str,
        model: str,
        *,
        action_format: ActionFormat,
        instruction: str | None,
        conversation_start: ConversationStart = "system",
        chat_formats: Sequence[ChatFormat] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tool_lists: Sequence[Sequence[Tool]] = ((ANY_ACTION,),),
    ) -> None:
        """Configure the agent without opening a connection.

        Args:
            url: Base URL as other clients of the protocol take it, e.g. http://127.0.0.1:8000/v1.
            model: The endpoint's name of the model.
            action_format: Format in which a message gives its action.
            instruction: Instruction at the start of the conversation.
            conversation_start: Role of the instruction, see `configs.conversation_start`.
            chat_template_kwargs: Variables of the endpoint's chat template, e.g.
                {"enable_thinking": False}.
            chat_formats: Add token ids to the trajectories, for a policy that is trained on them.
                As in `TokenAgent`.
            tool_lists: As in `World`. Only used for the action format "tools".
        """
        self.name = f"{model} at {url}"
        self._base_url = url.rstrip("/")
        self.url = f"{self._base_url}/chat/completions"
        self.model = model
        self.action_format: ActionFormat = action_format
        system = with_format(instruction, action_format)
        opening = opening_messages(conversation_start, system)
        if opening is None:
            opening = [{"role": "system", "content": system}] if system else []
        self.opening = opening
        self.tool_lists = tuple(tool_lists)
        self.chat_formats = tuple(chat_formats)
        self._extra_fields: dict[str, Any] = (
            {"chat_template_kwargs": dict(chat_template_kwargs)} if chat_template_kwargs else {}
        )
        self.kv_cache_tokens: int | None = None  # not reported by an endpoint
        self.out_of_process = True
        self.progress: int | None = None
        self._tokens_field = "max_tokens"
        key = endpoint_key(url)
        headers = {"content-type": "application/json"} | (
            {"authorization": f"Bearer {key}"} if key else {}
        )
        self._has_key = key is not None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        self._session = PerLoopSession(
            lambda: aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=timeout
            )
        )

    async def begin(
        self, task: int, seed: int, observation: str, budgets: Budgets
    ) -> ChatConversation:
        """Begin an episode, as in `Agent.begin`."""
        tools = of_task(self.tool_lists, task)
        retokenisation = Retokenisation(
            of_task(self.chat_formats, task) if self.chat_formats else None,
            self.action_format,
            observation,
            tools,
            budgets,
        )
        schemas = [tool.schema for tool in tools] if self.action_format == "tools" else []
        return ChatConversation(self, seed, observation, budgets, retokenisation, schemas)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        budgets: Budgets,
        seed: int,
        schemas: Sequence[Mapping[str, Any]] = (),
    ) -> EndpointMessage:
        """Return the next message, which may call tools with these schemas.

        Raises:
            EngineError: There was no answer after ATTEMPTS attempts, or the answer is invalid.
            TokenBudgetError: The conversation is longer than the model's context.
        """
        session, problem = await self._session.get(), ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(min(LAST_PAUSE_S, 0.25 * 2**attempt) * random.uniform(0.5, 1.0))
            request = {
                "model": self.model,
                "messages": messages,
                "temperature": budgets.temperature,
                self._tokens_field: budgets.turn_tokens,
                "seed": seed % 2**31,
                **self._extra_fields,
                **({"tools": schemas} if schemas else {}),
            }
            try:
                async with session.post(
                    self.url, data=msgspec.json.encode(request), allow_redirects=False
                ) as response:
                    status, body = response.status, await response.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = f"{self.url} is not reachable: {error}"
                continue
            text = body[:300].decode(errors="replace")
            if status == 200:
                return _read(body, self.url)
            problem = f"{self.url} returned status {status}: {text}"
            if status == 400 and ("context_length" in text or "context length" in text):
                raise TokenBudgetError(f"context length of {self.model}")
            if status == 400 and "max_completion_tokens" in text:
                # the only name that newer OpenAI models accept
                self._tokens_field = "max_completion_tokens"
            elif status in (401, 403) and not self._has_key and os.environ.get(KEY):
                problem += (
                    f". {KEY} was not sent, because {ADDRESS} assigns it to {key_address()}. "
                    f"If the key is for this endpoint, set {ADDRESS}={self._base_url}"
                )
                break
            elif status != 429 and status < 500:
                break
        raise EngineError(problem)


@dataclass(frozen=True, slots=True)
class EndpointMessage:
    """A message of an endpoint.

    Attributes:
        calls: The tools that it calls.
        ids: The endpoint's id of each call.
        cut: Whether `Budgets.turn_tokens` cut it.
    """

    text: str
    calls: list[Call]
    ids: list[str]
    cut: bool

    def of_chat(self) -> dict[str, Any]:
        """Return the message as a part of a later request."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": each,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _json(call.arguments)},
                }
                for each, call in zip(self.ids, self.calls, strict=True)
            ]
        return message


class ChatConversation:
    """One episode of a `ChatAgent`."""

    def __init__(
        self,
        agent: ChatAgent,
        seed: int,
        observation: str,
        budgets: Budgets,
        retokenisation: Retokenisation,
        schemas: Sequence[Mapping[str, Any]],
    ) -> None:
        """Start with the environment's first observation."""
        self.prompt = retokenisation.prompt
        self._agent = agent
        self._seed = seed
        self._budgets = budgets
        self._retokenisation = retokenisation
        self._schemas = schemas
        self._messages: list[dict[str, Any]] = [
            *agent.opening,
            {"role": "user", "content": observation},
        ]
        self._called: list[str] = []

    async def act(self, turn: int) -> Message:
        """Return the endpoint's next message, as in `Conversation.act`.

        Later messages get fewer tokens than `rollout.turn_tokens` where the model's context leaves
        no more. If it leaves too few for the first message, or none, that is an `EngineError`.
        """
        agent, budgets, seed = self._agent, self._budgets, self._seed + turn
        tokens, limit = budgets.turn_tokens, "rollout.turn_tokens"
        while True:
            within = replace(budgets, turn_tokens=tokens)
            try:
                answer = await agent.answer(self._messages, within, seed, self._schemas)
            except TokenBudgetError as full:
                if tokens == 1 and turn == 0:
                    raise EngineError(
                        f"the prompt fills the {full}; serve the model with a longer context, or "
                        "shorten environment.instruction"
                    ) from None
                if tokens == 1:
                    raise
                tokens, limit = (1 if turn == 0 else tokens // 2), str(full)
            else:
                break
        if turn == 0 and tokens < budgets.turn_tokens:
            raise EngineError(
                f"rollout.turn_tokens: {budgets.turn_tokens} tokens for the first message of an "
                f"episode exceed the {limit}; set a smaller value, or serve the model with a "
                "longer context"
            )
        self._messages.append(answer.of_chat())
        self._called, cut = answer.ids, limit if answer.cut else ""
        if self._agent.action_format == "tools":
            return self._retokenisation.calls(answer.text, answer.calls, cut)
        return self._retokenisation.message(answer.text, cut)

    def recall(self, message: Message) -> None:
        """Record an earlier message, as in `Conversation.recall`."""
        self._messages.append({"role": "assistant", "content": message.text})
        self._called = []
        self._retokenisation.message(message.text)

    async def observe(self, observation: str) -> list[int]:
        """Append the observation, as in `Conversation.observe`."""
        # The protocol requires a result of each call.
        results = [
            {"role": "tool", "tool_call_id": each, "content": observation} for each in self._called
        ]
        self._messages += results or [{"role": "user", "content": observation}]
        return self._retokenisation.reply(observation)

    async def close(self) -> None:
        """Do nothing: the episode holds no resources."""


def _read(body: bytes, url: str) -> EndpointMessage:
    try:
        answer: Any = msgspec.json.decode(body)
        choice = answer["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        calls = message.get("tool_calls") or []
        text = message.get("content") if calls else message["content"]
        ids = [str(call["id"]) for call in calls]
        read = [
            Call(str(call["function"]["name"]), _arguments(call["function"]["arguments"]))
            for call in calls
        ]
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as unreadable:
        raise EngineError(
            f"{url} returned an invalid chat completion ({unreadable}): {body[:200]!r}"
        ) from unreadable
    if text is None:  # a thinking model spent all tokens on its thought, unless it called a tool
        return EndpointMessage("", read, ids, not read)
    if not isinstance(text, str):
        raise EngineError(
            f"{url} returned message content of type {type(text).__name__}, not text "
            f"(finish_reason {reason!r})"
        )
    return EndpointMessage(text, read, ids, reason == "length")


def _arguments(text: str) -> Any:
    """Return the arguments of a call.

    The model's text itself if it is not JSON or is nested more than 200 levels deep.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
