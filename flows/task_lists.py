"""The tasks of a run: what its environment servers say of the lists that its recipe names."""

from __future__ import annotations

from dataclasses import dataclass

from configs.experiment import Experiment
from configs.task_selection import selection_name
from tasks.tracking.datasets import TaskListEntry


@dataclass(frozen=True, slots=True)
class TaskLists:
    """The tasks of a run, as its environment servers name them.

    Attributes:
        instruction: What the agent is told first.
        identity: Name and version of the world; only the name where the servers tell no version.
        success_score: The score from which an episode is a success.
        train: Task indices to learn from.
        evaluation: Task indices to measure on.
        tags: Task index to a tag, such as "depth 2", by which success is broken down; not every world has tags.
    """

    instruction: str
    identity: str
    success_score: float
    train: list[int]
    evaluation: list[int]
    tags: dict[int, str]

    def entries(self, experiment: Experiment) -> list[TaskListEntry]:
        """The lists as MLflow's datasets."""
        world = experiment.environment.name
        return [
            TaskListEntry.of(world, self.identity, selection_name(experiment.environment.train_tasks), "training", self.train),
            TaskListEntry.of(world, self.identity, selection_name(experiment.evaluation.tasks), "evaluation", self.evaluation),
        ]
