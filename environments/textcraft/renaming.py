"""Renamed tasks: the same crafting problem with the words of the item names exchanged, such as "oak" for "door".

Whoever learns from them cannot know by heart what makes what; it has to read the commands. That is what carries over to goals that
it has never seen.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from hashlib import sha256

# A word by itself or between underscores. Capitals begin our own sentences, never an item.
_WORD = re.compile(r"(?<![A-Za-z])[a-z]+(?![A-Za-z])")
# Words of items that our own sentences use too; they keep their meaning.
_KEPT = frozenset({"crafting", "table", "a", "of", "on", "the", "and", "with"})


class Renaming:
    """A way of exchanging words, and the way back.

    Attributes:
        there: Word to the word in its place; a word that is not in it stays.
        back: The reverse.
    """

    __slots__ = ("back", "there")

    def __init__(self, there: dict[str, str]) -> None:
        self.there = there
        self.back = {new: old for old, new in there.items()}

    def apply(self, text: str) -> str:
        """The text as the agent sees it."""
        return _WORD.sub(lambda word: self.there.get(word[0], word[0]), text)

    def undo(self, text: str) -> str:
        """What the agent's text means."""
        return _WORD.sub(lambda word: self.back.get(word[0], word[0]), text)


@lru_cache(maxsize=4096)
def renaming(variant: int, words: tuple[str, ...]) -> Renaming:
    """The renaming of a variant: a permutation of about half of `words` that depends on the variant and the words alone.

    Half, so that what a word means in the game stays of some use, and reading is of more.
    """

    def key(purpose: str, word: str) -> bytes:
        return sha256(f"{purpose} {variant}: {word}".encode()).digest()

    chosen = [word for word in words if key("choice", word)[0] % 2]
    return Renaming(dict(zip(chosen, sorted(chosen, key=lambda word: key("renaming", word)), strict=True)))


@cache
def words_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """The words of some item names that may be exchanged, in order."""
    return tuple(sorted({word for name in names for word in name.split() if word.isalpha() and word.islower()} - _KEPT))
