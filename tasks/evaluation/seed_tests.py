"""Tests on the differences of a study's seeds. Pure functions.

A seed's difference is a mean over tasks. Seeds are independent of each other, so these tests hold
for the tasks that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tasks.evaluation.statistics import Values

EXACT_SEEDS = 16
"""Up to this number of seeds all sign flips are enumerated, 65,536 for 16."""


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p value of "no difference" by sign flips.

    Without a difference each sign is as likely as its opposite. p is the share of all assignments
    of signs whose mean is at least as far from 0 as the observed one (Fisher, "The Design of
    Experiments", 1935, section 21; scipy's `permutation_test`). The smallest possible p for s seeds
    is 2 / 2^s, so five seeds never reach 0.05. Above EXACT_SEEDS seeds, 2^EXACT_SEEDS flips are
    drawn at random.

    Args:
        differences: One per seed. nan is returned for fewer than two.
    """
    if len(differences) < 2:
        return math.nan
    from scipy import stats  # type: ignore[import-untyped]  # imported here because it takes a second

    d = np.asarray(differences, dtype=np.float64)
    largest = np.abs(d).max() or 1.0

    def rounded_mean(flipped: Values, axis: int) -> Values:
        # Two assignments with equal means can differ in the last digits of their sums.
        means: Values = np.round(flipped.mean(axis=axis) / largest, 12)
        return means

    found = stats.permutation_test(
        (d,),
        rounded_mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**EXACT_SEEDS,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def equivalence_p(differences: Sequence[float], bound: float) -> float:
    """Return the p value of "the difference is at least `bound`", by two one-sided t tests.

    A value below 0.05 shows that the difference is smaller than `bound` in both directions. The
    method is TOST (Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987): p is the larger
    one of the two tests. It is below 0.05 exactly if the 90 % t-interval lies within the bounds.

    Args:
        differences: One per seed. nan is returned for fewer than two, or if all are equal.
        bound: Smallest effect of interest, above 0, in the unit of the differences.
    """
    d = np.asarray(differences, dtype=np.float64)
    if len(d) < 2 or np.ptp(d) <= 1e-12 * max(1.0, np.abs(d).max()):
        return math.nan
    from scipy import stats  # imported here because it takes a second

    above = stats.ttest_1samp(d, -bound, alternative="greater").pvalue
    below = stats.ttest_1samp(d, bound, alternative="less").pvalue
    return float(max(above, below))
