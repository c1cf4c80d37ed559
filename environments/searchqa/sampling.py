"""Deterministic shuffles and splits by hashing, shared by both sources of questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import zip_longest

EVALUATION_SIZE = 400
"""Number of evaluation tasks, as in the paper. Which tasks the paper used is unknown."""
EVALUATION = f"searchqa-ours-{EVALUATION_SIZE}"


def round_robin(groups: Iterable[Sequence[int]]) -> list[int]:
    """Return the first of each group, then the second of each, and so on."""
    return [index for turn in zip_longest(*groups) for index in turn if index is not None]


def shuffle_key(purpose: str, text: str) -> bytes:
    """Return a sort key for a deterministic shuffle, stable across machines and Python versions."""
    return sha256(f"{purpose}: {text}".encode()).digest()


def hashed_fraction(purpose: str, text: str) -> float:
    """Hash a text to a number in [0, 1). The values are uniform over texts and reproducible."""
    return int.from_bytes(shuffle_key(purpose, text)[:6]) / 2**48
