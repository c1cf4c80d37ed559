"""Tests of success rates, pass@k, paired differences and means, with their intervals."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks.evaluation.statistics import Tallies, Tally, difference, mean, pass_at_k, success_rate


def tallies(successes: list[int], samples: int = 1) -> dict[int, Tally]:
    return {task: Tally(count, samples) for task, count in enumerate(successes)}


one_tally = st.integers(1, 6).flatmap(lambda n: st.builds(Tally, st.integers(0, n), st.just(n)))
any_tallies = st.dictionaries(st.integers(0, 30), one_tally, min_size=1, max_size=12)


@pytest.mark.parametrize(("successes", "n"), [(0, 20), (7, 20), (20, 20), (1, 1), (91, 100)])
def test_interval_with_one_sample_per_task_is_wilson(successes: int, n: int) -> None:
    found = success_rate(tallies([1] * successes + [0] * (n - successes)))
    expected = stats.binomtest(successes, n).proportion_ci(method="wilson")
    assert (found.value, found.n) == (successes / n, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_samples_of_one_task_do_not_count_as_independent_tasks() -> None:
    alike = success_rate(
        tallies([8] * 10 + [0] * 10, samples=8)
    )  # each task is always or never solved, so 8 samples say no more than 1
    single = success_rate(tallies([1] * 10 + [0] * 10))
    mixed = success_rate(
        tallies([4] * 20, samples=8)
    )  # tasks do not differ, so every sample adds information
    assert alike.value == single.value == mixed.value == 0.5
    assert alike.high - alike.low >= single.high - single.low > 1.8 * (mixed.high - mixed.low)


@settings(deadline=None)
@given(any_tallies)
def test_every_share_lies_in_its_interval_within_zero_and_one(counts: Tallies) -> None:
    for found in (success_rate(counts), pass_at_k(counts, 1)):
        assert 0 <= found.low <= found.value <= found.high <= 1
        assert found.high - found.low > 0
        assert found.n == len(counts)


@settings(deadline=None)
@given(any_tallies)
def test_success_and_failure_mirror_each_other(counts: Tallies) -> None:
    success = success_rate(counts)
    failure = success_rate(
        {
            task: Tally(tally.samples - tally.successes, tally.samples)
            for task, tally in counts.items()
        }
    )
    assert (1 - failure.value, 1 - failure.high, 1 - failure.low) == pytest.approx(
        (success.value, success.low, success.high), abs=1e-9
    )


def test_equal_outcomes_still_have_an_interval() -> None:
    every = success_rate(tallies([8] * 50, samples=8))
    assert every.value == every.high == 1.0
    assert every.low == pytest.approx(
        50 / (50 + stats.t.ppf(0.975, 49) ** 2)
    )  # Wilson's bound at p = 1, from 50 tasks, not 400 episodes
    assert (
        success_rate(tallies([3], samples=8)).low,
        success_rate(tallies([3], samples=8)).high,
    ) == (0.0, 1.0)
    empty = success_rate({})
    assert empty.n == 0
    assert math.isnan(empty.value)
    assert math.isnan(empty.low)
    assert math.isnan(empty.high)
    assert success_rate({0: Tally(0, 0), 1: Tally(1, 1)}).n == 1


@pytest.mark.parametrize(("n", "samples"), [(12, 8), (60, 4), (60, 1)])
def test_the_interval_of_success_covers_the_truth_about_95_times_in_100(
    n: int, samples: int
) -> None:
    random = np.random.default_rng(7)
    covered, trials = 0, 1500
    for _ in range(trials):
        rates = random.beta(0.6, 1.2, size=n)  # tasks differ a lot, with a mean rate of 1/3
        found = success_rate(tallies(random.binomial(samples, rates).tolist(), samples))
        covered += found.low <= 1 / 3 <= found.high
    assert 0.93 <= covered / trials <= 0.985


@pytest.mark.parametrize(("n", "samples"), [(12, 8), (60, 4), (60, 1)])
def test_the_interval_of_a_difference_covers_the_truth_about_95_times_in_100(
    n: int, samples: int
) -> None:
    random = np.random.default_rng(8)
    covered, trials = 0, 1500
    for _ in range(trials):
        before = random.beta(0.6, 1.2, size=n)
        after = before + 0.3 * (1 - before)  # the mean increase is 0.3 * (1 - 1/3)
        counts = [
            tallies(random.binomial(samples, rates).tolist(), samples) for rates in (before, after)
        ]
        found = difference(*counts)
        covered += found.low <= 0.2 <= found.high
    assert 0.925 <= covered / trials <= 0.985


@pytest.mark.parametrize(
    ("c", "n", "k"), [(0, 5, 2), (1, 5, 2), (3, 5, 2), (4, 5, 2), (5, 5, 5), (2, 6, 1), (2, 6, 6)]
)
def test_pass_at_k_is_the_share_of_k_subsets_that_hold_a_success(c: int, n: int, k: int) -> None:
    subsets = list(combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k({0: Tally(c, n)}, k).value == pytest.approx(
        sum(any(subset) for subset in subsets) / len(subsets)
    )


def test_pass_at_k_excludes_tasks_with_too_few_samples() -> None:
    found = pass_at_k({0: Tally(1, 2), 1: Tally(4, 4), 2: Tally(0, 4)}, k=4)
    assert (found.value, found.n) == (0.5, 2)
    assert pass_at_k({0: Tally(1, 2)}, k=4).n == 0
    with pytest.raises(ValueError, match=r"\bk\b"):
        pass_at_k({}, k=0)


@settings(deadline=None)
@given(any_tallies)
def test_pass_at_k_never_falls_with_k(counts: Tallies) -> None:
    k_most = min(tally.samples for tally in counts.values())
    values = [pass_at_k(counts, k).value for k in range(1, k_most + 1)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(success_rate(counts).value)


def test_paired_difference_with_one_sample_per_task_is_newcombe() -> None:
    both, only_before, only_after, neither = 20, 5, 15, 10
    before = [1] * both + [1] * only_before + [0] * only_after + [0] * neither
    after = [1] * both + [0] * only_before + [1] * only_after + [0] * neither
    found = difference(tallies(before), tallies(after))
    a, b, c, d, n = both, only_before, only_after, neither, 50
    phi = (a * d - b * c) / math.sqrt((a + b) * (c + d) * (a + c) * (b + d))
    p1, p2 = (a + c) / n, (a + b) / n
    one = stats.binomtest(a + c, n).proportion_ci(method="wilson")
    two = stats.binomtest(a + b, n).proportion_ci(method="wilson")
    low = (
        p1
        - p2
        - math.sqrt(
            (p1 - one.low) ** 2 - 2 * phi * (p1 - one.low) * (two.high - p2) + (two.high - p2) ** 2
        )
    )
    high = (
        p1
        - p2
        + math.sqrt(
            (one.high - p1) ** 2 - 2 * phi * (one.high - p1) * (p2 - two.low) + (p2 - two.low) ** 2
        )
    )
    assert (found.value, found.low, found.high, found.n) == pytest.approx((0.2, low, high, 50))
    assert found.low > 0


def test_pairing_makes_the_interval_narrower_when_the_same_tasks_are_hard() -> None:
    before, after = (
        tallies([0] * 20 + [2] * 10 + [4] * 10, 4),
        tallies([0] * 10 + [2] * 15 + [4] * 15, 4),
    )
    paired = difference(before, after)
    crossed = difference(before, {39 - task: tally for task, tally in after.items()})
    assert paired.value == pytest.approx(crossed.value)
    assert paired.high - paired.low < 0.7 * (crossed.high - crossed.low)


@settings(deadline=None)
@given(any_tallies, any_tallies)
def test_difference_uses_common_tasks_is_bounded_and_antisymmetric(
    start: Tallies, end: Tallies
) -> None:
    forward, backward = difference(start, end), difference(end, start)
    assert forward.n == len(start.keys() & end.keys())
    if forward.n:
        assert -1 <= forward.low <= forward.value <= forward.high <= 1
        assert (forward.low, forward.high) == pytest.approx(
            (-backward.high, -backward.low), abs=1e-9
        )
    else:
        assert math.isnan(forward.value)


def test_interval_of_no_change_has_a_width() -> None:
    same = difference(tallies([0] * 40), tallies([0] * 40))
    assert same.low < 0 < same.high


def test_mean_has_a_student_interval_or_none() -> None:
    values = [3.0, 4.5, 2.0, 8.0]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = mean(values)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    for values in ([], [2.0], [0.1 + 0.2, 0.3]):
        assert math.isnan(mean(values).low)
        assert math.isnan(mean(values).high)
