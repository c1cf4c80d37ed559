"""The chat templates that TRL ships, each with a small tokenizer that has the template's marks as special tokens."""

from __future__ import annotations

import re
from pathlib import Path

import trl
from transformers import PreTrainedTokenizerFast

from tests.check.test_chat_format import build_tokenizer

FOLDER = Path(trl.__file__).parent / "chat_templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))

_MARK = re.compile(
    r"<[|｜][^<>'\"\s{}]{1,40}[|｜]>|<\|[a-z_]+>|<[a-z_]+\|>|<(?:start|end)_of_turn>|</?s>|<end_of_utterance>|\[/?(?:INST|TOOL_CALLS)\]"
)
_ENDS = "<|im_end|> <|eot_id|> <|return|> <end_of_turn> <turn|> <|end|> <|END_OF_TURN_TOKEN|> <｜end▁of▁sentence｜> <end_of_utterance> </s>"


def template_of(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def in_channels(thought: str, text: str) -> str:
    """A message of gpt-oss with a thought and a text, without its end."""
    return (
        f"<|channel|>analysis<|message|>{thought}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{text}"
    )


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    marks = sorted(set(_MARK.findall(template)))
    end = next((mark for mark in _ENDS.split() if mark in marks), "</s>")
    begin = "<bos>" if "bos_token" in template else None
    return build_tokenizer(
        template, list(dict.fromkeys([*marks, end, *([begin] if begin else [])])), begin, end
    )
