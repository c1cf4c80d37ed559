"""Named lists of tasks: what every world answers when it is asked for one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TypeVar

Tasks = TypeVar("Tasks")


def named(lists: Mapping[str, Tasks], name: str, world: str) -> Tasks:
    """The task indices of the list called `name`.

    Raises:
        KeyError: No list has this name; the message names those that exist.
    """
    if name not in lists:
        raise KeyError(no_such_list(lists, name, world))
    return lists[name]


def no_such_list(lists: Iterable[str], name: str, world: str) -> str:
    """What a person is told who named a list that does not exist."""
    lists = list(lists)
    close = difflib.get_close_matches(name, lists, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{world} has no task list {name!r}; there are: {', '.join(lists)}.{hint}"


def described_lists(package: str) -> Mapping[str, str] | None:
    """The lists of a world and what each holds, as its package says; nothing is built, so this takes milliseconds.

    Args:
        package: The world's package, e.g. "environments.textcraft".

    Returns:
        List name to description; None where only the world itself knows: its package names none, or a variable replaces its tasks.
    """
    about = import_module(package)
    replaced = getattr(about, "TASK_LISTS_REPLACED_BY", None)
    if replaced and os.environ.get(replaced):
        return None
    lists: Mapping[str, str] | None = getattr(about, "TASK_LISTS", None)
    return lists
