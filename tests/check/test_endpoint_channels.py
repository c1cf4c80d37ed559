"""Tests of gpt-oss at the endpoint: channels, dropped thoughts, and training on its episodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from transformers import PreTrainedTokenizerFast

from environments.textcraft.tools import TOOLS
from tasks.agents.chat_format import CALL_ID, ChatFormat, Message
from tasks.endpoint.chat_tokens import ChatTokens
from tasks.endpoint.episodes import Episodes
from tasks.endpoint.requests import Answer, openai_events
from tasks.inference.engine import Generation, Sampling
from tasks.rollout.trajectory import Trajectory
from tests.support.recorded import contexts
from tests.support.shipped_templates import in_channels, template_of, tokenizer_with

SCHEMAS = [tool.schema for tool in TOOLS]
SCRIPT = ["get 1 oak log", "inventory", "", "get 2 string", ""]
"""The actions of five answers. An empty action stands for an answer that is only text."""

History = Literal["keep", "strip"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tokenizer_with(template_of("gptoss"))
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def written(tokenizer: PreTrainedTokenizerFast, script: Sequence[str]) -> list[list[int]]:
    """Return the answers of a script with a thought each, as token ids."""
    calls, texts = (
        ChatFormat(tokenizer, "tools", None, tools=TOOLS),
        ChatFormat(tokenizer, "bare", None),
    )
    return [
        calls.message(calls.demonstration(action, f"Thought {turn}"))
        if action
        else texts.message(in_channels(f"Thought {turn}", f"Text {turn}"))
        for turn, action in enumerate(script)
    ]


def played(
    tokenizer: PreTrainedTokenizerFast, history: History, script: Sequence[str]
) -> tuple[Trajectory, list[list[int]], list[list[Message]]]:
    """Play an episode as a client that returns no thoughts.

    Returns:
        The episode, the contexts that the engine got, and the conversations that they show.
    """
    episodes = Episodes(ChatTokens(tokenizer, thinking=history), 0, 60, 2)
    schemas = SCHEMAS if any(script) else []
    sent: list[Message] = [{"role": "user", "content": "Goal"}]
    spoken, asked, shown = list(sent), list[list[int]](), list[list[Message]]()
    for turn, tokens in enumerate(written(tokenizer, script)):
        call = episodes.begin_call(sent, "one", 0, schemas)
        asked.append(call.context)
        shown.append(list(spoken))
        sampling = Sampling(1.0, 90, call.chat.stop_tokens, 0)
        assert tokens[-1] in sampling.stop_tokens
        answer = episodes.answered(call, Generation(tokens, [-1.0] * len(tokens)), sampling, "")
        assert answer["thinking"] == f"Thought {turn}"
        assert answer["content"] == ("" if script[turn] else f"Text {turn}")
        result: Message = {"role": "user", "content": f"Result {turn}"}
        without_thought = {name: part for name, part in answer.items() if name != "thinking"}
        if script[turn]:
            (made,) = answer["tool_calls"]
            result |= {"role": "tool", "name": made["function"]["name"]}
            sent = [*sent, without_thought, {**result, "tool_call_id": made["id"]}]
            spoken += [{**answer, "tool_calls": [{**made, "id": CALL_ID}]}, result]
        else:
            sent = [*sent, without_thought, result]
            spoken += [answer, result]
    return episodes.rewarded(episodes.checked("one"), 1.0, 1.0, "textcraft", "script"), asked, shown


@pytest.mark.parametrize(
    ("history", "script", "rows"),
    [
        ("keep", SCRIPT, [5]),
        ("strip", SCRIPT, [3, 2]),  # the template drops the thoughts that precede a text answer
        ("keep", [""] * 5, [5]),
        ("strip", [""] * 5, [1] * 5),
    ],
)
def test_five_turns_have_the_tokens_of_the_engine(
    tokenizer: PreTrainedTokenizerFast, history: History, script: list[str], rows: list[int]
) -> None:
    episode, asked, shown = played(tokenizer, history, script)
    assert [len(row.turns) for row in episode.rows] == rows
    assert contexts(episode) == asked
    assert [turn.tokens for turn in episode.turns] == written(tokenizer, script)
    if history == "strip":
        options: Any = {"tools": SCHEMAS} if any(script) else {}
        form = ChatTokens(tokenizer)  # its date is frozen
        assert asked == [
            tokenizer.encode(form._render(messages, **options), add_special_tokens=False)
            for messages in shown
        ]


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.get<|channel|>commentary json",
        "<|channel|>commentary to=functions.get <|constrain|>json",
        "<|channel|>commentary<|message|>I get it.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.get json",
    ],
)
def test_call_is_read_in_each_form_that_the_model_generates(
    tokenizer: PreTrainedTokenizerFast, header: str
) -> None:
    chat = ChatTokens(tokenizer).with_tools(SCHEMAS)
    thought = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant"
    text = f'{thought}{header}<|message|>{{"count": 1, "item": "oak log"}}<|call|>'
    answer = chat.answer(tokenizer.encode(text, add_special_tokens=False))
    (call,) = answer["tool_calls"]
    assert call["function"] == {"name": "get", "arguments": {"count": 1, "item": "oak log"}}
    assert (answer["content"], answer["thinking"]) == ("", "I look.")


def test_an_answer_that_ends_in_its_thought_has_no_text(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    chat = ChatTokens(tokenizer)
    for tools in ([], SCHEMAS):
        cut = tokenizer.encode("<|channel|>analysis<|message|>I lo", add_special_tokens=False)
        answer = chat.with_tools(tools).answer(cut)
        assert answer == {"role": "assistant", "content": "", "thinking": "I lo"}


def test_openai_stream_contains_the_thought() -> None:
    events = openai_events(Answer("1", "one", "tiny", "Done", "I look.", [], False, 3, 4))
    deltas = [
        json.loads(event.removeprefix("data: "))["choices"][0]["delta"]
        for event in events
        if "DONE" not in event
    ]
    assert [delta.get("reasoning_content") for delta in deltas].count("I look.") == 1
    assert "".join(delta.get("content", "") for delta in deltas) == "Done"
