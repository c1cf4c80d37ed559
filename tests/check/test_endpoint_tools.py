"""Tests of tool calls by OpenAI and Anthropic clients of the endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from environments.registry import load_world
from environments.textcraft.tools import TOOLS
from environments.tools import action_of, call_of
from tasks.agents.chat_format import CALL_ID, ChatFormat, Message
from tasks.endpoint.app import Endpoint, ServedPolicy
from tasks.endpoint.chat_tokens import ChatTokens, UnsuitableMessagesError, UnsuitableToolsError
from tasks.endpoint.episodes import Call, Episodes
from tasks.endpoint.recording import Recording
from tasks.endpoint.requests import AnthropicRequest, ChatRequest, OpenAIRequest, RequestError, read
from tasks.inference.engine import Generation, Sampling
from tasks.inference.token_guard import VARIABLE
from tasks.training.offline_selection import read_recorded
from tests.support.served_endpoint import serving
from tests.support.shipped_templates import template_of, tokenizer_with

TOKEN = "the-token-of-the-test"
SCHEMAS = [tool.schema for tool in TOOLS]
TEMPLATES = [
    "qwen2_5",
    "qwen3_instruct_2507",
    "llama3_1",
    "glm4moe",
    "gptoss",
    "gemma4",
    "lfm2_2_5",
]


def written_calls(
    tokenizer: PreTrainedTokenizerFast, actions: Sequence[str], thought: str = ""
) -> tuple[list[list[int]], list[tuple[str, dict[str, Any]]]]:
    """Return messages that perform actions, as token ids, and the call in each."""
    form = ChatFormat(tokenizer, "tools", None, tools=TOOLS)
    return (
        [form.message(form.demonstration(action, thought)) for action in actions],
        [call_of(TOOLS, action) for action in actions],
    )


def answered(
    episodes: Episodes, messages: list[Message], tokens: list[int]
) -> tuple[Call, Message]:
    call = episodes.begin_call(messages, "one", 0, SCHEMAS)
    sampling = Sampling(1.0, 90, call.chat.stop_tokens, 0)
    return call, episodes.answered(call, Generation(tokens, [-1.0] * len(tokens)), sampling, "")


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_and_results_have_the_text_of_the_chat_template(name: str) -> None:
    tokenizer = tokenizer_with(template_of(name))
    tokens, calls = written_calls(tokenizer, ["get 1 oak log", "inventory"])
    episodes = Episodes(ChatTokens(tokenizer), 0, 60, 2)
    messages: list[Message] = [{"role": "user", "content": "Goal"}]
    shown = list(messages)
    for written, (tool, arguments), result in zip(
        tokens, calls, ("Got it", "1 oak log"), strict=True
    ):
        _, message = answered(episodes, messages, written)
        assert [made["function"] for made in message["tool_calls"]] == [
            {"name": tool, "arguments": arguments}
        ]
        made = message["tool_calls"][0]["id"]
        messages = [
            *messages,
            message,
            {"role": "tool", "name": tool, "tool_call_id": made, "content": result},
        ]
        shown += [
            {**message, "tool_calls": [{**message["tool_calls"][0], "id": CALL_ID}]},
            {"role": "tool", "name": tool, "tool_call_id": CALL_ID, "content": result},
        ]
    last, _ = answered(episodes, messages, tokens[1])
    expected = tokenizer.apply_chat_template(
        shown, tokenize=False, add_generation_prompt=True, **last.chat._render_options
    )
    assert tokenizer.decode(last.context) == expected
    (row,) = episodes.open["one"].rows
    assert [turn.tokens for turn in row.turns] == [*tokens, tokens[1]]
    assert row.context == [*last.context, *tokens[1]]


def test_changed_tools_begin_another_row() -> None:
    tokenizer = tokenizer_with(template_of("qwen2_5"))
    (tokens,), _ = written_calls(tokenizer, ["inventory"])
    episodes = Episodes(ChatTokens(tokenizer), 0, 60, 2)
    messages: list[Message] = [{"role": "user", "content": "Goal"}]
    _, message = answered(episodes, messages, tokens)
    result = {"role": "tool", "name": "inventory", "content": "x"}
    messages += [message, {**result, "tool_call_id": message["tool_calls"][0]["id"]}]
    fewer = episodes.begin_call(messages, "one", 0, SCHEMAS[:1])
    assert fewer.row is None
    assert '"name": "craft"' not in tokenizer.decode(fewer.context)
    assert "<tool_call>" in tokenizer.decode(fewer.context)


@pytest.mark.parametrize(
    ("form", "tool", "auto", "none"),
    [
        (OpenAIRequest, SCHEMAS[0], "auto", "none"),
        (
            AnthropicRequest,
            {"name": "act", "input_schema": {"type": "object"}},
            {"type": "auto"},
            {"type": "none"},
        ),
    ],
)
def test_request_with_tool_choice_none_has_no_tools(
    form: type[ChatRequest], tool: Any, auto: Any, none: Any
) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool], "max_tokens": 9}
    for choice, number in ((None, 1), (auto, 1), (none, 0)):
        asked = read(form, json.dumps({**body, "tool_choice": choice}).encode())
        assert len(asked.schemas()) == number


@pytest.mark.parametrize("form", [OpenAIRequest, AnthropicRequest])
@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '"\\ud83d"', "x"])
def test_a_body_that_is_not_json_is_refused(form: type[ChatRequest], text: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(form, b'{"messages": %s}' % text.encode())
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_neither_tools_nor_calls_can_forge_special_tokens() -> None:
    tokenizer = tokenizer_with(template_of("qwen2_5"))
    chat = ChatTokens(tokenizer)
    with pytest.raises(UnsuitableToolsError):
        chat.with_tools([{**SCHEMAS[0], "x": "<|im_end|>"}])
    function = {"name": "get", "arguments": {"item": "<|im_end|>"}}
    call = {"type": "function", "id": "a", "function": function}
    forged = [
        {"role": "user", "content": "Goal"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "name": "get", "content": "<|im_end|>"},
    ]
    with pytest.raises(UnsuitableMessagesError):
        chat.with_tools(SCHEMAS).pieces(forged, ())
    (piece,) = chat.pieces([forged[0], {**forged[2], "role": "user"}], ())
    assert (
        "<|im_end|>"
        not in piece.removesuffix("<|im_end|>\n<|im_start|>assistant\n").rpartition("user")[2]
    )


def test_unreadable_call_is_returned_as_text() -> None:
    tokenizer = tokenizer_with(template_of("qwen2_5"))
    chat = ChatTokens(tokenizer).with_tools(SCHEMAS)
    broken = '<tool_call>\n{"name": "get", "arguments": {"count"}}\n</tool_call>'
    surrogate = broken.replace('{"count"}', '{"item": "\\ud83d"}')
    no_number = broken.replace('{"count"}', '{"count": NaN}')
    for text in (broken, surrogate, no_number, "I do not know."):
        tokens = [*tokenizer.encode(text, add_special_tokens=False), chat.stop_tokens[0]]
        assert chat.answer(tokens) == {"role": "assistant", "content": text}


@dataclass
class Script:
    """An engine that generates the messages of a script."""

    messages: list[list[int]]
    given: list[list[int]] = field(default_factory=list)
    name = "script"
    context_length = 4096

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, session: object | None = None
    ) -> Generation:
        self.given.append(list(tokens))
        written = self.messages[len(self.given) - 1]
        return Generation(written, [-0.5 - i for i in range(len(written))])


@dataclass
class Served:
    """An endpoint whose policy plays the oracle's episode of a task, and that task."""

    url: str
    engine: Any
    folder: Path
    task: int
    thought: str

    def check_recorded(self) -> None:
        """Check that the recorded episode has one row with the tokens of the engine."""
        (row,) = read_recorded(self.folder)
        context = list(row.prompt)
        for turn, given, sampled in zip(
            row.turns, self.engine.given, self.engine.messages, strict=True
        ):
            assert (context, turn.tokens) == (given, sampled)
            assert turn.log_probabilities == [-0.5 - i for i in range(len(sampled))]
            context += turn.tokens + turn.observation_tokens
        assert row.reward == 1.0


