"""Tests of thinking models: the template's switch, actions after a thought, and channels."""

from __future__ import annotations

import pytest

from tasks.agents.action_format import ActionFormat, MalformedActionError, read_action
from tasks.agents.chat_format import ChatFormat, ChatTemplateError
from tests.check.test_chat_format import build_tokenizer, encode
from tests.support.shipped_templates import in_channels, template_of, tokenizer_with

SPECIALS = ["<|im_start|>", "<|im_end|>"]
SWITCHED = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"""
ALWAYS = SWITCHED.replace("enable_thinking is defined and not enable_thinking", "true").replace(
    "\\n\\n</think>\\n\\n", "\\n"
)
HARMONY = """{%- for message in messages %}
{{- '<|start|>' + message.role + '<|channel|>final<|message|>' + message.content + '<|end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""


def chat_format(
    template: str, specials: list[str] = SPECIALS, action_format: str = "bare", **variables: bool
) -> ChatFormat:
    tokenizer = build_tokenizer(template, specials, None, "<|im_end|>")
    return ChatFormat(tokenizer, action_format, None, chat_template_kwargs=variables)


def shown(made: ChatFormat, tokens: list[int]) -> str:
    return made._tokenizer.decode(tokens)


def test_template_variable_disables_thinking_in_every_turn() -> None:
    on, off = chat_format(SWITCHED), chat_format(SWITCHED, enable_thinking=False)
    for made, closed in ((on, False), (off, True)):
        assert shown(made, made.prompt("Goal")).endswith("</think>\n\n") == closed
        assert shown(made, made.reply("Goal", [])).endswith("</think>\n\n") == closed
        assert not made.thought_opened


def test_unused_template_variable_is_refused_by_name() -> None:
    with pytest.raises(ChatTemplateError, match="enable_thinkng"):
        chat_format(SWITCHED, enable_thinkng=False)


def test_template_with_unreadable_channels_is_refused() -> None:
    with pytest.raises(ChatTemplateError) as refused:
        chat_format(HARMONY, ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"])
    assert refused.value.code == "channels"


@pytest.mark.parametrize(("action_format", "text"), [("bare", "go"), ("react", "Action: go")])
def test_the_action_of_a_model_with_channels_is_in_its_text(
    action_format: ActionFormat, text: str
) -> None:
    made = ChatFormat(tokenizer_with(template_of("gptoss")), action_format, None)
    assert made.action_in(made.text(made.message(in_channels("Action: stop", text)))) == "go"
    assert made.action_in(made.text(made.message(text))) == "go"
    for cut in ("<|channel|>analysis<|message|>Action: stop", in_channels("Action: stop", "")):
        with pytest.raises(MalformedActionError) as malformed:
            made.action_in(cut)
        assert malformed.value.code == "open_thought"


@pytest.mark.parametrize("opened", [True, False])
def test_the_action_is_read_after_the_thought(opened: bool) -> None:
    start = "" if opened else "<think>"
    assert (
        read_action(f"{start}Maybe <search>.</think>\n\nget 1 log", "bare", opened) == "get 1 log"
    )
    thought = f'{start}I end with "Action: go".</think>'
    assert (
        read_action(f"{thought}\nThought: wood\nAction: get 1 log", "react", opened) == "get 1 log"
    )


@pytest.mark.parametrize(
    ("text", "opened"),
    [("<think>get 1 log", False), ("get 1 log", True), ("</think>a<think>b", False)],
)
@pytest.mark.parametrize("action_format", ["bare", "react"])
def test_message_that_ends_inside_its_thought_has_no_action(
    text: str, opened: bool, action_format: str
) -> None:
    with pytest.raises(MalformedActionError):
        read_action(text, action_format, opened)


@pytest.mark.parametrize("special", [True, False])
def test_demonstration_closes_a_thought_opened_by_the_prompt(special: bool) -> None:
    made = chat_format(ALWAYS, [*SPECIALS, "<think>", "</think>"] if special else SPECIALS)
    assert made.thought_opened
    tokens = made.message("get 1 log")
    assert made.action_in(made.text(tokens)) == "get 1 log"
    conversation = shown(made, [*made.prompt("Goal"), *tokens])
    assert (
        conversation.index("<think>")
        < conversation.index("</think>")
        < conversation.index("get 1 log")
    )


def test_thought_marks_that_are_special_tokens_stay_in_the_text() -> None:
    made = chat_format(SWITCHED, [*SPECIALS, "<think>", "</think>"])
    written = encode(made._tokenizer, "<think>wood</think>get 1 log<|im_end|>")
    assert made.text(written) == "<think>wood</think>get 1 log"
    assert made.action_in(made.text(written)) == "get 1 log"
