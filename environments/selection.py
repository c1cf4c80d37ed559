"""The tasks of a recipe's selection, as indices of a world.

Servers need none of this. They start sooner without pydantic, which reads selections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from configs.rules import Dialect
from configs.task_selection import TaskSelection, goal_of, indices
from environments.environment import TaskIndexError, World
from environments.registry import package_of


def selected_tasks(world: World, name: str, selection: TaskSelection) -> list[int]:
    """Return the indices of a task selection in a world of this process.

    Args:
        name: Its name in recipes.
        selection: Name of a task list, or see `task_indices_of`.

    Raises:
        KeyError: The world has no such list.
        TaskIndexError: As `task_indices_of` does.
    """
    if isinstance(selection, str):
        return list(world.tasks(selection))
    return task_indices_of(name, selection)


def task_indices_of(
    name: str, selection: Sequence[int | str], dialect: Dialect = "ours"
) -> list[int]:
    """Return the indices of given tasks on servers of a dialect.

    AgentGym's index of a TextCraft goal depends on the order of a folder on its server. So our
    servers get the index of the goal's text.

    Args:
        name: The world's name.
        selection: Indices and AgentGym's item ids, e.g. 17, "babyai_17" or "textcraft_17: dark oak
            sign".

    Raises:
        TaskIndexError: An item id lacks a required goal, or names a goal that does not exist.
    """
    if dialect == "agentgym":
        return indices(selection)
    find = package_of(name).task_of_goal
    return [
        each if isinstance(each, int) else _index_of_goal(each, find) if find else index
        for each, index in zip(selection, indices(selection), strict=True)
    ]


def _index_of_goal(item: str, find: Callable[[str], int]) -> int:
    goal = goal_of(item)
    if goal is None:
        raise TaskIndexError(
            f"{item!r} does not name its goal, and AgentGym's servers number goals differently. "
            f"Add the goal, e.g. '{item}: dark oak sign', or give the file of trajectories or our "
            "index"
        )
    return find(goal)
