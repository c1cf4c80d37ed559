"""Tests of `conversation_start`: a system message, AgentGym's messages or custom messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.recipe import RecipeError, load_recipe
from tasks.agents.action_format import REACT_FORM
from tasks.agents.chat_agent import ChatAgent
from tasks.agents.chat_format import CONSENT, ChatFormat
from tests.check.test_chat_format import TOKENIZERS

AGENTGYM_MESSAGES = [
    {"from": "human", "loss": None, "value": "You craft."},
    {"from": "gpt", "loss": False, "value": "OK."},
]
NAME = "qwen" if "qwen" in TOKENIZERS else next(iter(TOKENIZERS))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_agentgym_start_has_three_messages_and_later_turns_are_unchanged(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    usual, agentgyms = (
        ChatFormat(tokenizer, "react", "You craft.", conversation_start=start)
        for start in ("system", "agentgym")
    )
    messages = [
        {"role": "user", "content": f"You craft.\n\n{REACT_FORM}"},
        {"role": "assistant", "content": CONSENT},
        {"role": "user", "content": "Goal: craft stick."},
    ]
    rendered = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, strftime_now=lambda _: "01 Jan 2025"
    )
    assert tokenizer.decode(agentgyms.prompt("Goal: craft stick.")) == tokenizer.decode(
        tokenizer.encode(rendered, add_special_tokens=False)
    )
    last = agentgyms.message("get 1 oak logs")
    assert agentgyms.reply("Got 1 oak logs", last) == usual.reply("Got 1 oak logs", last)


def test_custom_messages_replace_the_instruction() -> None:
    messages = load_recipe(
        "textcraft", {"policy.conversation_start": AGENTGYM_MESSAGES}
    ).policy.conversation_start
    prompt = TOKENIZERS[NAME].decode(
        ChatFormat(TOKENIZERS[NAME], "react", "Not this.", conversation_start=messages).prompt(
            "Goal"
        )
    )
    assert "You craft." in prompt
    assert "OK." in prompt
    assert "Not this." not in prompt
    assert "Thought:" not in prompt


def test_conversation_start_is_read_from_agentgyms_file(tmp_path: Path) -> None:
    path = tmp_path / "start.json"
    path.write_text(json.dumps(AGENTGYM_MESSAGES))
    start = load_recipe(
        "textcraft", {"policy.conversation_start": str(path)}
    ).policy.conversation_start
    assert [message.model_dump() for message in start if not isinstance(message, str)] == [
        {"role": "user", "content": "You craft."},
        {"role": "assistant", "content": "OK."},
    ]
    assert not isinstance(start, str)
    path.write_text('[{"from": "robot", "value": "x"}]')
    with pytest.raises(RecipeError, match=r"policy\.conversation_start"):
        load_recipe("textcraft", {"policy.conversation_start": str(path)})


@pytest.mark.parametrize(
    ("start", "roles"), [("system", ["system"]), ("agentgym", ["user", "assistant"])]
)
def test_endpoint_gets_the_same_opening_messages(start: str, roles: list[str]) -> None:
    agent = ChatAgent(
        "http://127.0.0.1:1/v1",
        "model",
        action_format="bare",
        instruction="You craft.",
        conversation_start=start,
    )  # type: ignore[arg-type]
    assert [message["role"] for message in agent.opening] == roles
    assert agent.opening[0]["content"] == "You craft."


def test_agentgym_start_without_instruction_is_the_observation() -> None:
    one, other = (
        ChatFormat(TOKENIZERS[NAME], "bare", None, conversation_start=start)
        for start in ("system", "agentgym")
    )
    assert one.prompt("Goal") == other.prompt("Goal")
