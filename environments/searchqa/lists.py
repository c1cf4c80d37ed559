"""What the task lists of both sources share: an order by chance that is always the same, and the evaluation's size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import zip_longest

EVALUATION_SIZE = 400
"""As many tasks as the paper's evaluation has; which those are is not known here."""
EVALUATION = f"searchqa-ours-{EVALUATION_SIZE}"


def in_turn(groups: Iterable[Sequence[int]]) -> list[int]:
    """The first of each group, then the second of each, and so on."""
    return [index for turn in zip_longest(*groups) for index in turn if index is not None]


def order(purpose: str, text: str) -> bytes:
    """A sorting key that shuffles: the same on every machine and in every version of Python."""
    return sha256(f"{purpose}: {text}".encode()).digest()


def share(purpose: str, text: str) -> float:
    """A number in [0, 1) that depends on nothing but the text."""
    return int.from_bytes(order(purpose, text)[:6]) / 2**48
