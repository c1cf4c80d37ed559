"""Excerpts of demonstrations, from which a small policy learns to copy before it is shown whole pages.

What attention must find is one line among some hundred, and the gradient that would teach it to look there is as small as the share of
attention that the line gets to begin with. Among ten lines it is found soon, and among a hundred still known.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tasks.starter.demonstrations import Demonstration

KEPT = 3
"""The last lines of an observation stay: where a world repeats the objective, it is there."""
_AROUND = "[]()'\"|,;"


def excerpt(demonstration: Demonstration, share: float, random: Random) -> Demonstration:
    """The same episode, but of each observation only a part of the lines.

    What stays are the last `KEPT` lines, those that hold what is done next (the longest of the action's words after the first, its verb),
    and about this share of the others, drawn at random.
    """

    def of(observation: str, action: str) -> str:
        said = _words(action.partition(" ")[2])
        longest = max(map(len, said), default=0)
        sought = {word for word in said if len(word) == longest}
        lines = observation.split("\n")
        last = len(lines) - KEPT
        kept = (
            line for number, line in enumerate(lines) if number >= last or not sought.isdisjoint(_words(line)) or random.random() < share
        )
        return "\n".join(kept)

    following = [*(each.action for each in demonstration.exchanges), ""]
    first = of(demonstration.first_observation, following[0])
    return replace(
        demonstration,
        first_observation=first,
        exchanges=tuple(
            replace(each, observation=of(each.observation, action))
            for each, action in zip(demonstration.exchanges, following[1:], strict=True)
        ),
    )


def _words(text: str) -> set[str]:
    """The words of a text, without the brackets and quotes around them."""
    return {word for each in text.split() if (word := each.strip(_AROUND))}
