"""Control schedules: the horizons of another schedule in a different order.

They separate the effect of the order from the effect of shorter episodes. Each control uses the
horizons of its reference schedule ("random" only on average). So it costs as much.
"""

from __future__ import annotations

import random
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, SerializeAsAny, field_validator

from configs.curriculum import SCHEDULES, Curriculum, Training


class ControlSchedule(Curriculum):
    """Base of the controls: holds the reference schedule."""

    ascending: ClassVar[bool] = False

    of: Annotated[SerializeAsAny[Curriculum], BeforeValidator(SCHEDULES.validated)]
    """The reference schedule, written as in a recipe.

    Example: {kind: stepwise, horizons: [6, 10, 16], every: 10}.
    """

    @field_validator("of")
    @classmethod
    def _check_known_in_advance(cls, of: Curriculum) -> Curriculum:
        if of.looks_back:
            raise ValueError(
                f"the horizons of kind {of.kind} depend on the training and cannot be reordered; "
                "set of.kind to stepwise, for example"
            )
        return of

    def horizons(self, training: Training) -> list[int]:
        """Return the reference schedule's horizon at every step of the run."""
        return [self.of.horizon_at(step, training) for step in range(training.steps)]


class ReversedHorizon(ControlSchedule):
    """The reference schedule from its last horizon to its first."""

    def horizon_at(self, step: int, training: Training) -> int:
        """Return the reference horizon of the mirrored step. See `Curriculum.horizon_at`."""
        return self.of.horizon_at(training.steps - 1 - step, training)


class ShuffledHorizon(ControlSchedule):
    """The reference schedule's horizons in a random order drawn from the run's seed."""

    def horizon_at(self, step: int, training: Training) -> int:
        """Return the step's horizon in the shuffled order. See `Curriculum.horizon_at`."""
        horizons = self.horizons(training)
        random.Random(f"shuffled horizons {training.seed}").shuffle(horizons)
        return horizons[step]

    def phase_at(self, step: int, training: Training) -> int:
        """Return the reference schedule's phase.

        Both schedules are then evaluated after the same steps.
        """
        return self.of.phase_at(step, training)


class RandomHorizon(ControlSchedule):
    """At each step a random horizon of the reference schedule, drawn from the run's seed.

    Each horizon occurs as often as in the reference schedule on average.
    """

    def horizon_at(self, step: int, training: Training) -> int:
        """Return the horizon drawn for this step. See `Curriculum.horizon_at`."""
        return random.Random(f"random horizon {training.seed} {step}").choice(
            self.horizons(training)
        )

    def phase_at(self, step: int, training: Training) -> int:
        """Return the reference schedule's phase.

        Both schedules are then evaluated after the same steps.
        """
        return self.of.phase_at(step, training)
