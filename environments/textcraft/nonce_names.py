"""Nonce names: the same crafting problem with every item called by a made-up word, drawn anew for each task.

No word means anything before its task is read, and there are few of them: so a small policy soon knows all the words, and what makes what
it can only learn from the commands. (Nonce words as in Berko 1958, https://doi.org/10.1080/00437956.1958.11659661.)
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property
from hashlib import sha256

_WORDS = (
    "bas bof bog bos boz buz dak des dib dop dov duv fef fep fez fim fis fup fuv gak gev gis gom gon "
    "gus kaf kav kem kez kol kur lup luz mek mib mor muz naz nib nud pek pob rel rif sok tum vep zad"
)
WORDS = tuple(_WORDS.split())
"""Of one form, so that a tokenizer treats them alike; none is a word of the game's or of our own sentences."""
_WORD = re.compile(r"(?<![A-Za-z])[a-z]+(?![A-Za-z])")


class NonceNames:
    """The names of one task's items, each exchanged for a made-up word.

    Attributes:
        there: Name to made-up word. Names that the task does not list stay as they are.
        back: The reverse.
    """

    def __init__(self, index: int, names: Collection[str]) -> None:
        """
        Args:
            index: The task; another one has other words.
            names: What the task lists; at most as many as there are `WORDS`.

        Raises:
            ValueError: There are more names than words.
        """
        if len(names) > len(WORDS):
            raise ValueError(f"{len(names)} names are more than the {len(WORDS)} made-up words")
        drawn = sorted(WORDS, key=lambda word: sha256(f"nonce {index}: {word}".encode()).digest())
        self.there = dict(zip(sorted(names), drawn, strict=False))
        self.back = {word: name for name, word in self.there.items()}

    def apply(self, text: str) -> str:
        """The text as the agent sees it."""
        return self._names.sub(lambda name: self.there[name[0].replace("_", " ")], text)

    def undo(self, text: str) -> str:
        """What the agent's text means."""
        return _WORD.sub(lambda word: self.back.get(word[0], word[0]), text)

    @cached_property
    def _names(self) -> re.Pattern[str]:
        """Any of the names, the longest first, also with underscores between its words."""
        longest_first = sorted(self.there, key=len, reverse=True)
        some = "|".join(re.escape(name).replace(r"\ ", "[ _]") for name in longest_first)
        return re.compile(rf"(?<![A-Za-z])(?:{some})(?![A-Za-z])")
