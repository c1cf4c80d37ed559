"""Adjusted p values for several comparisons, and median times with censoring. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p values adjusted for the number of comparisons, in the same order.

    Adjusted values below 0.05 hold together with a family-wise error of 5 %. Holm, "A simple
    sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979):
    the i-th smallest of m is multiplied by m - i + 1, and no value may be smaller than the one
    before it. Unknown values (nan) stay nan and count among the m.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[place] = largest
    return adjusted


def median_time(reached: Sequence[float | None], ends: Sequence[float]) -> float:
    """Return the median time to an event if some runs ended before it (right-censored).

    This is the first time at which the Kaplan-Meier estimate (JASA 53, 1958; scipy's) of the
    fraction without the event is at most one half. It is nan if the estimate stays above one half.

    Args:
        reached: Time of the event in each run. None if the run did not reach it.
    """
    if all(time is None for time in reached):
        return math.nan
    from scipy import stats  # type: ignore[import-untyped]  # imported here because it takes a second

    data = stats.CensoredData(
        uncensored=[time for time in reached if time is not None],
        right=[end for time, end in zip(reached, ends, strict=True) if time is None],
    )
    curve = stats.ecdf(data).sf
    below_half = (
        float(time)
        for time, share in zip(curve.quantiles, curve.probabilities, strict=True)
        if share <= 0.5 + 1e-9  # a product that is one half can be rounded up
    )
    return next(below_half, math.nan)
