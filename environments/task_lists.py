"""Named lists of tasks: what every world answers when it is asked for one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

Tasks = TypeVar("Tasks")


def named(lists: Mapping[str, Tasks], name: str, world: str, renamed: Mapping[str, str] | None = None) -> Tasks:
    """The task indices of the list called `name`.

    Args:
        lists: Task indices by name.
        name: Which of them.
        world: Whose they are, for the message.
        renamed: Names that lists once had, and those that they have now.

    Raises:
        KeyError: No list has this name; the message says what it is called now, or names the nearest and those that exist.
    """
    if name in lists:
        return lists[name]
    if renamed and name in renamed:
        raise KeyError(f"{world}'s task list {name!r} is now called {renamed[name]!r}, since its tasks are not the paper's")
    close = difflib.get_close_matches(name, lists, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise KeyError(f"{world} has no task list {name!r}; {hint}there are: {', '.join(lists)}")
