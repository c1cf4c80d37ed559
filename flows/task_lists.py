"""The tasks of a run: the indices that the environment servers give for the recipe's task lists."""

from __future__ import annotations

from dataclasses import dataclass

from configs.experiment import Experiment
from configs.task_selection import selection_name
from environments.protocol import WorldInfo
from tasks.tracking.datasets import TaskListEntry


@dataclass(frozen=True, slots=True)
class TaskLists:
    """The tasks of a run, as the environment servers report them.

    Attributes:
        world: The world that the servers host.
        train: Task indices for training.
        evaluation: Held-out task indices for evaluation.
        tags: Tag of each task index, such as "depth 2", by which success is broken down. Empty for
            worlds without tags.
    """

    world: WorldInfo
    train: list[int]
    evaluation: list[int]
    tags: dict[int, str]

    def entries(self, experiment: Experiment) -> list[TaskListEntry]:
        """Return the lists as MLflow datasets."""
        name, identity = experiment.environment.name, self.world.identity
        train, held_out = experiment.environment.train_tasks, experiment.evaluation.tasks
        return [
            TaskListEntry.of(name, identity, selection_name(train), "training", self.train),
            TaskListEntry.of(
                name, identity, selection_name(held_out), "evaluation", self.evaluation
            ),
        ]
