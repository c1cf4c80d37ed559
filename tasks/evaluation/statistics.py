"""Success rates, pass@k and their differences with 95 % confidence intervals, clustered by task. Pure functions.

Episodes of one task are alike, so a hundred tasks sampled eight times are not eight hundred independent trials: every interval
here takes the *task* as the unit that was drawn at random. Where the data cannot carry an interval (no task, one seed, values
that are all equal), its bounds are nan: nothing is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class Tally(NamedTuple):
    """What happened on one task: `successes` of `samples` scored episodes."""

    successes: int
    samples: int


Tallies = Mapping[int, Tally]
"""Task index to its tally. Tasks without a scored episode carry no information and are ignored."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval.

    Attributes:
        value: The estimate; nan when there is nothing to estimate from.
        low: Lower bound; nan when the data carry no interval.
        high: Upper bound; nan when the data carry no interval.
        n: The units that were drawn at random: tasks, or seeds.
    """

    value: float
    low: float
    high: float
    n: int


def success_rate(tallies: Tallies) -> Estimate:
    """The mean over tasks of each task's share of successes. Value and bounds lie in [0, 1].

    The interval is Wilson's (1927) score interval with the *effective* sample size p(1-p) / var(p) in place of the number of
    episodes (the device of Korn and Graubard, Survey Methodology 24, 1998, for clustered samples; Dean and Pagano, J. Survey Statistics
    and Methodology 3, 2015, compare it with others), where var(p) is the variance of the mean over tasks. With one sample a task it is
    exactly Wilson's; with more, Student's t with n - 1 degrees of freedom replaces the normal quantile. Unlike a bootstrap or a
    t-interval over tasks it stays in [0, 1] and does not shrink to a point when every task succeeds.
    """
    scored = [tally for tally in tallies.values() if tally.samples]
    return _share(_rates(scored), sum(tally.samples for tally in scored))


def pass_at_k(tallies: Tallies, k: int) -> Estimate:
    """The chance that at least one of `k` samples of a task succeeds, averaged over tasks, without bias.

    1 - C(n - c, k) / C(n, k) for a task with c successes in n samples: Chen et al., "Evaluating Large Language Models Trained on
    Code", arXiv 2107.03374, equation 1. The interval is that of `success_rate`. A task with fewer than `k` samples has no such
    estimate and is left out; `n` tells how many stayed.

    Raises:
        ValueError: `k` is not positive.
    """
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    scored = [tally for tally in tallies.values() if tally.samples >= k]
    values = np.array([1 - math.comb(n - c, k) / math.comb(n, k) for c, n in scored], dtype=np.float64)
    return _share(values, sum(tally.samples // k for tally in scored))


def pass_all_k(tallies: Tallies, k: int) -> Estimate:
    """The chance that all of `k` samples of a task succeed (pass^k), averaged over tasks, without bias: how far a policy can be relied on.

    C(c, k) / C(n, k) for a task with c successes in n samples: Yao et al., "tau-bench", arXiv 2406.12045, section 3. The interval is
    that of `success_rate`. A task with fewer than `k` samples is left out; `n` tells how many stayed.

    Raises:
        ValueError: `k` is not positive.
    """
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    scored = [tally for tally in tallies.values() if tally.samples >= k]
    values = np.array([math.comb(c, k) / math.comb(n, k) for c, n in scored], dtype=np.float64)
    return _share(values, sum(tally.samples // k for tally in scored))


def mean(values: Iterable[float]) -> Estimate:
    """The mean of independent values with Student's t-interval; bounds are nan below two values or when all are equal."""
    x = np.fromiter(values, dtype=np.float64)
    if not len(x):
        return Estimate(math.nan, math.nan, math.nan, 0)
    value = float(x.mean())
    if len(x) < 2 or np.ptp(x) <= 1e-12 * np.abs(x).max():
        return Estimate(value, math.nan, math.nan, len(x))
    half = _student(len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return Estimate(value, value - half, value + half, len(x))


def difference(start: Tallies, end: Tallies) -> Estimate:
    """Success in `end` minus success in `start`, over the tasks that both have. Value and bounds lie in [-1, 1].

    Paired by task: the interval is MOVER's (Zou and Donner, Statistics in Medicine 27, 2008), which joins the two intervals of
    `success_rate` and the correlation between the two evaluations over tasks; with one sample a task it is Newcombe's
    hybrid score interval for paired proportions (Statistics in Medicine 17, 1998, page 2635). The more alike the two evaluations
    rank the tasks, the narrower it is.
    """
    tasks = [task for task in start if start[task].samples and task in end and end[task].samples]
    before, after = [start[task] for task in tasks], [end[task] for task in tasks]
    draws = sum(tally.samples for tally in before), sum(tally.samples for tally in after)
    return _paired_difference(_rates(before), _rates(after), *draws)


def _student(freedom: int) -> float:
    """The 97.5 % point of Student's t."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # here, because it takes 0.2 s

    return float(stdtrit(freedom, 0.975))


def _rates(tallies: Sequence[Tally]) -> Values:
    return np.array([tally.successes / tally.samples for tally in tallies], dtype=np.float64)


def _share(values: Values, draws: int) -> Estimate:
    """The mean of per-task values in [0, 1], of which `draws` independent trials at most were made in all."""
    n = len(values)
    if not n:
        return Estimate(math.nan, math.nan, math.nan, 0)
    value = float(values.mean())
    if n == 1 and draws > 1:
        return Estimate(value, 0.0, 1.0, 1)  # one task, sampled often, says nothing of other tasks
    spread, variance = value * (1 - value), float(values.var(ddof=1 if draws > n else 0)) / n
    if spread <= 0:
        effective = float(n)  # all alike: no more is known than one trial a task would tell
    else:
        effective = min(float(draws), spread / variance) if variance > 0 else float(draws)
    quantile = _student(n - 1) if draws > n else NormalDist().inv_cdf(0.975)
    return Estimate(value, *_wilson(value, effective, quantile), n)


def _wilson(p: float, n: float, z: float) -> tuple[float, float]:
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def _paired_difference(before: Values, after: Values, draws_before: int, draws_after: int) -> Estimate:
    a, b = _share(before, draws_before), _share(after, draws_after)
    if not a.n:
        return Estimate(math.nan, math.nan, math.nan, 0)
    varied = np.ptp(before) > 0 and np.ptp(after) > 0
    correlation = float(np.corrcoef(before, after)[0, 1]) if varied else 0.0
    value = b.value - a.value
    low = value - _joined(b.value - b.low, a.high - a.value, correlation)
    high = value + _joined(b.high - b.value, a.value - a.low, correlation)
    return Estimate(value, max(-1.0, low), min(1.0, high), a.n)


def _joined(x: float, y: float, correlation: float) -> float:
    return math.sqrt(max(0.0, x * x + y * y - 2 * correlation * x * y))
