"""Nonce names: the same crafting problem with every item replaced by a random made-up word.

Words are sampled per task. A word has no meaning before its task is read, and the vocabulary is
small. A small policy soon learns all words, and can learn recipes only by reading the commands. The
term follows Berko 1958, https://doi.org/10.1080/00437956.1958.11659661.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property
from hashlib import sha256

_WORDS = (
    "bas bof bog bos boz buz dak des dib dop dov duv fef fep fez fim fis fup fuv gak gev gis gom "
    "gon gus kaf kav kem kez kol kur lup luz mek mib mor muz naz nib nud pek pob rel rif sok tum "
    "vep zad"
)
WORDS = tuple(_WORDS.split())
"""Made-up words. All have the same form, so that a tokenizer treats them alike. None occurs in the
game or in our own sentences.
"""
_WORD = re.compile(r"(?<![A-Za-z])[a-z]+(?![A-Za-z])")


class NonceNames:
    """Mapping of one task's item names to made-up words.

    Attributes:
        there: Name -> made-up word. Names that the task does not list stay unchanged.
        back: The inverse mapping.
    """

    def __init__(self, index: int, names: Collection[str]) -> None:
        """
        Args:
            index: Task index. It determines the choice of words.
            names: Names that the task lists, at most `len(WORDS)`.

        Raises:
            ValueError: There are more names than words.
        """
        if len(names) > len(WORDS):
            raise ValueError(f"{len(names)} names are more than the {len(WORDS)} made-up words")
        drawn = sorted(WORDS, key=lambda word: sha256(f"nonce {index}: {word}".encode()).digest())
        self.there = dict(zip(sorted(names), drawn, strict=False))
        self.back = {word: name for name, word in self.there.items()}

    def apply(self, text: str) -> str:
        """Translate text from the game's names to the made-up words."""
        return self._names.sub(lambda name: self.there[name[0].replace("_", " ")], text)

    def undo(self, text: str) -> str:
        """Translate the agent's text back to the game's names."""
        return _WORD.sub(lambda word: self.back.get(word[0], word[0]), text)

    @cached_property
    def _names(self) -> re.Pattern[str]:
        """Pattern of any listed name, the longest first. Underscores may replace spaces."""
        longest_first = sorted(self.there, key=len, reverse=True)
        some = "|".join(re.escape(name).replace(r"\ ", "[ _]") for name in longest_first)
        return re.compile(rf"(?<![A-Za-z])(?:{some})(?![A-Za-z])")
