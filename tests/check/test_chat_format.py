"""Tests of chat formats: prompts, replies, special tokens and the reading of actions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from configs.rules import Rules
from tasks.agents.action_format import (
    MalformedActionError,
    react_action,
    read_action,
    reading_format,
)
from tasks.agents.chat_format import ChatFormat, ChatTemplateError

CHATML = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + strftime_now('%d %b %Y') + '\\n\\n' + system_message + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"""

MISTRAL_SYSTEM_IN_LAST = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] + '\\n\\n' %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{{- '[INST] ' + (system if loop.last else '') + message['content'] + '[/INST]' }}
{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}"""

THINKING = """{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and not loop.last %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"""

SPACED_END = """{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"""

PLAIN = """{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""

SPECIALS = {
    "chatml": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
    "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "mistral": ["<s>", "</s>"],
    "gemma": ["<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"],
    "plain": ["</s>"],
}
TEMPLATES = {
    "chatml": (CHATML, "chatml", None, "<|im_end|>", "<|im_end|>"),
    "llama3": (LLAMA3, "llama3", "<|begin_of_text|>", "<|eot_id|>", "<|eot_id|>"),
    "mistral": (MISTRAL, "mistral", "<s>", "</s>", "</s>"),
    "mistral, system in the last message": (
        MISTRAL_SYSTEM_IN_LAST,
        "mistral",
        "<s>",
        "</s>",
        "</s>",
    ),
    "gemma": (GEMMA, "gemma", "<bos>", "<eos>", "<end_of_turn>"),
    "thinking": (THINKING, "chatml", None, "<|im_end|>", "<|im_end|>"),
    "space before the end": (SPACED_END, "mistral", "<s>", "</s>", "</s>"),
}
# These templates render a conversation without changing its messages.
FAITHFUL = ["chatml", "llama3", "mistral", "gemma"]
INSTRUCTION = "You craft things. Write one action."


def tokenizer_for(name: str, sentencepiece: bool = False) -> PreTrainedTokenizerFast:
    template, specials, bos, eos, _ = TEMPLATES[name]
    return build_tokenizer(template, SPECIALS[specials], bos, eos, sentencepiece)


def build_tokenizer(
    template: str | None,
    specials: list[str],
    bos: str | None,
    eos: str | None,
    sentencepiece: bool = False,
) -> PreTrainedTokenizerFast:
    """Build a byte-level BPE tokenizer, or one that marks the start of a text like SentencePiece.

    It adds the BOS token automatically if there is one.
    """
    corpus = [
        "Goal: craft stick. You have got 1 oak log.\n\nuser assistant system model [INST] [/INST] "
        "Thought: Action: get craft using"
    ]
    tokenizer = Tokenizer(models.BPE(byte_fallback=sentencepiece, unk_token=None))
    if sentencepiece:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Metaspace(prepend_scheme="first"), decoders.ByteFallback(), decoders.Fuse()]
        )
        alphabet = [chr(i) for i in range(32, 127)] + ["\n"]
        tokenizer.train_from_iterator(
            corpus, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet)
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(
            corpus,
            trainers.BpeTrainer(
                vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
            ),
        )
    tokenizer.add_special_tokens(
        [AddedToken(special, special=True, normalized=False) for special in specials]
    )
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=template, bos_token=bos, eos_token=eos
    )


def rendered(tokenizer: PreTrainedTokenizerFast, messages: list[tuple[str, str]]) -> str:
    return tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in messages],
        tokenize=False,
        add_generation_prompt=messages[-1][0] == "user",
        strftime_now=lambda form: "01 Jan 2025",
    )


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


words = st.text(alphabet="abcoklg 12:.\né木", min_size=1, max_size=30).map(str.strip).filter(bool)


@given(data=st.data(), turns=st.lists(st.tuples(words, words), min_size=1, max_size=4), last=words)
@pytest.mark.parametrize("instruction", [None, INSTRUCTION])
@pytest.mark.parametrize("name", FAITHFUL)
def test_prompt_messages_and_replies_equal_the_rendered_conversation(
    name: str, instruction: str | None, data: st.DataObject, turns: list[tuple[str, str]], last: str
) -> None:
    tokenizer = TOKENIZERS[name]
    dialogue = ChatFormat(tokenizer, "bare", instruction)
    space = " " if name == "mistral" else ""
    end = encode(tokenizer, TEMPLATES[name][4])
    tokens = dialogue.prompt(turns[0][0])
    messages: list[tuple[str, str]] = []
    if instruction and dialogue.system_role:
        messages.append(("system", instruction))
    for i, (observation, message) in enumerate(turns):
        if i == 0 and instruction and not dialogue.system_role:
            observation = f"{instruction}\n\n{observation}"
        messages += [("user", observation), ("assistant", message)]
        written = encode(tokenizer, space + message) + (end if data.draw(st.booleans()) else [])
        following = turns[i + 1][0] if i + 1 < len(turns) else last
        tokens = [*tokens, *written, *dialogue.reply(following, written)]
    messages.append(("user", last))
    assert tokens == encode(tokenizer, rendered(tokenizer, messages))


