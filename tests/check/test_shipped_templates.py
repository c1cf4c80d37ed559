"""Tests that each chat template of TRL renders five turns exactly or is refused with a code."""

from __future__ import annotations

import re
from typing import Literal

import pytest

from environments.textcraft.tools import TOOLS
from environments.tools import call_of
from tasks.agents.action_format import ActionFormat
from tasks.agents.chat_format import CALL_ID, ChatFormat, ChatTemplateError
from tests.support.shipped_templates import NAMES, template_of, tokenizer_with

ACTIONS = [
    "get 1 oak log",
    "craft 4 oak planks using 1 oak log",
    "inventory",
    "get 2 string",
    "craft 2 stick using 1 oak planks, 1 spruce planks",
]
INSTRUCTION = "You craft things."
RESULTS = {
    # templates without tools
    "exact no_tools": "cohere cohere2 cohere2_training cohere_training gemma gemma3 gemma3_training gemma_training llama3 llama3_training "
    "phi3 phi3_5 phi3_5_training phi3_training qwen2_5_vl qwen2_5_vl_training",
    "thoughts no_tools": "deepseek_r1_distill deepseek_r1_distill_training deepseekv3 deepseekv3_training",
    "exact missing_message": "lfm2 lfm2_training",
    # templates with tools
    "exact exact": "gemma4 gemma4_v2 gemma4_v3 gemma4_v4 gemma4_v5 lfm2_2_5 lfm2_2_5_v2 lfm2_2_5_vl lfm2_v2 lfm2_v2_training "
    "llama3_1 llama3_2 qwen2_5 qwen2_5_training qwen3_5_nothink_training qwen3_5_think_training "
    "qwen3_6_training qwen3_8 qwen3_8_training "
    "qwen3_instruct_2507 qwen3_instruct_2507_training qwen3_vl qwen3_vl_training",
    "exact thoughts": "qwen3",
    "thoughts exact": "glm4moe glm4moe_training qwen3_5_nothink qwen3_5_think qwen3_6 qwen3_training",
    "thoughts thoughts": "nemotron_3_5_lightning nemotron_3_5_lightning_training nemotron_3_nano nemotron_3_nano_training nemotron_3_super "
    "nemotron_3_super_training nemotron_3_ultra nemotron_3_ultra_training",
    "ends exact": "gptoss gptoss_training",
    # templates that change earlier turns, or whose tool calls cannot be read
    "exact changed_turn_start": "diffusion_gemma diffusion_gemma_training",
    "channels unknown_calls": "muse_glimmer muse_glimmer_training",
    # templates that require content as a list of parts
    "missing_message missing_message": "idefics3 idefics3_training llava_next llava_next_training smolvlm smolvlm_training",
}
"""Result in the formats "bare" and "tools", and the templates that have it.

- exact: The episode has the tokens of the full conversation as the template renders it.
- thoughts: The tokens differ only in empty thoughts, which the template adds to earlier turns or
  removes from them.
- ends: The tokens differ only in the end of a message. The template replaces the policy's token by
  another one in earlier turns.
- Any other result is the code of a refusal.
"""


def result(name: str, action_format: Literal["bare", "tools"]) -> str:
    tokenizer = tokenizer_with(template_of(name))
    try:
        chat_format = ChatFormat(tokenizer, action_format, INSTRUCTION, tools=TOOLS)
    except ChatTemplateError as refused:
        return refused.code
    played = [*chat_format.prompt("Goal: stick")]
    for turn, action in enumerate(ACTIONS):
        message = chat_format.message(chat_format.demonstration(action, ""))
        assert chat_format.action_in(chat_format.text(message)) == action
        assert message[-1] in chat_format.stop_tokens
        played += [*message, *chat_format.reply(observation(turn), message)]
    rendered = conversation(chat_format, action_format)
    if played == tokenizer.encode(rendered, add_special_tokens=False):
        return "exact"
    ends = [chat_format._own_end, chat_format._end_of_turn]
    if ends[0] != ends[1]:
        replaced = [ends[1] if token == ends[0] else token for token in played]
        assert replaced == tokenizer.encode(rendered, add_special_tokens=False)
        return "ends"
    assert without_thoughts(tokenizer.decode(played)) == without_thoughts(rendered)
    return "thoughts"


def observation(turn: int) -> str:
    return f'Got <{turn}> "x" 木'


def conversation(chat_format: ChatFormat, action_format: ActionFormat) -> str:
    messages = chat_format._opening(chat_format._instruction, "Goal: stick")
    for turn, action in enumerate(ACTIONS):
        if action_format == "tools":
            name, arguments = call_of(TOOLS, action)
            call = {
                "id": CALL_ID,
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append(
                {
                    "role": "tool",
                    "name": name,
                    "tool_call_id": CALL_ID,
                    "content": observation(turn),
                }
            )
        else:
            messages += [
                {"role": "assistant", "content": action},
                {"role": "user", "content": observation(turn)},
            ]
    return chat_format._render(messages)


def without_thoughts(text: str) -> str:
    return re.sub(r"<think>\s*</think>|\s", "", text)


def test_the_table_names_every_template() -> None:
    assert sorted(name for names in RESULTS.values() for name in names.split()) == NAMES


@pytest.mark.parametrize(
    ("name", "expected"),
    [(name, expected) for expected, names in RESULTS.items() for name in names.split()],
)
def test_template_carries_five_turns_exactly_or_is_refused(name: str, expected: str) -> None:
    assert f"{result(name, 'bare')} {result(name, 'tools')}" == expected


@pytest.mark.parametrize("action_format", ["bare", "tools"])
@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3_5_think", "glm4moe", "nemotron_3_nano", "qwen3_8"]
)
def test_thoughts_of_earlier_turns_stay_as_they_were_written(
    name: str, action_format: ActionFormat
) -> None:
    tokenizer = tokenizer_with(template_of(name))
    chat_format = ChatFormat(tokenizer, action_format, INSTRUCTION, tools=TOOLS)
    tokens = chat_format.prompt("Goal: stick")
    for turn, action in enumerate(ACTIONS):
        text = chat_format.demonstration(action, "").rpartition("</think>")[2].lstrip()
        opening = "" if chat_format.thought_opened else "<think>\n"
        message = chat_format.message(f"{opening}Thought {turn}: get or craft?\n</think>\n\n{text}")
        assert chat_format.action_in(chat_format.text(message)) == action
        tokens += [*message, *chat_format.reply(observation(turn), message)]
    shown = tokenizer.decode(tokens)
    assert [shown.count(f"Thought {turn}:") for turn in range(5)] == [1] * 5
    assert shown.count("<think>") == shown.count("</think>") + chat_format.thought_opened
