"""Draws are those of numpy's generator, one by one, whatever is drawn in between."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from environments.babyai.draws import Draws

RANGES = st.tuples(st.integers(-100, 100), st.integers(1, 2**31))


@given(st.integers(0, 2**63), st.lists(st.none() | RANGES, max_size=400))
def test_integers_and_floats_in_any_order_are_numpys(
    seed: int, asked: list[tuple[int, int] | None]
) -> None:
    draws, generator = Draws(seed), np.random.default_rng(seed)
    for request in asked:
        if request is None:
            assert draws.uniform(0, 1) == generator.uniform(0, 1)
        else:
            low, count = request
            assert draws.integer(low, low + count) == generator.integers(low, low + count)


def test_ranges_that_reject_many_words_are_numpys() -> None:
    draws, generator = Draws(3), np.random.default_rng(3)
    high = 2**31 + 1  # nearly every second word is rejected
    assert [draws.integer(0, high) for _ in range(500)] == generator.integers(0, high, 500).tolist()
