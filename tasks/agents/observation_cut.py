"""An observation that is longer than what is left of a trajectory's tokens is cut, with words that say so, rather than ending the episode.

Worlds bound their observations in characters, since they know no tokens; what is left of a trajectory is known here alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

LEAST_TOKENS = 256
"""With less room than this the episode ends: so little of a page would tell the agent nothing."""
LAST_LINES = 3
"""Kept from the end: where worlds write the goal, and WebArena the address, the objective and the last action."""


def cut_to_fit(observation: str, room: int, tokens: Callable[[str], int]) -> str | None:
    """The observation without as many lines before its last ones as must go; None if that cannot help.

    Args:
        observation: What is too long.
        room: Most tokens.
        tokens: How many tokens carry a text.
    """
    lines = observation.split("\n")
    first, last = lines[:-LAST_LINES], lines[-LAST_LINES:]

    def with_first(kept: int) -> str:
        left_out = len(first) - kept
        return "\n".join([*first[:kept], f"[observation cut: {left_out} more line{'s' * (left_out != 1)}]", *last])

    if room < LEAST_TOKENS:
        return None
    kept = bisect_right(range(len(first)), room, key=lambda kept: tokens(with_first(kept))) - 1
    return with_first(kept) if kept >= 0 else None
