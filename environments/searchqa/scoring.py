"""Exact match between an answer and the gold answers, as defined by SQuAD."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower-case, remove ASCII punctuation and articles, and collapse spaces.

    Source: Rajpurkar et al. 2016, arXiv 1606.05250.

    If nothing is left, as for "The The" or "!!!", return the lower-case text. Otherwise an empty
    answer would match it.
    """
    lowered = text.lower()
    kept = " ".join(_ARTICLES.sub(" ", lowered.translate(_PUNCTUATION)).split())
    return kept or " ".join(lowered.split())


def exact_match(answer: str, golds: Iterable[str]) -> bool:
    """Whether the normalised answer equals any normalised gold answer.

    A blank answer never matches.
    """
    given = normalise(answer)
    return bool(given) and any(given == normalise(gold) for gold in golds)