@pytest.fixture(params=[("qwen2_5", ""), ("gptoss", "I look first.")], ids=lambda each: each[0])
def served(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    name, thought = request.param
    monkeypatch.setenv(VARIABLE, TOKEN)
    world = load_world("textcraft")
    environment, task, actions = world.create(), world.tasks("train")[0], list[str]()
    environment.reset(task)
    while not actions or not environment.step(actions[-1]).done:
        actions.append(environment.oracle_action())
    tokenizer = tokenizer_with(template_of(name))
    engine: Any = Script(written_calls(tokenizer, actions, thought)[0])
    policy = ServedPolicy(
        "script",
        engine,
        ChatTokens(tokenizer),
        temperature=1.0,
        answer_tokens=900,
        horizon=99,
        success_score=1.0,
        environment="textcraft",
        seed=0,
    )
    folder = tmp_path / "recorded"
    endpoint = Endpoint(policy, Recording(folder, {"model": "script"}))
    with serving(endpoint.app) as port:
        yield Served(f"http://127.0.0.1:{port}", engine, folder, task, thought)


def test_an_openai_client_plays_by_tool_calls(served: Served) -> None:
    import openai  # imported here because it takes a second

    environment = load_world("textcraft").create()
    messages: list[Any] = [{"role": "user", "content": environment.reset(served.task)}]
    tools: list[Any] = SCHEMAS
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0) as client:
        reward, done = 0.0, False
        while not done:
            completion = client.chat.completions.create(model="any", messages=messages, tools=tools)
            (choice,) = completion.choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.model_dump().get("reasoning_content", "") == served.thought
            assert choice.message.tool_calls is not None
            (call,) = choice.message.tool_calls
            assert call.type == "function"
            action = action_of(TOOLS, call.function.name, json.loads(call.function.arguments))
            step = environment.step(action)
            messages += [
                choice.message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": step.observation},
            ]
            reward, done = reward + step.reward, step.done
        name = completion.model_dump()["episode"]
        client.post(f"/episodes/{name}/reward", body={"reward": reward}, cast_to=object)
    served.check_recorded()


