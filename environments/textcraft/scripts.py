"""Scripts of a few lines that play TextCraft without a model."""

from __future__ import annotations

import re
from collections.abc import Generator


def craft_every_line(observation: str) -> Generator[str, str, None]:
    """Yield actions: get the ingredients of each listed command and craft it, in order.

    The goal is never read.
    """
    while True:
        for line, ingredients in re.findall(r"(craft \d+ .+? using (.+))", observation):
            yield from (f"get {ingredient}" for ingredient in ingredients.split(", "))
            yield line
