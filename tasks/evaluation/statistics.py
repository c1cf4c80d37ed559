"""Success rates, pass@k and differences with 95 % confidence intervals, clustered by task.

The functions are pure. Episodes of one task are correlated: 100 tasks with 8 samples each are not
800 independent trials. Therefore every interval takes the *task* as the unit of random sampling. If
the data do not allow an interval (no task, one seed, all values equal), its bounds are nan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

Values = NDArray[np.float64]
Number = Annotated[float, BeforeValidator(lambda stored: math.nan if stored is None else stored)]
"""A number that is nan if it is unknown. In JSON it is null then."""


class Tally(NamedTuple):
    """Successes and scored episodes (samples) of one task."""

    successes: int
    samples: int


Tallies = Mapping[int, Tally]
"""Maps the task index to its tally. Tasks without a scored episode are ignored."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval.

    Attributes:
        value: The estimate. nan without data.
        low: Lower bound. nan if the data do not allow an interval.
        high: Upper bound. nan if the data do not allow an interval.
        n: Number of units of random sampling: tasks or seeds.
    """

    value: Number
    low: Number
    high: Number
    n: int


UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0)


def success_rate(tallies: Tallies) -> Estimate:
    """Return the mean over tasks of each task's success rate. Value and bounds lie in [0, 1].

    The interval is Wilson's (1927) score interval with the *effective* sample size p(1-p) / var(p)
    instead of the number of episodes. Here var(p) is the variance of the mean over tasks. The
    method is that of Korn and Graubard (Survey Methodology 24, 1998) for clustered samples. Dean
    and Pagano (J. Survey Statistics and Methodology 3, 2015) compare it with others.

    With one sample per task the interval is exactly Wilson's. With more, Student's t with n - 1
    degrees of freedom replaces the normal quantile. Unlike a bootstrap or a t-interval over tasks
    it stays in [0, 1] and does not shrink to a point when every task succeeds.
    """
    scored = [tally for tally in tallies.values() if tally.samples]
    return _share(_rates(scored), sum(tally.samples for tally in scored))


def widest_success_rate(tallies: Tallies) -> Estimate:
    """Return the mean of `success_rate` with the widest possible interval.

    The interval is the widest over all tallies with the same mean, tasks and samples. The effective
    sample size is at least n - 1 for n tasks with several samples each, and n with one sample each.

    With a fixed size, both ends of Wilson's interval grow with the mean. If a mean is only known to
    lie between two bounds, its interval therefore lies between the outer ends of the bounds' widest
    intervals.
    """
    scored = [tally for tally in tallies.values() if tally.samples]
    n, draws = len(scored), sum(tally.samples for tally in scored)
    if n < 2:
        return success_rate(tallies)
    value = float(_rates(scored).mean())
    effective, quantile = (
        (n - 1.0, _student(n - 1)) if draws > n else (float(n), NormalDist().inv_cdf(0.975))
    )
    return Estimate(value, *_wilson(value, effective, quantile), n)


def pass_at_k(tallies: Tallies, k: int) -> Estimate:
    """Return an unbiased estimate of pass@k, averaged over tasks.

    pass@k is the probability that at least one of `k` samples of a task succeeds. For a task with c
    successes in n samples it is

        1 - C(n - c, k) / C(n, k)

    by Chen et al., "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, equation
    1.
    The interval is that of `success_rate`. A task with fewer than `k` samples is left out, and `n`
    is the number of remaining tasks.

    Raises:
        ValueError: `k` is not positive.
    """
    return _mean_at_k(tallies, k, lambda c, n: 1 - math.comb(n - c, k) / math.comb(n, k))


def pass_all_k(tallies: Tallies, k: int) -> Estimate:
    """Return an unbiased estimate of pass^k, averaged over tasks, as a measure of reliability.

    pass^k is the probability that all of `k` samples of a task succeed. For a task with c successes
    in n samples it is

        C(c, k) / C(n, k)

    by Yao et al., "tau-bench", arXiv 2406.12045, section 3. The interval is that of `success_rate`.
    A task with fewer than `k` samples is left out, and `n` is the number of remaining tasks.

    Raises:
        ValueError: `k` is not positive.
    """
    return _mean_at_k(tallies, k, lambda c, n: math.comb(c, k) / math.comb(n, k))


def _mean_at_k(tallies: Tallies, k: int, value: Callable[[int, int], float]) -> Estimate:
    """Average `value(successes, samples)` over the tasks with at least `k` samples."""
    if k < 1:
        raise ValueError(f"k is {k}, but must be at least 1")
    scored = [tally for tally in tallies.values() if tally.samples >= k]
    values = np.array([value(c, n) for c, n in scored], dtype=np.float64)
    return _share(values, sum(tally.samples // k for tally in scored))


def mean(values: Iterable[float]) -> Estimate:
    """Return the mean of independent values with Student's t-interval.

    Bounds are nan for fewer than two values or if all are equal.
    """
    x = np.fromiter(values, dtype=np.float64)
    if not len(x):
        return UNKNOWN
    value = float(x.mean())
    if len(x) < 2 or np.ptp(x) <= 1e-12 * np.abs(x).max():
        return Estimate(value, math.nan, math.nan, len(x))
    half = _student(len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return Estimate(value, value - half, value + half, len(x))


def difference(start: Tallies, end: Tallies) -> Estimate:
    """Return success in `end` minus success in `start`, over the tasks that both have.

    Value and bounds lie in [-1, 1]. The difference is paired by task. The interval is MOVER's (Zou
    and Donner, Statistics in Medicine 27, 2008), which combines the two intervals of `success_rate`
    and the correlation between the two evaluations over tasks. With one sample per task it is
    Newcombe's hybrid score interval for paired proportions (Statistics in Medicine 17, 1998, page
    2635). The more alike the two evaluations rank the tasks, the narrower it is.
    """
    tasks = [task for task in start if start[task].samples and task in end and end[task].samples]
    before, after = [start[task] for task in tasks], [end[task] for task in tasks]
    draws = sum(tally.samples for tally in before), sum(tally.samples for tally in after)
    return _paired_difference(_rates(before), _rates(after), *draws)


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # imported here because it takes 0.2 s

    return float(stdtrit(freedom, 0.975))


def _rates(tallies: Sequence[Tally]) -> Values:
    return np.array([tally.successes / tally.samples for tally in tallies], dtype=np.float64)


def _share(values: Values, draws: int) -> Estimate:
    """Return the mean of per-task values in [0, 1] with Wilson's interval.

    Args:
        values: Value of each task, shape (tasks,).
        draws: Maximum total number of independent trials.
    """
    n = len(values)
    if not n:
        return UNKNOWN
    value = float(values.mean())
    if n == 1 and draws > 1:
        # one task, however often sampled, carries no information about other tasks
        return Estimate(value, 0.0, 1.0, 1)
    spread, variance = value * (1 - value), float(values.var(ddof=1 if draws > n else 0)) / n
    if spread <= 0:
        effective = float(n)  # all alike: no more information than one trial per task
    else:
        effective = min(float(draws), spread / variance) if variance > 0 else float(draws)
    quantile = _student(n - 1) if draws > n else NormalDist().inv_cdf(0.975)
    return Estimate(value, *_wilson(value, effective, quantile), n)


def _wilson(p: float, n: float, z: float) -> tuple[float, float]:
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def _paired_difference(
    before: Values, after: Values, draws_before: int, draws_after: int
) -> Estimate:
    a, b = _share(before, draws_before), _share(after, draws_after)
    if not a.n:
        return UNKNOWN
    varied = np.ptp(before) > 0 and np.ptp(after) > 0
    correlation = float(np.corrcoef(before, after)[0, 1]) if varied else 0.0
    value = b.value - a.value
    low = value - _joined(b.value - b.low, a.high - a.value, correlation)
    high = value + _joined(b.high - b.value, a.value - a.low, correlation)
    return Estimate(value, max(-1.0, low), min(1.0, high), a.n)


def _joined(x: float, y: float, correlation: float) -> float:
    return math.sqrt(max(0.0, x * x + y * y - 2 * correlation * x * y))
