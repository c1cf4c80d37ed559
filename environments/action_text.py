"""Clean the text of an action before a world reads it: language models write punctuation and Markdown around it."""

from __future__ import annotations

import re

_MARKS = " \t\r\n`*_\"'“”‘’«»"
_STOPS = " \t\r\n.;:!?"
_BRACKETS = {"[": "]", "(": ")", "{": "}", "<": ">"}


def plain_words(action: str) -> str:
    """Keep letters, digits, commas and single spaces, as AgentGym's clients of TextCraft and BabyAI do."""
    return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", action).split())


def without_punctuation(action: str) -> str:
    """Remove quotes, backticks, bold and brackets around an action, and the punctuation after it.

    Punctuation inside the action stays. Brackets are removed only where one pair encloses the whole action.
    """
    while True:
        cleaned = action.strip(_MARKS).rstrip(_STOPS)
        opening, inside = cleaned[:1], cleaned[1:-1]
        closing = _BRACKETS.get(opening)
        if closing and len(cleaned) > 1 and cleaned[-1] == closing and opening not in inside and closing not in inside:
            cleaned = inside
        if cleaned == action:
            return cleaned
        action = cleaned
