"""Deterministic shuffles and splits by hashing, which the task lists of both sources of questions use, and the evaluation's size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import zip_longest

EVALUATION_SIZE = 400
"""As many tasks as the paper's evaluation has; which those are is not known here."""
EVALUATION = f"searchqa-ours-{EVALUATION_SIZE}"


def round_robin(groups: Iterable[Sequence[int]]) -> list[int]:
    """The first of each group, then the second of each, and so on."""
    return [index for turn in zip_longest(*groups) for index in turn if index is not None]


def shuffle_key(purpose: str, text: str) -> bytes:
    """A sorting key for a deterministic shuffle: the same on every machine and in every version of Python."""
    return sha256(f"{purpose}: {text}".encode()).digest()


def hashed_fraction(purpose: str, text: str) -> float:
    """A number in [0, 1), uniform over texts and always the same for one text."""
    return int.from_bytes(shuffle_key(purpose, text)[:6]) / 2**48
