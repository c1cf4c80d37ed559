"""What several comparisons, and measurements that some runs never reach, need. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for the number of comparisons, in the same order: below 0.05 they hold together with 5 % error.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979): the i-th smallest of m is
    multiplied by m - i + 1, and none may be smaller than one before it. Unknown ones (nan) stay so, and count among the m.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[place] = largest
    return adjusted


def median_time(reached: Sequence[float | None], ends: Sequence[float]) -> float:
    """The median time until something is reached, where some runs ended before they reached it (right-censored).

    The first time at which the Kaplan-Meier estimate (JASA 53, 1958; scipy's) of the share that is not there yet is at most one half; nan
    where it stays above.

    Args:
        reached: When each run reached it; None where it did not.
        ends: When each run ended.
    """
    if all(time is None for time in reached):
        return math.nan
    from scipy import stats  # type: ignore[import-untyped]  # here, because it takes a second

    data = stats.CensoredData(
        uncensored=[time for time in reached if time is not None],
        right=[end for time, end in zip(reached, ends, strict=True) if time is None],
    )
    curve = stats.ecdf(data).sf
    there = (float(time) for time, share in zip(curve.quantiles, curve.probabilities, strict=True) if share <= 0.5)
    return next(there, math.nan)
