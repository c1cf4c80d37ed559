"""Random numbers identical to numpy's default generator, several times faster.

minigrid draws a few hundred small integers per level. A numpy call for each costs more than
everything else. This module fetches raw words of the same bit generator (PCG64) in bulk and reduces
them as numpy does. Bounded integers use Lemire's method on 32-bit halves (arXiv:1805.10941), the
lower half of a word first. Floats use the upper 53 bits of a whole word.
"""

from __future__ import annotations

from numpy.random import PCG64

_BULK = 128
_HALF = 2**32
_LOW_BITS = _HALF - 1
_FLOAT_UNIT = 2.0**-53


class Draws:
    """A stream of random numbers identical to `numpy.random.default_rng(seed)`."""

    __slots__ = ("_bits", "_upper", "_words")

    def __init__(self, seed: int) -> None:
        self._bits = PCG64(seed)
        self._words: list[int] = []
        self._upper: int | None = None

    def integer(self, low: int, high: int) -> int:
        """Return a uniform integer in [low, high), where 0 < high - low <= 2**32."""
        count = high - low
        if count == 1:
            return low  # numpy consumes no random bits in this case
        product = self._half_word() * count
        if product & _LOW_BITS < count:
            rejected = (_HALF - count) % count
            while product & _LOW_BITS < rejected:
                product = self._half_word() * count
        return low + (product >> 32)

    def uniform(self, low: float, high: float) -> float:
        """Return a uniform float in [low, high)."""
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
