"""Excerpts of demonstrations, on which a small policy learns to copy before it sees full pages.

Attention must find one line among about a hundred. The gradient for this is proportional to the
attention that the line receives at first, so learning on full observations is slow. Among ten lines
it is fast, and the skill carries over to a hundred.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tasks.starter.demonstrations import Demonstration

KEPT = 3
"""Number of final lines of an observation that are always kept. Some environments repeat the
objective there.
"""
_AROUND = "[]()'\"|,;"


def excerpt(demonstration: Demonstration, share: float, random: Random) -> Demonstration:
    """Return the same episode with only a subset of each observation's lines.

    Three groups of lines are kept:
    - The last `KEPT` lines.
    - Lines that share a word with the next action. Only the action's longest words after the verb
      count.
    - A random fraction `share` of the other lines, in [0, 1].
    """

    def shorten(observation: str, action: str) -> str:
        words = _words(action.partition(" ")[2])
        longest = max(map(len, words), default=0)
        longest_words = {word for word in words if len(word) == longest}
        lines = observation.split("\n")
        last = len(lines) - KEPT
        kept = (
            line
            for number, line in enumerate(lines)
            if number >= last
            or not longest_words.isdisjoint(_words(line))
            or random.random() < share
        )
        return "\n".join(kept)

    actions = [*(each.action for each in demonstration.exchanges), ""]
    first = shorten(demonstration.first_observation, actions[0])
    return replace(
        demonstration,
        first_observation=first,
        exchanges=tuple(
            replace(each, observation=shorten(each.observation, action))
            for each, action in zip(demonstration.exchanges, actions[1:], strict=True)
        ),
    )


def _words(text: str) -> set[str]:
    """Return the words of a text without surrounding brackets, quotes and punctuation."""
    return {word for each in text.split() if (word := each.strip(_AROUND))}