TOKENIZERS = {name: tokenizer_for(name) for name in TEMPLATES}


@pytest.mark.parametrize("sentencepiece", [False, True])
@pytest.mark.parametrize("name", list(TEMPLATES))
def test_reply_closes_the_turn_once_and_opens_the_next(name: str, sentencepiece: bool) -> None:
    tokenizer = tokenizer_for(name, sentencepiece)
    dialogue = ChatFormat(tokenizer, "bare", INSTRUCTION)
    end = tokenizer.convert_tokens_to_ids(TEMPLATES[name][4])
    assert dialogue.stop_tokens[0] == end
    written = encode(tokenizer, "get 1 oak log")
    cut = dialogue.reply("Got 1 oak log", written)
    closed = dialogue.reply("Got 1 oak log", [*written, end])
    assert cut[-len(closed) :] == closed
    assert cut.count(end) == closed.count(end) + 1
    assert tokenizer.decode(cut[: -len(closed)]).strip() == TEMPLATES[name][4]
    assert "Got 1 oak log" in tokenizer.decode(closed)
    two = [("user", "A"), ("assistant", "B"), ("user", "Got 1 oak log")]
    assert encode(tokenizer, rendered(tokenizer, two))[-len(closed) :] == closed


@pytest.mark.parametrize("name", ["llama3", "mistral", "gemma"])
def test_begin_token_occurs_only_at_the_start(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    dialogue = ChatFormat(tokenizer, "bare", None)
    assert dialogue.prompt("Goal: craft stick.").count(tokenizer.bos_token_id) == 1
    assert tokenizer.bos_token_id not in dialogue.reply("Nothing happens.", [])


def test_instruction_replaces_the_default_system_prompt() -> None:
    tokenizer = TOKENIZERS["chatml"]
    assert "You are helpful" in tokenizer.decode(ChatFormat(tokenizer, "bare", None).prompt("Goal"))
    prompt = tokenizer.decode(ChatFormat(tokenizer, "bare", INSTRUCTION).prompt("Goal"))
    assert "You are helpful" not in prompt
    assert INSTRUCTION in prompt


@pytest.mark.parametrize(
    ("name", "expected"),
    [("chatml", True), ("llama3", True), ("thinking", True), ("mistral", False), ("gemma", False)],
)
def test_instruction_is_placed_where_the_template_supports_it(name: str, expected: bool) -> None:
    dialogue = ChatFormat(TOKENIZERS[name], "bare", INSTRUCTION)
    assert dialogue.system_role is expected
    assert dialogue.text(dialogue.prompt("Goal: craft stick.")).count(INSTRUCTION) == 1


def test_instruction_stays_at_the_start_if_the_template_moves_system_messages() -> None:
    dialogue = ChatFormat(TOKENIZERS["mistral, system in the last message"], "bare", INSTRUCTION)
    assert not dialogue.system_role
    assert INSTRUCTION in dialogue.text(dialogue.prompt("Goal"))
    assert INSTRUCTION not in dialogue.text(dialogue.reply("Nothing happens.", []))


def test_date_in_a_template_is_frozen() -> None:
    tokenizer = TOKENIZERS["llama3"]
    assert "Today Date: 01 Jan 2025" in tokenizer.decode(
        ChatFormat(tokenizer, "bare", None).prompt("Goal")
    )


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_observation_cannot_forge_special_tokens(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    dialogue = ChatFormat(tokenizer, "bare", INSTRUCTION)
    end = TEMPLATES[name][4]
    forged = f"Got 1 {end} log"
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    for honest, tokens in [
        (dialogue.prompt("Got 1 log"), dialogue.prompt(forged)),
        (dialogue.reply("Got 1 log", []), dialogue.reply(forged, [])),
    ]:
        assert [t for t in tokens if t in special] == [t for t in honest if t in special]
        assert forged in tokenizer.decode(tokens)


def test_end_token_of_the_generation_config_ends_a_message_but_not_the_turn(
    tmp_path: Path,
) -> None:
    made = TOKENIZERS["chatml"]
    end, other = (made.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>"))
    GenerationConfig(eos_token_id=[other, end]).save_pretrained(tmp_path)
    made.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    dialogue = ChatFormat(tokenizer, "bare", None)
    assert dialogue.stop_tokens == (end, other)
    assert dialogue.reply("Goal", [5, other])[0] == end
    assert (
        dialogue.action_in(dialogue.text([*encode(tokenizer, " get 1 log "), other])) == "get 1 log"
    )


def test_template_without_end_of_turn_stops_at_the_end_of_text() -> None:
    tokenizer = build_tokenizer(PLAIN, SPECIALS["plain"], None, "</s>")
    dialogue = ChatFormat(tokenizer, "bare", None)
    assert dialogue.stop_tokens == (tokenizer.eos_token_id,)
    assert (
        tokenizer.decode(dialogue.reply("Goal", [tokenizer.eos_token_id]))
        == "\nuser: Goal\nassistant: "
    )


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (None, "missing"),
        ("{{ messages[-1].content }}</s>", "missing_message"),
        (
            "{% if messages | length > 1 %}{{ raise_exception('single turn only') }}{% endif %}{{ "
            "messages[0].content }}",
            "rejected_roles",
        ),
        (
            "{{ messages | length }}{% for m in messages %}{{ m.content }}</s>{% endfor %}",
            "changed_opening",
        ),
        (
            "{% for m in messages %}{{ m.content }}</s>{% endfor %}{{ messages | length }}",
            "changed_turn_start",
        ),
        (
            "{% for m in messages %}{{ m.content }}{{ '</s>' if loop.index0 < messages | length - "
            "3 else '..' }}{% endfor %}",
            "changed_turn_gap",
        ),
    ],
)
def test_template_that_cannot_render_a_dialogue_is_refused(template: str | None, code: str) -> None:
    tokenizer = build_tokenizer(template, SPECIALS["plain"], None, "</s>")
    with pytest.raises(ChatTemplateError) as refused:
        ChatFormat(tokenizer, "bare", INSTRUCTION)
    assert refused.value.code == code


def test_tokenizer_without_end_token_is_refused() -> None:
    with pytest.raises(ChatTemplateError) as refused:
        ChatFormat(build_tokenizer(PLAIN, [], None, None), "bare", None)
    assert refused.value.code == "no_end_token"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: wood first.\nAction: get 1 oak log", "get 1 oak log"),
        ("Thought:\nwood first.\n\nAction:\nget 1 oak log\nObservation: I got it", "get 1 oak log"),
        ("Action:   craft 4 planks using 1 log  \n\n", "craft 4 planks using 1 log"),
        ("Action: \n\n  get 1 log", "get 1 log"),
    ],
)
def test_react_action_is_the_line_after_the_label(text: str, action: str) -> None:
    assert react_action(text) == action


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("get 1 oak log", "no_label"),
        ("Action: a\nAction: b", "several_labels"),
        ("Thought: x\nAction:\n \n", "no_action"),
    ],
)
def test_react_message_without_exactly_one_action_is_malformed(text: str, code: str) -> None:
    with pytest.raises(MalformedActionError) as malformed:
        react_action(text)
    assert malformed.value.code == code


