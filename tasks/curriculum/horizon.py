"""The horizon over training, and the phases that it makes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from configs.curriculum import Training
from configs.experiment import Experiment
from tasks.tracking.step_metrics_file import Steps


@dataclass(frozen=True, slots=True)
class Phase:
    """A range of training steps that ends with a checkpoint: a stretch of one horizon, or what a schedule takes for one.

    Attributes:
        number: Place among the phases, from 1.
        horizon: Turns that an episode may take, at most.
        first_step: First training step, from 0.
        end_step: The step after the last; of the phase that is going on, the run's end, unless the schedule ends it before.
        shortest: The smallest turn limit of its steps.
    """

    number: int
    horizon: int
    first_step: int
    end_step: int
    shortest: int

    @property
    def horizons(self) -> str:
        """The turn limits in words, e.g. "horizon 16" or "horizons 6 to 16"."""
        return f"horizon {self.horizon}" if self.shortest == self.horizon else f"horizons {self.shortest} to {self.horizon}"


def horizon_at(experiment: Experiment, step: int, history: Steps) -> int:
    """The turn limit of training step `step` (from 0).

    Args:
        experiment: The recipe.
        step: May be up to `rollout.max_off_policy_steps` after the last one that is done.
        history: The metrics of all steps before it that are done; of those after it nothing is read.

    Raises:
        ValueError: step is negative.
    """
    if step < 0:
        raise ValueError(f"a training step is 0 or more, not {step}")
    return experiment.curriculum.horizon_at(step, _known(experiment, step, history))


def phases(experiment: Experiment, history: Steps) -> list[Phase]:
    """The phases of a run in order; together they cover every step once.

    Where the schedule looks back, those that ended within `history` are final; of the others it is supposed that the present horizon stays.
    """
    found: list[Phase] = []
    for step in range(experiment.algorithm.steps):
        horizon = horizon_at(experiment, step, history)
        if not found or starts_phase(experiment, step, history):
            found.append(Phase(len(found) + 1, horizon, step, step + 1, horizon))
        else:
            last = found[-1]
            found[-1] = replace(last, horizon=max(last.horizon, horizon), shortest=min(last.shortest, horizon), end_step=step + 1)
    return found


def starts_phase(experiment: Experiment, step: int, history: Steps) -> bool:
    """Whether another phase ends where `step` (from 1) begins; the steps before it are done."""
    every, curriculum = experiment.evaluation.every, experiment.curriculum
    if every is not None and step % every == 0:
        return True
    before, now = (curriculum.phase_at(each, _known(experiment, each, history)) for each in (step - 1, step))
    return before != now


def _known(experiment: Experiment, step: int, history: Steps) -> Training:
    """What the schedule may look at when it decides on `step`: where batches are played ahead, the same for a batch as for its step."""
    until = step - experiment.rollout.max_off_policy_steps
    return Training(
        experiment.algorithm.steps, experiment.seeds.training, {done: metrics for done, metrics in history.items() if done <= until}
    )
