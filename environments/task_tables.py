"""A world's task lists as a table in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, get_args

from environments.environment import Split
from environments.registry import load_world, task_lists_of


def print_task_lists(name: str) -> int:
    """Prints the name and the size of every task list of a world, and what the list holds; returns the exit status."""
    world = load_world(name)
    described = task_lists_of(name) or dict.fromkeys(_names(world), "")
    rows = [(each, str(len(world.tasks(each))), what) for each, what in described.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{each:<{widths[0]}}  {size:>{widths[1]}}  {what}".rstrip() for each, size, what in rows]
    stand_in = getattr(world, "stand_in", "")
    header = f"Task lists of {world.name} ({world.version})" + (f"; its tasks are {stand_in}:" if stand_in else ":")
    sys.stdout.write("\n".join([header, *lines]) + "\n")
    return 0


def _names(world: Any) -> list[str]:
    """The lists that a world names itself; where it does not, the splits that every world has."""
    lists: Mapping[str, object] | None = getattr(world, "lists", None)
    return list(lists) if lists is not None else list(get_args(Split))
