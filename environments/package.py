"""Facts of a world that are read without importing or building it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorldPackage:
    """Facts that the `__init__` of a world's package may define, under any name.

    A recipe is checked against them in milliseconds, also where the world's dependencies are not
    installed.

    Attributes:
        task_lists: Name and description of every task list. None: only the built world knows them.
        task_lists_replaced_by: Environment variable that replaces the tasks, and thus the lists.
        image: Dockerfile target of the container image that serves the world.
        variables: Environment variables that its servers read. Those whose names begin with the
            world's name need not be listed, e.g. SEARCHQA_DATA.
        task_of_goal: Returns the task index of a goal's text. For a world whose AgentGym server
            numbers its tasks in an order that differs between servers.
    """

    task_lists: Mapping[str, str] | None = None
    task_lists_replaced_by: str = ""
    image: str = "light"
    variables: tuple[str, ...] = ()
    task_of_goal: Callable[[str], int] | None = None
