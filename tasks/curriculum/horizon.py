"""The horizon over training, and the phases that it makes."""

from __future__ import annotations

from dataclasses import dataclass

from configs.curriculum import Curriculum


@dataclass(frozen=True, slots=True)
class Phase:
    """A range of training steps under one horizon.

    Attributes:
        number: Place among the phases, from 1.
        horizon: Turns that an episode may take.
        first_step: First training step, from 0.
        end_step: The step after the last.
    """

    number: int
    horizon: int
    first_step: int
    end_step: int


def horizon_at(curriculum: Curriculum, step: int) -> int:
    """The turn limit of training step `step` (from 0).

    Raises:
        ValueError: step is negative.
    """
    if step < 0:
        raise ValueError(f"a training step is 0 or more, not {step}")
    return curriculum.horizon_at(step)


def phases(curriculum: Curriculum, steps: int) -> list[Phase]:
    """The phases that `steps` training steps fall into, in order; together they cover every step once."""
    found: list[Phase] = []
    for step in range(steps):
        horizon = horizon_at(curriculum, step)
        if not found or found[-1].horizon != horizon:
            found.append(Phase(len(found) + 1, horizon, step, step + 1))
        else:
            found[-1] = Phase(found[-1].number, horizon, found[-1].first_step, step + 1)
    return found
