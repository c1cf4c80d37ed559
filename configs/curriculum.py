"""How the horizon (the turn limit) grows over training: the ScalingInter-RL schedules (arXiv 2509.08755, section 3.3).

h_{t+1} = h_t + delta_h every few steps: short horizons first (exploitation: the basics, learned reliably), long ones later
(exploration: planning and recovery). A schedule is one class and one line of `SCHEDULES`; see ADDING_A_SCHEDULE.md beside this file. It is
a pure function of the step and of the metrics of the steps before, which every checkpoint holds: so it has no state of its own to save, and
a resumed run cannot be off by a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field, PositiveInt, model_validator

from configs.kinds import Kinds
from configs.part import Part


@dataclass(frozen=True, slots=True)
class Training:
    """What a schedule may look at besides the step.

    Attributes:
        steps: Training steps of the whole run.
        seed: The run's `seeds.training`.
        history: Step, counted from 1, to its metrics (tasks/training/step_metrics.py), of the steps that are done. Asked about a later
            one, a schedule supposes that the present horizon stays.
    """

    steps: int
    seed: int = 0
    history: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


class Curriculum(Part):
    """A schedule of the horizon: what all of them are."""

    kind: str = ""
    """The schedule: a name of `SCHEDULES`; or the module and class of another one, e.g. mine.schedules:Cosine."""

    looks_back: ClassVar[bool] = False
    """Whether the horizon depends on `Training.history`: the ends of its phases are then not known beforehand."""

    def horizon_at(self, step: int, training: Training) -> int:
        """The turn limit, at least 1, of a training step (from 0)."""
        raise NotImplementedError

    def phase_at(self, step: int, training: Training) -> int:
        """Names the phase of a step: neighbours of the same name are one phase. Those are the steps of one horizon, unless overridden."""
        return self.horizon_at(step, training)


class FixedHorizon(Curriculum):
    """One horizon for the whole run: the baseline that ScalingInter-RL is compared with."""

    horizon: PositiveInt
    """Turns that an episode may take."""

    def horizon_at(self, step: int, training: Training) -> int:
        """Always the same; see `Curriculum.horizon_at`."""
        return self.horizon


class StepwiseHorizon(Curriculum):
    """A list of horizons, the next one every `every` steps: the paper's schedule."""

    horizons: list[PositiveInt] = Field(min_length=1)
    """Turn limits in the order in which they come; each must be larger than the one before."""
    every: PositiveInt
    """Training steps under each horizon; the last one stays until the end."""

    def horizon_at(self, step: int, training: Training) -> int:
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

    def horizon_at(self, step: int, training: Training) -> int:
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
        "success-gated": "configs.success_gate:SuccessGatedHorizon",
        "reversed": "configs.control_schedules:ReversedHorizon",
        "shuffled": "configs.control_schedules:ShuffledHorizon",
        "random": "configs.control_schedules:RandomHorizon",
    },
)
"""Kind in a recipe -> module and class. A recipe may also name any `module:Class` itself."""
