"""The numbers that numpy's default generator would draw one at a time, several times faster.

minigrid draws a few hundred small integers for a level, and a call of numpy for each costs more than all the rest. Here the raw words
of the same bit generator (PCG64) come in bulk and are reduced as numpy reduces them: bounded integers by Lemire's method on 32-bit halves
(arXiv:1805.10941), the lower half of a word first; floats from the upper 53 bits of a whole word.
"""

from __future__ import annotations

from numpy.random import PCG64

_BULK = 128
_HALF = 2**32
_LOW_BITS = _HALF - 1
_FLOAT_UNIT = 2.0**-53


class Draws:
    """A stream of draws: those of `numpy.random.default_rng(seed)`."""

    __slots__ = ("_bits", "_upper", "_words")

    def __init__(self, seed: int) -> None:
        self._bits = PCG64(seed)
        self._words: list[int] = []
        self._upper: int | None = None

    def integer(self, low: int, high: int) -> int:
        """A uniform integer in [low, high), where 0 < high - low <= 2**32."""
        count = high - low
        if count == 1:
            return low  # numpy draws nothing here
        product = self._half_word() * count
        if product & _LOW_BITS < count:
            rejected = (_HALF - count) % count
            while product & _LOW_BITS < rejected:
                product = self._half_word() * count
        return low + (product >> 32)

    def uniform(self, low: float, high: float) -> float:
        """A uniform float in [low, high)."""
        return low + (high - low) * ((self._word() >> 11) * _FLOAT_UNIT)

    def _half_word(self) -> int:
        upper = self._upper
        if upper is not None:
            self._upper = None
            return upper
        word = self._word()
        self._upper = word >> 32
        return word & _LOW_BITS

    def _word(self) -> int:
        if not self._words:
            self._words = self._bits.random_raw(_BULK).tolist()
            self._words.reverse()
        return self._words.pop()
