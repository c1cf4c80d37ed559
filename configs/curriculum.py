"""How the horizon (the turn limit) grows over training: the ScalingInter-RL schedules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from configs.part import Part


class FixedHorizon(Part):
    """One horizon for the whole run: the baseline that ScalingInter-RL is compared with."""

    kind: Literal["fixed"] = "fixed"
    """Selects this schedule."""
    horizon: PositiveInt
    """Turns that an episode may take."""


class StepwiseHorizon(Part):
    """A list of horizons, the next one every `every` steps: the paper's schedule."""

    kind: Literal["stepwise"] = "stepwise"
    """Selects this schedule."""
    horizons: list[PositiveInt] = Field(min_length=1)
    """Turn limits in the order in which they come; each must be larger than the one before."""
    every: PositiveInt
    """Training steps under each horizon; the last one stays until the end."""

    @model_validator(mode="after")
    def _grows(self) -> StepwiseHorizon:
        if any(b <= a for a, b in zip(self.horizons, self.horizons[1:], strict=False)):
            raise ValueError(f"horizons must grow, they are {self.horizons}; for one horizon use kind: fixed")
        return self


class LinearHorizon(Part):
    """h(t) = start + delta * (t div every), up to `maximum` (the paper's h_{t+1} = h_t + delta_h)."""

    kind: Literal["linear"] = "linear"
    """Selects this schedule."""
    start: PositiveInt
    """Turns at step 0."""
    delta: PositiveInt
    """Turns added at each growth."""
    every: PositiveInt
    """Training steps between growths."""
    maximum: PositiveInt
    """The horizon stops growing here."""

    @model_validator(mode="after")
    def _reaches(self) -> LinearHorizon:
        if self.maximum < self.start:
            raise ValueError(f"maximum {self.maximum} is below start {self.start}")
        return self


Curriculum = Annotated[FixedHorizon | StepwiseHorizon | LinearHorizon, Field(discriminator="kind")]
