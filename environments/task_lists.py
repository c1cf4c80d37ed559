"""Named task lists of a world: lookup, messages for wrong names, and descriptions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Tasks = TypeVar("Tasks")


def named(lists: Mapping[str, Tasks], name: str, world: str) -> Tasks:
    """Return the task indices of a list.

    Args:
        lists: Task indices by name.
        name: Name of the list.
        world: Name of the world, for the message.

    Raises:
        KeyError: No list has this name. The message gives the nearest name and all existing ones.
    """
    if name in lists:
        return lists[name]
    raise KeyError(no_such_list(lists, name, world))


def no_such_list(lists: Iterable[str], name: str, world: str) -> str:
    """Return the error message for a list that does not exist. See `named`."""
    lists = list(lists)
    close = difflib.get_close_matches(name, lists, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{world} has no task list {name!r}; {hint}there are: {', '.join(lists)}"
