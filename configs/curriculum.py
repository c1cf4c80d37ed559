"""Schedules of the horizon (the turn limit): ScalingInter-RL (arXiv 2509.08755, section 3.3).

h_{t+1} = h_t + delta_h every few steps. Short horizons come first (exploitation: reliable basic
skills). Long ones follow (exploration: planning and recovery).

A schedule is a pure function of the step and of the metrics of earlier steps. Every checkpoint
contains these metrics. So a schedule has no state to save, and a resumed run continues at the exact
step. A schedule in another package is found by its entry point: see configs/ADDING_A_SCHEDULE.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field, PositiveInt, model_validator

from configs.config_model import ConfigModel
from configs.registry import Registry


@dataclass(frozen=True, slots=True)
class Training:
    """Inputs of a schedule besides the step.

    Attributes:
        steps: Training steps of the whole run.
        seed: The run's `seeds.training`.
        history: Step, counted from 1, to its metrics (tasks/training/step_metrics.py), for
            completed steps. For later steps a schedule assumes that the current horizon stays.
    """

    steps: int
    seed: int = 0
    history: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


class Curriculum(ConfigModel):
    """Base class of the horizon schedules."""

    kind: str = ""
    """The schedule: fixed, stepwise, linear, success-gated, reversed, shuffled or random.

    Any other: the name of an installed package's entry point, or module:Class, e.g.
    mine.schedules:Cosine.
    """

    looks_back: ClassVar[bool] = False
    """Whether the horizon depends on `Training.history`.

    The ends of its phases are then unknown in advance.
    """

    ascending: ClassVar[bool] = True
    """Whether the horizon never falls during training. `check_schedule` checks it."""

    def horizon_at(self, step: int, training: Training) -> int:
        """Return the turn limit, at least 1, of a training step (from 0)."""
        raise NotImplementedError

    def phase_at(self, step: int, training: Training) -> int:
        """Return the phase id of a step. Adjacent steps with the same id form one phase.

        By default a phase is the steps of one horizon.
        """
        return self.horizon_at(step, training)


class FixedHorizon(Curriculum):
    """One horizon for the whole run: the baseline for ScalingInter-RL."""

    horizon: PositiveInt
    """Turn limit of an episode."""

    def horizon_at(self, step: int, training: Training) -> int:
        """Return the constant horizon. See `Curriculum.horizon_at`."""
        return self.horizon


class StepwiseHorizon(Curriculum):
    """A list of horizons that advances every `every` steps: the paper's schedule."""

    horizons: list[PositiveInt] = Field(min_length=1)
    """Turn limits in ascending order."""
    every: PositiveInt
    """Training steps per horizon. The last horizon stays until the end of the run."""

    def horizon_at(self, step: int, training: Training) -> int:
        """Advance through the list every `every` steps. See `Curriculum.horizon_at`."""
        return self.horizons[min(step // self.every, len(self.horizons) - 1)]

    @model_validator(mode="after")
    def _check_ascending(self) -> StepwiseHorizon:
        if any(b <= a for a, b in zip(self.horizons, self.horizons[1:], strict=False)):
            raise ValueError(
                f"horizons {self.horizons} must be in ascending order; for one horizon set kind: "
                "fixed"
            )
        return self


class LinearHorizon(Curriculum):
    """h(t) = start + delta * (t div every), up to `maximum` (the paper's h_{t+1} = h_t + delta_h)."""

    start: PositiveInt
    """Horizon at step 0, in turns."""
    delta: PositiveInt
    """Turns added at each increase."""
    every: PositiveInt
    """Training steps between increases."""
    maximum: PositiveInt
    """Largest horizon, in turns. Must be at least `start`."""

    def horizon_at(self, step: int, training: Training) -> int:
        """Increase linearly up to `maximum`. See `Curriculum.horizon_at`."""
        return min(self.start + self.delta * (step // self.every), self.maximum)

    @model_validator(mode="after")
    def _check_maximum(self) -> LinearHorizon:
        if self.maximum < self.start:
            raise ValueError(
                f"maximum ({self.maximum}) must be at least start ({self.start}); raise it"
            )
        return self


SCHEDULES = Registry(
    what="schedule",
    field="kind",
    base=Curriculum,
    built_in={
        "fixed": "configs.curriculum:FixedHorizon",
        "stepwise": "configs.curriculum:StepwiseHorizon",
        "linear": "configs.curriculum:LinearHorizon",
        "success-gated": "configs.success_gate:SuccessGatedHorizon",
        "reversed": "configs.control_schedules:ReversedHorizon",
        "shuffled": "configs.control_schedules:ShuffledHorizon",
        "random": "configs.control_schedules:RandomHorizon",
    },
    group="agentgym.schedules",
)
"""The config models of `curriculum`."""
