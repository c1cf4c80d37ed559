"""Success-gated schedule: the horizon grows with the policy's success.

It advances once the policy masters the current horizon, or once the horizon is too short for
further improvement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field, PositiveInt, model_validator

from configs.config_model import Fraction
from configs.curriculum import Curriculum, Training

QUANTILE = 1.645
"""Quantile of the normal distribution for one-sided bounds at 95 %."""

Step = Mapping[str, float]


class SuccessGatedHorizon(Curriculum):
    """A list of horizons. The steps under the current horizon decide when to move.

    The horizon advances in either of two cases:

    - The lower confidence bound of success over the last `window` steps exceeds `threshold`.
    - The horizon cuts at least `cut_share` of the episodes and success has stalled. Success has
      stalled if it is no higher over the last `window` steps than over the `window` before.

    With `retreat_below` the horizon moves back by one when the upper bound of recent success falls
    below that value. The only state is the metrics of earlier steps. Each decision is recomputed
    from them.
    """

    looks_back: ClassVar[bool] = True
    ascending: ClassVar[bool] = False

    horizons: list[PositiveInt] = Field(min_length=2)
    """Turn limits in ascending order, at least two."""
    threshold: Fraction = 0.5
    """Success rate, 0 to 1, that the lower bound must exceed to advance."""
    window: PositiveInt = 5
    """Number of training steps that count as recent."""
    cut_share: Fraction = 0.25
    """Fraction of recent episodes, 0 to 1, cut by the horizon before it can limit success."""
    retreat_below: Fraction | None = None
    """Success rate below which an upper bound triggers a retreat. Must be below `threshold`.

    Empty: the horizon never moves back.
    """

    @model_validator(mode="after")
    def _check_thresholds(self) -> SuccessGatedHorizon:
        if any(b <= a for a, b in zip(self.horizons, self.horizons[1:], strict=False)):
            raise ValueError(f"horizons {self.horizons} must be in ascending order; sort them")
        if self.retreat_below is not None and self.retreat_below >= self.threshold:
            raise ValueError(
                f"retreat_below ({self.retreat_below}) must be below threshold ({self.threshold}); "
                "lower it"
            )
        return self

    def horizon_at(self, step: int, training: Training) -> int:
        """Replay the decisions of all earlier steps. See `Curriculum.horizon_at`."""
        place, stay = 0, list[Step]()
        for done in range(1, step + 1):
            metrics = training.history.get(done, {})
            if metrics.get("rollout/horizon") != self.horizons[place] or not metrics.get(
                "rollout/groups"
            ):
                # Not known yet, from before the last decision took effect, or without valid
                # episodes.
                continue
            stay.append(metrics)
            move = self._move(stay, place)
            if move:
                place, stay = place + move, []
        return self.horizons[place]

    def _move(self, stay: Sequence[Step], place: int) -> int:
        """Return 1 to advance, -1 to retreat or 0 to stay.

        `stay` holds the steps under the current horizon.
        """
        recent, before = stay[-self.window :], stay[-2 * self.window : -self.window]
        if len(recent) < self.window:
            return 0
        groups = sum(step["rollout/groups"] for step in recent)
        low, high = score_bounds(_mean(recent, "rollout/success"), groups)
        if self.retreat_below is not None and place > 0 and high < self.retreat_below:
            return -1
        if place + 1 == len(self.horizons):
            return 0
        stalled = len(before) == self.window and _mean(recent, "rollout/success") <= _mean(
            before, "rollout/success"
        )
        too_short = stalled and _mean(recent, "rollout/cut_by_horizon") >= self.cut_share
        return 1 if low > self.threshold or too_short else 0


def score_bounds(share: float, trials: float) -> tuple[float, float]:
    """Return the one-sided lower and upper 95 % bounds of a share (Wilson's score interval, 1927).

    A group counts as one trial, because its episodes are correlated. Counting episodes would make
    the bounds too tight.

    Args:
        share: Observed share, 0 to 1.
        trials: Number of groups.
    """
    centre = share + QUANTILE**2 / (2 * trials)
    half = QUANTILE * math.sqrt(share * (1 - share) / trials + QUANTILE**2 / (4 * trials**2))
    scale = 1 + QUANTILE**2 / trials
    return (centre - half) / scale, (centre + half) / scale


def _mean(steps: Sequence[Step], name: str) -> float:
    """Return the mean of a metric, weighted by the groups of each step."""
    return sum(step[name] * step["rollout/groups"] for step in steps) / sum(
        step["rollout/groups"] for step in steps
    )
