"""Exact match between an answer and the gold answers, as SQuAD published it."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces (Rajpurkar et al. 2016, arXiv 1606.05250).

    A text of which nothing is left, such as "The The" or "!!!", keeps its lower-case form: otherwise the empty answer would match it.
    """
    lowered = text.lower()
    kept = " ".join(_ARTICLES.sub(" ", lowered.translate(_PUNCTUATION)).split())
    return kept or " ".join(lowered.split())


def exact_match(answer: str, golds: Iterable[str]) -> bool:
    """Whether the answer equals any gold answer after both are normalised. An answer of white space alone never does."""
    given = normalise(answer)
    return bool(given) and any(given == normalise(gold) for gold in golds)
