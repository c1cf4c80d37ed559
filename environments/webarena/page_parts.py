"""A page that is longer than an observation may be is read in parts, which scrolling turns."""

from __future__ import annotations

from typing import Literal

PAGE_CHARACTERS = 8_000
"""About 2,500 tokens. The prompts of WebArena's own agents hold at most 1,920 of a page; its embedded sites' pages need less than half."""


class PageParts:
    """Where in the text of a page an agent reads.

    A page in a window may have any number of elements, and one that is cut at the end of an observation could not be reached by
    scrolling the window past it. So scrolling goes through the parts of what is in view first.
    """

    def __init__(self, characters: int) -> None:
        """
        Args:
            characters: The most of a page that an observation shows, besides the words that say what is left out.
        """
        self._characters = characters
        self._starts = [0]
        self._next: int | None = None

    def restart(self) -> None:
        """Begins with the first line again, as after an action that changed what is in view."""
        self._starts = [0]
        self._next = None

    def turn(self, direction: Literal["down", "up"]) -> bool:
        """Goes to the next part or the one before; False where there is none."""
        if direction == "down" and self._next is not None:
            self._starts.append(self._next)
            return True
        if direction == "up" and len(self._starts) > 1:
            self._starts.pop()
            return True
        return False

    def shown(self, page: str) -> str:
        """The lines of `page` that this part holds, at least one, with a word on those that it leaves out."""
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
