"""What is evaluated: one policy on some task lists, under several horizons and temperatures."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from configs.collection import Collection, Source
from configs.environment import WorldByName
from configs.experiment import Rollout
from configs.part import Part
from configs.task_selection import TaskSelection, selection_name


class EvaluationGrid(Part):
    """An evaluation: every task list under every horizon and every temperature, with the same tasks and seeds."""

    environment: WorldByName
    """The world."""
    source: Source
    """The policy."""
    tasks: Annotated[tuple[TaskSelection, ...], Field(min_length=1)] = ("test",)
    """Task lists: names, indices, or files of indices such as AgentGym's."""
    n_tasks: PositiveInt | None = None
    """Only the first so many of each list; all when empty."""
    samples: PositiveInt = 1
    """Episodes per task."""
    horizons: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (30,)
    """Turn limits."""
    categories: dict[str, TaskSelection] = Field(default_factory=dict)
    """Name of each category to its tasks, by which success is broken down: indices or files, as AgentGym-RL's category files. Empty: the
    world's own tags."""
    temperatures: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)] = (1.0,)
    """Sampling temperatures; 0 is greedy."""
    seed: NonNegativeInt = 0
    """Seed of the sampling: the same for every policy, so that two of them are paired."""
    rollout: Rollout = Rollout()
    """Budgets, deadlines, bounds; tasks_per_step, group_size and temperature are not used."""

    @model_validator(mode="after")
    def _fits(self) -> EvaluationGrid:
        for tasks in self.tasks:
            self.environment.check_tasks(tasks, "tasks")
        for name, tasks in self.categories.items():
            if isinstance(tasks, str):
                raise ValueError(f"categories.{name} is the list {tasks!r}; give indices or a file of AgentGym's item ids")
            self.environment.check_tasks(tasks, f"categories.{name}")
        self.environment.check_instruction(self.source.instruction, self.source.conversation_start)
        for name in ("tasks", "horizons", "temperatures"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} holds a value twice")
        return self

    def list_names(self) -> list[str]:
        """What the task lists are called; those that are given as indices and are equally long are numbered."""
        names = [selection_name(tasks) for tasks in self.tasks]
        return [f"{name} ({names[:i].count(name) + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]

    def cells(self) -> dict[str, Collection]:
        """Name of each cell, e.g. "wood-test, horizon 16, temperature 1", to the episodes that it is made of."""
        shared = {name: getattr(self, name) for name in ("environment", "source", "n_tasks", "samples", "seed", "rollout")}
        return {
            f"{name}, horizon {horizon}, temperature {temperature:g}": Collection(
                **shared, tasks=tasks, horizon=horizon, temperature=temperature
            )
            for name, tasks in zip(self.list_names(), self.tasks, strict=True)
            for horizon in self.horizons
            for temperature in self.temperatures
        }
