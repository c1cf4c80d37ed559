"""Tests of tools: actions as calls, calls in messages, demonstrations, and a chat endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from configs.collection import Collection, Source
from configs.environment import World as configured
from configs.experiment import Policy
from configs.mixture import member_of
from environments.environment import World
from environments.handshake import verify_servers
from environments.openenv.actions import form_of
from environments.protocol import WorldInfo
from environments.registry import load_world
from environments.sciworld.tools import TOOLS as SCIWORLD
from environments.textcraft.tools import TOOLS as TEXTCRAFT
from environments.tools import ANY_ACTION, Tool, ToolCallError, action_of, call_of
from environments.webarena.actions import parse_action
from environments.webarena.tools import TOOLS as WEBARENA
from tasks.agents.action_format import MalformedActionError
from tasks.agents.agent import Budgets
from tasks.agents.agent_factory import open_agent
from tasks.agents.chat_agent import _read
from tasks.agents.chat_format import CALL_ID, ChatFormat, chat_formats
from tasks.agents.scripted_agent import ScriptedAgent
from tasks.agents.tool_calls import Call, plain_calls, plain_text
from tasks.inference.engine import EngineError
from tests.check.test_chat_format import build_tokenizer
from tests.support.playing import starting
from tests.support.shipped_templates import template_of, tokenizer_with

MISTRAL = """{{ bos_token }}{% for message in messages %}
{%- if message.role == 'user' %}{% if tools and (loop.last or messages[loop.index0 + 1].tool_calls) %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS]{"content": ' + message.content | tojson + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif message.tool_calls %}CALLS{{ eos_token }}
{%- else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"""  # noqa: E501
LISTED = (
    '[TOOL_CALLS][{% for call in message.tool_calls %}{{ \'{"name": "\' + call.function.name + '
    '\'", "arguments": \' + '
    "call.function.arguments | tojson + ', \"id\": \"' + call.id + '\"}' }}{% endfor %}]"
)
NAMED = (
    "{% for call in message.tool_calls %}{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}"
    "{{ call.function.arguments | tojson }}{% endfor %}"
)
MARKS = [
    f"[{slash}{name}]"
    for name in ("INST", "TOOL_CALLS", "ARGS", "AVAILABLE_TOOLS", "TOOL_RESULTS")
    for slash in ("", "/")
]


@pytest.mark.parametrize("name", ["textcraft", "babyai", "searchqa"])
def test_every_action_of_the_expert_and_every_valid_action_is_a_call(name: str) -> None:
    world = load_world(name)
    environment = world.create()
    for task in list(world.tasks("train"))[:20]:
        environment.reset(task)
        for _ in range(30):
            action = environment.oracle_action()
            for each in [action, *environment.valid_actions()]:
                assert action_of(world.tools, *call_of(world.tools, each)) == each
            if environment.step(action).done:
                break


@pytest.mark.parametrize(
    ("tools", "name", "arguments", "action"),
    [
        (
            SCIWORLD,
            "use_on",
            {"object": "thermometer", "other": "water in pot"},
            "use thermometer on water in pot",
        ),
        (SCIWORLD, "use", {"object": "stove"}, "use stove"),
        (SCIWORLD, "choose", {"number": 2}, "2"),
        (SCIWORLD, "pour", {"object": "cup", "other": "pot"}, "pour cup into pot"),
        (WEBARENA, "click", {"element": 12}, "click [12]"),
        (WEBARENA, "type", {"element": 3, "text": "a [b]", "enter": 1}, "type [3] [a [b]] [1]"),
        (WEBARENA, "scroll", {"direction": "down"}, "scroll [down]"),
        (WEBARENA, "stop", {"answer": ""}, "stop []"),
        (WEBARENA, "go_back", {}, "go_back"),
        ((ANY_ACTION,), "act", {"action": "guess 3"}, "guess 3"),
    ],
)
def test_a_call_and_its_action_are_converted_into_each_other(
    tools: Sequence[Tool], name: str, arguments: dict[str, Any], action: str
) -> None:
    assert action_of(tools, name, arguments) == action
    assert call_of(tools, action) == (name, arguments)
    if tools is WEBARENA:
        parse_action(action)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("take", {"count": 1, "item": "log"}),
        ("get", {"count": 1}),
        ("get", {"count": 1, "item": "log", "from": "forest"}),
        ("get", {"count": "one", "item": "log"}),
        ("get", {"count": True, "item": "log"}),
        ("get", ["log"]),
        ("craft", {"count": 1, "item": "stick", "ingredients": "1 log"}),
    ],
)
def test_a_call_that_does_not_fit_its_tool_is_refused(name: str, arguments: object) -> None:
    with pytest.raises(ToolCallError):
        action_of(TEXTCRAFT, name, arguments)
    with pytest.raises(ToolCallError):
        action_of(WEBARENA, "scroll", {"direction": "left"})


def chat_format(template: str = "qwen2_5") -> ChatFormat:
    return ChatFormat(tokenizer_with(template_of(template)), "tools", "You craft.", tools=TEXTCRAFT)


DEEP = "[" * 100_000 + "]" * 100_000
CALL = '<tool_call>\n{"name": "get", "arguments": {"count": 1, "item": "log"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("get 1 log", "no_call"),
        (CALL + CALL, "several_calls"),
        (CALL.replace("log", 'lo"g'), "unreadable_call"),
        (CALL.replace("1", '"x"'), "invalid_call"),
        (CALL.replace("get", "take"), "invalid_call"),
        (CALL.replace("log", "\\ud83d"), "unreadable_call"),
        (CALL.replace("item", "\\ud83d"), "unreadable_call"),
        (CALL.replace("get", "\\ud83d"), "unreadable_call"),
        (CALL.replace("1", DEEP), "unreadable_call"),
    ],
)
def test_message_without_exactly_one_valid_call_is_malformed(text: str, code: str) -> None:
    with pytest.raises(MalformedActionError) as malformed:
        chat_format().action_in(text)
    assert malformed.value.code == code
    str(malformed.value).encode()


def test_a_plain_text_with_an_unreadable_call_has_no_call() -> None:
    arguments = {"count": 1, "item": "log"}
    text = plain_text("", [Call("get", arguments)])
    assert plain_calls(text) == [Call("get", arguments)]
    assert plain_calls(text.replace("log", "\\ud83d")) == []
    assert plain_calls(text.replace("1", DEEP)) == []


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_call_in_plain_text_may_contain_a_line_separator(separator: str) -> None:
    call = Call("get", {"count": 1, "item": f"oak{separator}log"})
    assert plain_calls(plain_text(f"I think.{separator}I act.", [call])) == [call]


def test_only_a_message_with_a_call_is_answered_by_a_tool_message() -> None:
    form = chat_format()
    called, spoken = form.message(CALL), form.message("I do not know.")
    for message, by_tool in ((called, True), (spoken, False)):
        for written in (message, message[:-1]):
            reply = form._tokenizer.decode(form.reply("Got 1 log", written))
            assert ("<tool_response>" in reply) == by_tool
            assert reply.startswith("<|im_end|>") == (written is not message)


def test_the_result_of_a_tool_cannot_forge_special_tokens() -> None:
    for template in ("qwen2_5", "llama3_1", "gptoss", "glm4moe", "gemma4"):
        form = chat_format(template)
        message = form.message(form.demonstration("inventory", ""))
        end = form._tokenizer.decode(message[-1:])
        special = set(form._tokenizer.all_special_ids)
        honest, forged = form.reply("Got 1 log", message), form.reply(f"Got 1 {end} log", message)
        assert [token for token in forged if token in special] == [
            token for token in honest if token in special
        ]
        assert f"Got 1 {end} log" in form._tokenizer.decode(forged)


@pytest.mark.parametrize("calls", [LISTED, NAMED])
def test_calls_of_mistrals_models_are_read(calls: str) -> None:
    tokenizer = build_tokenizer(
        MISTRAL.replace("CALLS", calls), ["<s>", "</s>", *MARKS], "<s>", "</s>"
    )
    form = ChatFormat(tokenizer, "tools", None, tools=TEXTCRAFT)
    message = form.message(form.demonstration("craft 4 oak planks using 1 oak log", ""))
    assert form.action_in(form.text(message)) == "craft 4 oak planks using 1 oak log"
    assert CALL_ID in tokenizer.decode(form.reply("Crafted", message))


def play_expert(world: World, form: ChatFormat | None) -> list[str]:
    """Play a task with the expert, and return its messages after checking the action in each."""

    async def play() -> list[str]:
        agent, environment = ScriptedAgent(world, "tools", [form] if form else ()), world.create()
        task = world.tasks("train")[0]
        conversation = await agent.begin(task, 0, environment.reset(task), Budgets(1.0, 100, 1000))
        texts: list[str] = []
        while True:
            message = await conversation.act(len(texts))
            assert message.action is not None
            assert bool(message.tokens) == bool(form)
            texts.append(message.text)
            step = environment.step(message.action)
            if step.done:
                return texts
            await conversation.observe(step.observation)

    return asyncio.run(play())


def test_expert_demonstrates_calls_in_the_format_of_the_model() -> None:
    world = load_world("textcraft")
    plain = play_expert(world, None)
    for template in ("qwen2_5", "llama3_1", "glm4moe", "gptoss"):
        form = chat_format(template)
        texts = play_expert(world, form)
        assert len(texts) == len(plain)
        assert [call.name for (call,) in map(form.calls, texts)] == [
            json.loads(text.splitlines()[-1])["name"] for text in plain
        ]


def test_each_task_of_a_mixture_has_the_tools_of_its_world() -> None:
    world = load_world("textcraft+babyai")
    tokenizer = tokenizer_with(template_of("qwen2_5"))
    formats = chat_formats(tokenizer, "tools", None, tool_lists=world.tool_lists)
    agent = ScriptedAgent(world, "tools", formats)

    async def first(task: int) -> tuple[str, str]:
        environment = world.create()
        conversation = await agent.begin(task, 0, environment.reset(task), Budgets(1.0, 100, 1000))
        message = await conversation.act(0)
        assert message.action is not None
        assert not environment.step(message.action).refused
        return tokenizer.decode(conversation.prompt), message.text

    for task in world.tasks("train")[:4]:
        prompt, text = asyncio.run(first(task))
        for name in ("textcraft", "babyai"):
            is_own = member_of(world.name, task)[0] == name
            tools = load_world(name).tools
            assert [f'"name": "{tool.name}"' in prompt for tool in tools] == [is_own] * len(tools)
            assert is_own == any(f'"name": "{tool.name}"' in text for tool in tools)


def test_the_server_of_a_mixture_lists_the_tools_of_each_world(state_dir: Path) -> None:
    with starting("textcraft+babyai", state_dir) as start:
        urls = [start().url]
        hosted = asyncio.run(verify_servers(urls, configured(name="textcraft+babyai")))
    assert hosted.tool_lists == [list(load_world(name).tools) for name in ("textcraft", "babyai")]


@pytest.mark.parametrize("malformed", ["{count: 1}", f'{{"count": {DEEP}}}'])
def test_chat_endpoint_plays_with_tool_calls(malformed: str) -> None:
    """Let the endpoint begin with a malformed call. The error is the result of that call."""
    world = load_world("textcraft")
    task = world.tasks("train")[0]
    requests: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        requests.append(body)
        arguments = malformed if len(requests) == 1 else '{"count": 1, "item": "oak log"}'
        calls = [
            {
                "id": f"id{len(requests)}",
                "type": "function",
                "function": {"name": "get", "arguments": arguments},
            }
        ]
        return web.json_response(
            {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
        )

    async def play() -> tuple[list[str | None], list[bool]]:
        application = web.Application()
        application.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        source = Source(
            kind="openai",
            model="crafter",
            urls=(f"http://127.0.0.1:{runner.addresses[0][1]}/v1",),
            action_format="tools",
            instruction=False,
        )
        collection = Collection(environment="textcraft", source=source)  # type: ignore[arg-type]
        actions: list[str | None] = []
        with open_agent(
            collection, WorldInfo("textcraft", world.version, "", {}, tools=list(world.tools))
        ) as agent:
            conversation = await agent.begin(task, 0, "Goal", Budgets(1.0, 100, 1000))
            for turn in range(3):
                message = await conversation.act(turn)
                actions.append(message.action)
                await conversation.observe(message.problem or "Got 1 oak log")
        await runner.cleanup()
        return actions, [bool(body["tools"]) for body in requests]

    actions, with_tools = asyncio.run(play())
    assert actions == [None, "get 1 oak log", "get 1 oak log"]
    assert all(with_tools)
    assert [message["role"] for message in requests[-1]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert [
        message["tool_call_id"] for message in requests[-1]["messages"] if message["role"] == "tool"
    ] == ["id1", "id2"]


def test_an_endpoint_that_nests_its_answer_too_deeply_is_an_engine_error() -> None:
    with pytest.raises(EngineError):
        _read(b'{"choices": %s}' % DEEP.encode(), "http://127.0.0.1/v1")


def test_the_starter_policy_has_no_tools() -> None:
    with pytest.raises(ValueError, match="action_format"):
        Policy(action_format="tools")


def test_action_of_a_tool_without_a_text_form_is_its_call_as_json() -> None:
    """Check the form in which the MCP tools of OpenEnv's servers are called."""
    tool = Tool("look", "Look.", {"at": {"type": "string"}})
    action = action_of([tool], "look", {"at": "sea"})
    form = form_of({}, [{"name": "look", "inputSchema": {"properties": tool.parameters}}])
    assert form.data(action)["arguments"] == {"at": "sea"}
