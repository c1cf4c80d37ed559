"""Split pages that exceed the observation limit into parts. Scrolling moves between the parts."""

from __future__ import annotations

from typing import Literal

PAGE_CHARACTERS = 8_000
"""Default limit of a page's characters, about 2,500 tokens.

WebArena's own agents see at most 1,920 tokens of a page. The embedded sites need less than half.
"""


class PageParts:
    """The part of the page text that the agent currently reads.

    The window may contain any number of elements. Scrolling the window would skip those that a
    plain cut removes. Scrolling therefore moves through the parts of the current view first.
    """

    def __init__(self, characters: int) -> None:
        """Start at the first part.

        Args:
            characters: Maximum characters of a page in an observation, without the notes about
                omitted lines.
        """
        self._characters = characters
        self._starts = [0]
        self._next: int | None = None

    def restart(self) -> None:
        """Return to the first line, e.g. after an action that changed the view."""
        self._starts = [0]
        self._next = None

    def turn(self, direction: Literal["down", "up"]) -> bool:
        """Move to the next or previous part. Return False if there is none."""
        if direction == "down" and self._next is not None:
            self._starts.append(self._next)
            return True
        if direction == "up" and len(self._starts) > 1:
            self._starts.pop()
            return True
        return False

    def shown(self, page: str) -> str:
        """Return this part's lines of `page`, at least one, with notes about omitted lines."""
        lines = page.split("\n")
        start = self._starts[-1]
        if start >= len(lines):
            self.restart()
            start = 0
        room, end = self._characters, start
        while end < len(lines) and (room := room - len(lines[end]) - 1) >= -1:
            end += 1
        end = max(end, start + 1)
        self._next = end if end < len(lines) else None
        text = "\n".join(lines[start:end])
        if len(text) > self._characters:
            text = text[: self._characters] + "..."
        left = len(lines) - end
        before = f"[page cut: {_lines(start)} above; scroll [up] shows them]\n" if start else ""
        after = f"\n[page cut: {_lines(left)} below; scroll [down] shows them]" if left else ""
        return before + text + after


def _lines(count: int) -> str:
    return f"{count} more line" + "s" * (count != 1)