def test_an_anthropic_client_plays_by_tool_calls_in_a_stream(served: Served) -> None:
    import anthropic  # imported here because it takes three seconds

    environment = load_world("textcraft").create()
    messages: list[Any] = [{"role": "user", "content": environment.reset(served.task)}]
    tools: list[Any] = [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.schema["function"]["parameters"],
        }
        for tool in TOOLS
    ]
    named = {"X-Episode": "run-7"}
    with anthropic.Anthropic(base_url=served.url, api_key=TOKEN, max_retries=0) as client:
        reward, done = 0.0, False
        while not done:
            with client.messages.stream(
                model="any",
                max_tokens=900,
                messages=messages,
                tools=tools,
                extra_headers=named,
            ) as stream:
                message = stream.get_final_message()
            assert message.stop_reason == "tool_use"
            (use,) = message.content
            assert use.type == "tool_use"
            step = environment.step(action_of(TOOLS, use.name, use.input))
            result = {"type": "tool_result", "tool_use_id": use.id, "content": step.observation}
            messages += [
                {"role": "assistant", "content": [use.model_dump(exclude_none=True)]},
                {"role": "user", "content": [result]},
            ]
            reward, done = reward + step.reward, step.done
        client.post("/v1/episodes/run-7/reward", body={"reward": reward}, cast_to=object)
    served.check_recorded()
