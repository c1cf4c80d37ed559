"""The tasks of a run: the indices that the environment servers give for the recipe's task lists."""

from __future__ import annotations

from dataclasses import dataclass

from configs.experiment import Experiment
from configs.task_selection import selection_name
from environments.tools import Tool
from tasks.tracking.datasets import TaskListEntry


@dataclass(frozen=True, slots=True)
class TaskLists:
    """The tasks of a run, as the environment servers report them.

    Attributes:
        instruction: First message to the agent.
        tools: The world's actions as functions.
        identity: Name and version of the world; only the name if the servers report no version.
        success_score: Minimum score of a successful episode.
        train: Task indices for training.
        evaluation: Held-out task indices for evaluation.
        tags: Tag of each task index, such as "depth 2", by which success is broken down. Empty for
            worlds without tags.
    """

    instruction: str
    tools: list[Tool]
    identity: str
    success_score: float
    train: list[int]
    evaluation: list[int]
    tags: dict[int, str]

    def entries(self, experiment: Experiment) -> list[TaskListEntry]:
        """Return the lists as MLflow datasets."""
        world = experiment.environment.name
        return [
            TaskListEntry.of(
                world,
                self.identity,
                selection_name(experiment.environment.train_tasks),
                "training",
                self.train,
            ),
            TaskListEntry.of(
                world,
                self.identity,
                selection_name(experiment.evaluation.tasks),
                "evaluation",
                self.evaluation,
            ),
        ]
