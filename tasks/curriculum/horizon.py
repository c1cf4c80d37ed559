"""The horizon over training, and the phases derived from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from configs.curriculum import Training
from configs.experiment import Experiment
from tasks.tracking.step_metrics_file import Steps


@dataclass(frozen=True, slots=True)
class Phase:
    """A range of training steps that ends with a checkpoint.

    By default one phase covers consecutive steps of one horizon. Schedules can define phases
    differently. A periodic evaluation (`evaluation.every`) also ends a phase.

    Attributes:
        number: Phase number, from 1.
        horizon: Largest turn limit of an episode in this phase.
        first_step: First training step, from 0.
        end_step: The step after the last one. For the current phase this is the end of the run,
            unless the schedule ends the phase earlier.
        shortest: Smallest turn limit of an episode in this phase.
    """

    number: int
    horizon: int
    first_step: int
    end_step: int
    shortest: int

    @property
    def horizons(self) -> str:
        """The turn limits in words, e.g. "horizon 16" or "horizons 6 to 16"."""
        if self.shortest == self.horizon:
            return f"horizon {self.horizon}"
        return f"horizons {self.shortest} to {self.horizon}"


def horizon_at(experiment: Experiment, step: int, history: Steps) -> int:
    """Return the turn limit of a training step.

    Args:
        step: Training step, from 0. It may be up to `rollout.max_off_policy_steps` after the last
            completed step.
        history: Metrics of all completed steps before `step`. Later entries are ignored.

    Raises:
        ValueError: `step` is negative.
    """
    if step < 0:
        raise ValueError(f"step is {step}, but must be at least 0")
    return experiment.curriculum.horizon_at(step, _known(experiment, step, history))


def phases(experiment: Experiment, history: Steps) -> list[Phase]:
    """Return the phases of a run in order. Together they cover every step exactly once.

    Some schedules depend on past metrics. For these, phases that ended within `history` are final.
    Later phases assume that the current horizon stays.
    """
    found: list[Phase] = []
    for step in range(experiment.algorithm.steps):
        horizon = horizon_at(experiment, step, history)
        if not found or starts_phase(experiment, step, history):
            found.append(Phase(len(found) + 1, horizon, step, step + 1, horizon))
        else:
            last = found[-1]
            found[-1] = replace(
                last,
                horizon=max(last.horizon, horizon),
                shortest=min(last.shortest, horizon),
                end_step=step + 1,
            )
    return found


def starts_phase(experiment: Experiment, step: int, history: Steps) -> bool:
    """Return whether a phase ends just before `step` (from 1). Earlier steps must be complete."""
    every, curriculum = experiment.evaluation.every, experiment.curriculum
    if every is not None and step % every == 0:
        return True
    before, now = (
        curriculum.phase_at(each, _known(experiment, each, history)) for each in (step - 1, step)
    )
    return before != now


def _known(experiment: Experiment, step: int, history: Steps) -> Training:
    """Return what the schedule may use to decide on `step`.

    Metrics are cut off at `step - max_off_policy_steps`. A batch collected ahead of time therefore
    gets the same horizon as its training step.
    """
    until = step - experiment.rollout.max_off_policy_steps
    return Training(
        experiment.algorithm.steps,
        experiment.seeds.training,
        {done: metrics for done, metrics in history.items() if done <= until},
    )
