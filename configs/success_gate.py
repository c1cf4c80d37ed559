"""Success-gated: the horizon grows when the policy masters the present one, or when it has become too short for it to get any better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field, PositiveInt, model_validator

from configs.curriculum import Curriculum, Training
from configs.part import Fraction

QUANTILE = 1.645
"""Of the normal distribution: the bounds below are one-sided, at 95 %."""

Step = Mapping[str, float]


class SuccessGatedHorizon(Curriculum):
    """A list of horizons; which of them holds is decided after each step by the steps under it.

    It advances when the lower confidence bound of success over the last `window` steps passes `threshold`; or when the horizon cuts at
    least `cut_share` of the episodes and success no longer rises, that is, is no higher over the last `window` steps than over the
    `window` before. With `retreat_below` it goes back by one when the upper bound of recent success falls below that.

    Nothing is kept but the metrics of the steps, from which each decision follows anew.
    """

    looks_back: ClassVar[bool] = True

    horizons: list[PositiveInt] = Field(min_length=2)
    """Turn limits in the order in which they come; each must be larger than the one before."""
    threshold: Fraction = 0.5
    """Success that the lower bound must pass."""
    window: PositiveInt = 5
    """Training steps that count as recent."""
    cut_share: Fraction = 0.25
    """Share of recent episodes, cut by the horizon, from which on it may be what holds success down."""
    retreat_below: Fraction | None = None
    """Success below which the upper bound must not fall; empty: it never goes back."""

    @model_validator(mode="after")
    def _agrees(self) -> SuccessGatedHorizon:
        if any(b <= a for a, b in zip(self.horizons, self.horizons[1:], strict=False)):
            raise ValueError(f"horizons must grow, they are {self.horizons}")
        if self.retreat_below is not None and self.retreat_below >= self.threshold:
            raise ValueError(f"retreat_below ({self.retreat_below}) must be below threshold ({self.threshold}), or it goes to and fro")
        return self

    def horizon_at(self, step: int, training: Training) -> int:
        """Goes through the steps before, as they were; see `Curriculum.horizon_at`."""
        place, stay = 0, list[Step]()
        for done in range(1, step + 1):
            metrics = training.history.get(done, {})
            if metrics.get("rollout/horizon") != self.horizons[place] or not metrics.get("rollout/groups"):
                continue  # not known yet, played before the last decision took effect, or without a sound episode
            stay.append(metrics)
            move = self._move(stay, place)
            if move:
                place, stay = place + move, []
        return self.horizons[place]

    def _move(self, stay: Sequence[Step], place: int) -> int:
        """1 to advance, -1 to retreat, 0 to stay, given the steps under the present horizon."""
        recent, before = stay[-self.window :], stay[-2 * self.window : -self.window]
        if len(recent) < self.window:
            return 0
        groups = sum(step["rollout/groups"] for step in recent)
        low, high = score_bounds(_mean(recent, "rollout/success"), groups)
        if self.retreat_below is not None and place > 0 and high < self.retreat_below:
            return -1
        if place + 1 == len(self.horizons):
            return 0
        stalled = len(before) == self.window and _mean(recent, "rollout/success") <= _mean(before, "rollout/success")
        too_short = stalled and _mean(recent, "rollout/cut_by_horizon") >= self.cut_share
        return 1 if low > self.threshold or too_short else 0


def score_bounds(share: float, trials: float) -> tuple[float, float]:
    """The lower and the upper 95 % bound, each one-sided, of a share by Wilson's (1927) score interval.

    Episodes of a group are alike, so a group counts as one trial: with the number of episodes the bounds would be too close.
    """
    centre = share + QUANTILE**2 / (2 * trials)
    half = QUANTILE * math.sqrt(share * (1 - share) / trials + QUANTILE**2 / (4 * trials**2))
    scale = 1 + QUANTILE**2 / trials
    return (centre - half) / scale, (centre + half) / scale


def _mean(steps: Sequence[Step], name: str) -> float:
    """The mean of a metric, weighted by the groups of each step."""
    return sum(step[name] * step["rollout/groups"] for step in steps) / sum(step["rollout/groups"] for step in steps)
