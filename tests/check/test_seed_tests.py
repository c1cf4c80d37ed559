"""Tests of the significance tests over a study's seeds, against enumerations and formulas."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tasks.evaluation.seed_tests import equivalence_p, sign_flip_p


@pytest.mark.parametrize(
    "points",
    [
        [3, 5, 2, 8, 1],
        [3, -5, 2, 8, 1, 0],
        [-7, -1, -2],
        [4, -4],
        [0, 0, 0],
        [-42, 12, -30, 18, -12, 42, 12],  # sum 0, which floating point misses
        [-24, 30, 42, -30, 12, -24, 12, -18],
    ],
)
def test_sign_flips_equal_an_enumeration_in_exact_arithmetic(points: list[int]) -> None:
    exact = [Fraction(each, 120) for each in points]
    flipped = [
        abs(sum(sign * each for sign, each in zip(signs, exact, strict=True)))
        for signs in product((1, -1), repeat=len(exact))
    ]
    share = sum(each >= abs(sum(exact)) for each in flipped) / len(flipped)
    assert sign_flip_p([float(each) for each in exact]) == pytest.approx(share)


def test_the_smallest_p_value_of_sign_flips_depends_on_the_number_of_seeds() -> None:
    assert sign_flip_p([0.1, 0.3, 0.2, 0.4, 0.5]) == pytest.approx(2 / 2**5)
    assert sign_flip_p([0.1] * 8) == pytest.approx(2 / 2**8)
    assert math.isnan(sign_flip_p([0.1]))
    many = list(np.random.default_rng(5).normal(0.5, 1.0, 20))
    assert sign_flip_p(many) == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.02)


def test_equivalence_equals_the_larger_of_two_t_tests_by_hand() -> None:
    d, bound = np.array([0.01, -0.02, 0.015, 0.0, 0.03]), 0.04
    error = d.std(ddof=1) / math.sqrt(len(d))
    nearer = (bound - abs(d.mean())) / error
    assert equivalence_p(d.tolist(), bound) == pytest.approx(stats.t.sf(nearer, len(d) - 1))
    assert equivalence_p((-d).tolist(), bound) == pytest.approx(equivalence_p(d.tolist(), bound))


@pytest.mark.parametrize("bound", [0.01, 0.02, 0.03, 0.05, 0.2])
def test_equivalence_is_shown_exactly_if_the_90_percent_interval_is_within_the_bound(
    bound: float,
) -> None:
    d = [0.01, -0.02, 0.015, 0.0, 0.03, -0.01]
    low, high = stats.t.interval(0.9, len(d) - 1, np.mean(d), stats.sem(d))
    assert (equivalence_p(d, bound) < 0.05) == (-bound < low and high < bound)


def test_one_seed_and_equal_seeds_show_no_equivalence() -> None:
    assert math.isnan(equivalence_p([0.0], 0.1))
    assert math.isnan(equivalence_p([0.02, 0.02], 0.1))
