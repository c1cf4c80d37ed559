"""Clean the text of an action: language models add punctuation and Markdown around it."""

from __future__ import annotations

import re

_MARKS = " \t\r\n`*_\"'“”‘’«»"
_STOPS = " \t\r\n.;:!?"
_BRACKETS = {"[": "]", "(": ")", "{": "}", "<": ">"}


def plain_words(action: str) -> str:
    """Keep only letters, digits, commas and single spaces.

    AgentGym's clients of TextCraft and BabyAI do the same.
    """
    return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", action).split())


def without_punctuation(action: str) -> str:
    """Remove quotes, backticks, bold and brackets around an action, and trailing punctuation.

    Punctuation inside the action stays. Brackets are removed only if one pair encloses the whole
    action.
    """
    while True:
        cleaned = action.strip(_MARKS).rstrip(_STOPS)
        opening, inside = cleaned[:1], cleaned[1:-1]
        closing = _BRACKETS.get(opening)
        if (
            closing
            and len(cleaned) > 1
            and cleaned[-1] == closing
            and opening not in inside
            and closing not in inside
        ):
            cleaned = inside
        if cleaned == action:
            return cleaned
        action = cleaned
