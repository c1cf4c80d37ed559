"""Cut an observation that exceeds the remaining tokens of a trajectory.

The cut text names the number of lines left out, and the episode continues. Worlds limit their
observations in characters, because they have no tokens. Only this module has the remaining token
budget.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

MIN_TOKENS = 256
"""The episode ends with less room than this, because such a short excerpt is of no use."""
LAST_LINES = 3
"""Number of last lines that are kept.

Worlds write the goal there, and WebArena the address, the objective and the last action.
"""


def cut_to_fit(observation: str, room: int, tokens: Callable[[str], int]) -> str | None:
    """Remove as many lines before the last lines as needed. None if that is not enough.

    Args:
        observation: The observation that is too long.
        room: Maximum number of tokens.
        tokens: Returns the number of tokens that carry a text.
    """
    lines = observation.split("\n")
    first, last = lines[:-LAST_LINES], lines[-LAST_LINES:]

    def excerpt(kept: int) -> str:
        left_out = len(first) - kept
        return "\n".join(
            [
                *first[:kept],
                f"[observation cut: {left_out} more line{'s' * (left_out != 1)}]",
                *last,
            ]
        )

    if room < MIN_TOKENS:
        return None
    kept = bisect_right(range(len(first)), room, key=lambda kept: tokens(excerpt(kept))) - 1
    return excerpt(kept) if kept >= 0 else None
