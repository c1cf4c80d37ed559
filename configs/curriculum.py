"""How the horizon (the turn limit) grows over training: the ScalingInter-RL schedules (arXiv 2509.08755, section 3.3).

h_{t+1} = h_t + delta_h every few steps: short horizons first (exploitation: the basics, learned reliably), long ones later
(exploration: planning and recovery). A schedule is one class and one line of `SCHEDULES`; see ADDING_A_SCHEDULE.md beside this file. It is
a pure function of the step, so there is nothing to save, and a resumed run cannot be off by a step.
"""

from __future__ import annotations

from pydantic import Field, PositiveInt, model_validator

from configs.kinds import Kinds
from configs.part import Part


class Curriculum(Part):
    """A schedule of the horizon: what all of them are."""

    kind: str = ""
    """The schedule: fixed, stepwise or linear; or the module and class of another one, e.g. mine.schedules:Cosine."""

    def horizon_at(self, step: int) -> int:
        """The turn limit, at least 1, of a training step (from 0)."""
        raise NotImplementedError


class FixedHorizon(Curriculum):
    """One horizon for the whole run: the baseline that ScalingInter-RL is compared with."""

    horizon: PositiveInt
    """Turns that an episode may take."""

    def horizon_at(self, step: int) -> int:
        """Always the same; see `Curriculum.horizon_at`."""
        return self.horizon


class StepwiseHorizon(Curriculum):
    """A list of horizons, the next one every `every` steps: the paper's schedule."""

    horizons: list[PositiveInt] = Field(min_length=1)
    """Turn limits in the order in which they come; each must be larger than the one before."""
    every: PositiveInt
    """Training steps under each horizon; the last one stays until the end."""

    def horizon_at(self, step: int) -> int:
        """The list's next after every `every` steps; see `Curriculum.horizon_at`."""
        return self.horizons[min(step // self.every, len(self.horizons) - 1)]

    @model_validator(mode="after")
    def _grows(self) -> StepwiseHorizon:
        if any(b <= a for a, b in zip(self.horizons, self.horizons[1:], strict=False)):
            raise ValueError(f"horizons must grow, they are {self.horizons}; for one horizon use kind: fixed")
        return self


class LinearHorizon(Curriculum):
    """h(t) = start + delta * (t div every), up to `maximum` (the paper's h_{t+1} = h_t + delta_h)."""

    start: PositiveInt
    """Turns at step 0."""
    delta: PositiveInt
    """Turns added at each growth."""
    every: PositiveInt
    """Training steps between growths."""
    maximum: PositiveInt
    """The horizon stops growing here."""

    def horizon_at(self, step: int) -> int:
        """Grows until it reaches `maximum`; see `Curriculum.horizon_at`."""
        return min(self.start + self.delta * (step // self.every), self.maximum)

    @model_validator(mode="after")
    def _reaches(self) -> LinearHorizon:
        if self.maximum < self.start:
            raise ValueError(f"maximum {self.maximum} is below start {self.start}")
        return self


SCHEDULES = Kinds(
    "schedule",
    "kind",
    Curriculum,
    {
        "fixed": "configs.curriculum:FixedHorizon",
        "stepwise": "configs.curriculum:StepwiseHorizon",
        "linear": "configs.curriculum:LinearHorizon",
    },
)
"""Kind in a recipe -> module and class. A recipe may also name any `module:Class` itself."""
