"""Tests of bootstrap intervals against SciPy, cases worked by hand and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tasks.evaluation import bootstrap
from tasks.evaluation.bootstrap import bootstrap_mean, paired_difference


def test_interval_of_a_mean_equals_scipy_bca() -> None:
    scores = np.random.default_rng(3).beta(0.5, 1.5, 60)
    found = bootstrap_mean(scores)
    expected = stats.bootstrap(
        (scores,), np.mean, n_resamples=20_000, rng=np.random.default_rng(9)
    ).confidence_interval
    assert found.value == pytest.approx(scores.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)
    assert bootstrap_mean(scores) == found


def test_equal_values_have_no_interval() -> None:
    assert bootstrap_mean([0.5] * 9).value == 0.5
    assert math.isnan(bootstrap_mean([0.5] * 9).low)
    assert math.isnan(bootstrap_mean([0.5]).low)
    assert math.isnan(bootstrap_mean([]).value)


def test_difference_shared_by_all_seeds_and_tasks_is_significant() -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, (8, 90))
    found = paired_difference(0.1 + noise)
    assert found.estimate.low > 0.05
    assert found.p == pytest.approx(2 / 2**8)
    assert found.estimate.n == len(found.seeds) == 8
    assert np.mean(found.seeds) == pytest.approx(found.estimate.value)
    assert paired_difference(0.1 + noise) == found


def test_seeds_whose_difference_is_zero_apart_from_rounding_are_not_in_favour() -> None:
    found = paired_difference(np.array([[0.1, 0.2, -0.3]] * 6))
    assert found.seeds == (0.0,) * 6
    assert found.p == 1


def test_interval_reflects_variance_over_seeds_and_over_tasks() -> None:
    draw = np.random.default_rng(2)
    nothing, seeds, tasks = (
        draw.normal(0, 0.02, (8, 90)),
        draw.normal(0, 0.2, (8, 1)),
        draw.normal(0, 1.0, (1, 90)),
    )
    widths = [
        e.high - e.low
        for e in (paired_difference(nothing + each).estimate for each in (0 * seeds, seeds, tasks))
    ]
    by_seeds, by_tasks = (
        2 * stats.t.ppf(0.975, 7) * np.std(seeds, ddof=1) / math.sqrt(8),
        2 * 1.96 * np.std(tasks, ddof=1) / math.sqrt(90),
    )
    assert widths[0] < 0.02
    assert widths[1] == pytest.approx(by_seeds, rel=0.25)
    assert widths[2] == pytest.approx(by_tasks, rel=0.15)


def test_one_seed_has_no_interval_and_no_p_value() -> None:
    found = paired_difference(np.array([[0.5, 0.0, 0.5, 1.0]]))
    assert found.estimate.value == 0.5
    assert math.isnan(found.estimate.low)
    assert math.isnan(found.p)


def test_comparison_without_tasks_is_empty() -> None:
    assert math.isnan(paired_difference(np.zeros((3, 0))).estimate.value)


@pytest.mark.parametrize("n_seeds", [5, 8])
def test_interval_has_its_nominal_coverage(n_seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate studies without a true difference.

    The standard deviations over seeds, tasks and episodes are 4, 15 and 30 percentage points.
    """
    monkeypatch.setattr(bootstrap, "RESAMPLES", 1000)
    draw = np.random.default_rng(7)
    covered, studies = 0, 120
    for _ in range(studies):
        d = (
            draw.normal(0, 0.04, (n_seeds, 1))
            + draw.normal(0, 0.15, (1, 60))
            + draw.normal(0, 0.3, (n_seeds, 60))
        )
        found = paired_difference(d)
        covered += found.estimate.low <= 0 <= found.estimate.high
    assert covered / studies > 0.9
