"""Named lists of tasks: what every world answers when it is asked for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Tasks = TypeVar("Tasks")


def named(lists: Mapping[str, Tasks], name: str, world: str) -> Tasks:
    """The task indices of the list called `name`.

    Raises:
        KeyError: No list has this name; the message names those that exist.
    """
    if name not in lists:
        raise KeyError(f"{world} has no task list {name!r}; there are: {', '.join(lists)}")
    return lists[name]
