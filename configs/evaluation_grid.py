"""An evaluation grid: one policy, several task lists, horizons and temperatures."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from configs.collection import Collection, Played
from configs.task_selection import TaskSelection, check_distinct, selection_name


class EvaluationGrid(Played):
    """An evaluation of every combination of task list, horizon and temperature.

    All cells use the same tasks and seeds.
    """

    tasks: Annotated[tuple[TaskSelection, ...], Field(min_length=1)] = ("test",)
    """Task lists: names, indices, or files of indices such as AgentGym's."""
    horizons: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (30,)
    """Turn limits."""
    categories: dict[str, TaskSelection] = Field(default_factory=dict)
    """Name of each category to its tasks. Success is broken down by category.

    Tasks are indices or files, such as AgentGym-RL's category files. Empty: the environment's own
    tags.
    """
    temperatures: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)] = (1.0,)
    """Sampling temperatures. 0 is greedy."""

    @model_validator(mode="after")
    def _check_cells(self) -> Self:
        for tasks in self.tasks:
            self.environment.check_tasks(tasks, "tasks")
            check_distinct(tasks, "tasks")
        for name, tasks in self.categories.items():
            if isinstance(tasks, str):
                raise ValueError(
                    f"categories.{name} is the list {tasks!r}, which is not supported here; give "
                    "indices or a file"
                )
            self.environment.check_tasks(tasks, f"categories.{name}")
        for name in ("tasks", "horizons", "temperatures"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} has a duplicate value; remove it")
        return self

    def list_names(self) -> list[str]:
        """Return the names of the task lists.

        Lists given as indices have the same name if their lengths are equal, so these are numbered.
        """
        names = [selection_name(tasks) for tasks in self.tasks]
        return [
            f"{name} ({names[:i].count(name) + 1})" if names.count(name) > 1 else name
            for i, name in enumerate(names)
        ]

    def cells(self) -> dict[str, Collection]:
        """Return the collection of episodes of each cell, by name.

        A name is e.g. "wood-test, horizon 16, temperature 1".
        """
        shared = {name: getattr(self, name) for name in Played.model_fields}
        return {
            f"{name}, horizon {horizon}, temperature {temperature:g}": Collection(
                **shared, tasks=tasks, horizon=horizon, temperature=temperature
            )
            for name, tasks in zip(self.list_names(), self.tasks, strict=True)
            for horizon in self.horizons
            for temperature in self.temperatures
        }
