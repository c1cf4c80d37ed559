"""Controls: the horizons of another schedule in another order, which separates what their order does from what shorter episodes do.

All of them see the same horizons as the schedule that they are a control of (on average, in the case of random), so they cost as much.
"""

from __future__ import annotations

import random
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, field_validator

from configs.curriculum import SCHEDULES, Curriculum, Training


def _schedule(value: Any) -> Any:
    return SCHEDULES.validated(value)


class ControlSchedule(Curriculum):
    """What the controls share: the schedule whose horizons they take."""

    of: Annotated[SerializeAsAny[Curriculum], BeforeValidator(_schedule)]
    """The schedule, as it would be written in a recipe, e.g. {kind: stepwise, horizons: [6, 10, 16], every: 10}."""

    @field_validator("of")
    @classmethod
    def _known_beforehand(cls, of: Curriculum) -> Curriculum:
        if of.looks_back:
            raise ValueError(f"the horizons of {of.kind} are not known beforehand, so they cannot be put in another order")
        return of

    def horizons(self, training: Training) -> list[int]:
        """The other schedule's horizon at every step of the run."""
        return [self.of.horizon_at(step, training) for step in range(training.steps)]


class ReversedHorizon(ControlSchedule):
    """From the last horizon of the other schedule to its first."""

    def horizon_at(self, step: int, training: Training) -> int:
        """See `Curriculum.horizon_at`."""
        return self.of.horizon_at(training.steps - 1 - step, training)


class ShuffledHorizon(ControlSchedule):
    """The other schedule's steps in an order by chance, drawn from the run's seed: exactly its horizons, without their order."""

    def horizon_at(self, step: int, training: Training) -> int:
        """See `Curriculum.horizon_at`."""
        horizons = self.horizons(training)
        random.Random(f"shuffled horizons {training.seed}").shuffle(horizons)
        return horizons[step]

    def phase_at(self, step: int, training: Training) -> int:
        """Its phases are those of the other schedule, so that both are measured after the same steps."""
        return self.of.phase_at(step, training)


class RandomHorizon(ControlSchedule):
    """At each step one of the other schedule's horizons, as often as there on average, drawn from the run's seed."""

    def horizon_at(self, step: int, training: Training) -> int:
        """See `Curriculum.horizon_at`."""
        return random.Random(f"random horizon {training.seed} {step}").choice(self.horizons(training))

    def phase_at(self, step: int, training: Training) -> int:
        """Its phases are those of the other schedule, so that both are measured after the same steps."""
        return self.of.phase_at(step, training)