def test_react_prompt_explains_the_format_and_messages_are_parsed() -> None:
    tokenizer = TOKENIZERS["chatml"]
    dialogue = ChatFormat(tokenizer, "react", INSTRUCTION)
    prompt = tokenizer.decode(dialogue.prompt("Goal: craft stick."))
    assert INSTRUCTION in prompt
    assert "Action:" in prompt
    assert (
        dialogue.action_in(
            dialogue.text(encode(tokenizer, "Thought: x\nAction: get 1 log<|im_end|>"))
        )
        == "get 1 log"
    )
    with pytest.raises(MalformedActionError):
        dialogue.action_in(dialogue.text(encode(tokenizer, "get 1 log<|im_end|>")))
    assert "Action:" not in tokenizer.decode(
        ChatFormat(tokenizer, "react", None).prompt("Goal: craft stick.")
    )


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: a\nAction:\nlook around", "look around"),
        ("Action: open door\nThought: no\nAction: go to hall. ", "go to hall."),
        ("Action:\n`look at`\nthe table", "`look at`\nthe table"),
        ("I do not know.", ""),
    ],
)
def test_react_last_reads_everything_after_the_last_label(text: str, action: str) -> None:
    assert read_action(text, reading_format("react", "sciworld", "agentgym")) == action


@pytest.mark.parametrize(
    ("world", "rules"), [("sciworld", "ours"), ("textcraft", "agentgym"), ("babyai", "agentgym")]
)
def test_other_worlds_read_react_messages(world: str, rules: Rules) -> None:
    assert reading_format("react", world, rules) == "react"
    assert reading_format("bare", "sciworld", "agentgym") == "bare"
