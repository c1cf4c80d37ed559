"""Renamed tasks: the same crafting problem with the words of the item names permuted.

For example, "oak" may become "door". A policy trained on such tasks cannot memorise recipes and
must read the commands. This skill transfers to unseen goals.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from hashlib import sha256

# Parts of our own sentences with words that also occur in items. They are found as a whole and stay
# unchanged.
_OURS = r"N item|Only one item|an item, such as '2 stick'|no such item|Wrong item format"
# A word by itself or between underscores. Capitals occur only in our own sentences, never in items.
_WORD = re.compile(rf"{_OURS}|(?<![A-Za-z])[a-z]+(?![A-Za-z])")
# Words that occur both in items and in our own sentences. They are never permuted.
_KEPT = frozenset({"crafting", "table", "a", "of", "on", "the", "and", "with"})


class Renaming:
    """A mapping between words and its inverse.

    Attributes:
        there: Word -> replacement. Other words stay unchanged.
        back: The inverse mapping.
    """

    __slots__ = ("back", "there")

    def __init__(self, there: dict[str, str]) -> None:
        self.there = there
        self.back = {new: old for old, new in there.items()}

    def apply(self, text: str) -> str:
        """Translate text from the game's words to the renamed ones."""
        return _WORD.sub(lambda word: self.there.get(word[0], word[0]), text)

    def undo(self, text: str) -> str:
        """Translate the agent's text back to the game's words."""
        return _WORD.sub(lambda word: self.back.get(word[0], word[0]), text)


@lru_cache(maxsize=4096)
def renaming(variant: int, words: tuple[str, ...]) -> Renaming:
    """Return the renaming of a variant: a permutation of about half of `words`.

    It depends only on the variant and the words. Half of the words keep their meaning, so prior
    knowledge stays of some use and reading is of more.
    """

    def key(purpose: str, word: str) -> bytes:
        return sha256(f"{purpose} {variant}: {word}".encode()).digest()

    chosen = [word for word in words if key("choice", word)[0] % 2]
    return Renaming(
        dict(zip(chosen, sorted(chosen, key=lambda word: key("renaming", word)), strict=True))
    )


@cache
def words_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sorted words of some item names that may be permuted."""
    return tuple(
        sorted(
            {word for name in names for word in name.split() if word.isalpha() and word.islower()}
            - _KEPT
        )
    )
