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


def excerpt(demonstration: Demonstration, share: float, random: Random) -> Demonstration:
    """The same episode, but of each observation's lines before the last `KEPT` only about this share, drawn at random."""

    def of(observation: str) -> str:
        lines = observation.split("\n")
        last = len(lines) - KEPT
        return "\n".join(line for number, line in enumerate(lines) if number >= last or random.random() < share)

    first = of(demonstration.first_observation)
    return replace(
        demonstration,
        first_observation=first,
        exchanges=tuple(replace(each, observation=of(each.observation)) for each in demonstration.exchanges),
    )
