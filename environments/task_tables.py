"""Print a world's task lists as a table."""

from __future__ import annotations

import sys

from configs.mixture import members
from environments.registry import load_world, task_lists_of


def print_task_lists(name: str) -> int:
    """Print name, size and description of every task list, and return the exit status.

    For a mixture, print one table per world.
    """
    sys.stdout.write("\n".join(map(_table, members(name))))
    return 0


def _table(name: str) -> str:
    world = load_world(name)
    described = task_lists_of(name) or dict.fromkeys(world.lists, "")
    rows = [(each, str(len(world.tasks(each))), what) for each, what in described.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [
        f"{each:<{widths[0]}}  {size:>{widths[1]}}  {what}".rstrip() for each, size, what in rows
    ]
    header = f"Task lists of {world.name} ({world.version})" + (
        f"; its tasks are {world.stand_in}:" if world.stand_in else ":"
    )
    return "\n".join([header, *lines]) + "\n"
