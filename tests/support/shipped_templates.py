"""TRL's chat templates, with small tokenizers that know their special tokens."""

from __future__ import annotations

import re
from pathlib import Path

import trl
from transformers import PreTrainedTokenizerFast

from tests.check.test_chat_format import build_tokenizer

FOLDER = Path(trl.__file__).parent / "chat_templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))

_SPECIAL_TOKEN = re.compile(
    r"<[|｜][^<>'\"\s{}]{1,40}[|｜]>|<\|[a-z_]+>|<[a-z_]+\|>|<(?:start|end)_of_turn>|</?s>|<end_of_utterance>|\[/?(?:INST|TOOL_CALLS)\]"
)
_END_TOKENS = (
    "<|im_end|> <|eot_id|> <|return|> <end_of_turn> <turn|> <|end|> <|END_OF_TURN_TOKEN|> "
    "<｜end▁of▁sentence｜> <end_of_utterance> </s>"
)


def template_of(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def in_channels(thought: str, text: str) -> str:
    """Return a gpt-oss message with a thought and a text, without its end token."""
    return (
        f"<|channel|>analysis<|message|>{thought}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{text}"
    )


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    special_tokens = sorted(set(_SPECIAL_TOKEN.findall(template)))
    end = next((token for token in _END_TOKENS.split() if token in special_tokens), "</s>")
    begin = "<bos>" if "bos_token" in template else None
    return build_tokenizer(
        template,
        list(dict.fromkeys([*special_tokens, end, *([begin] if begin else [])])),
        begin,
        end,
    )
