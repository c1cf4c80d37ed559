"""Named task lists of a world: lookup, messages for wrong names, and descriptions."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TypeVar

Tasks = TypeVar("Tasks")


def named(lists: Mapping[str, Tasks], name: str, world: str, renamed: Mapping[str, str] | None = None) -> Tasks:
    """Return the task indices of a list.

    Args:
        lists: Task indices by name.
        name: Name of the list.
        world: Name of the world, for the message.
        renamed: Former list names, mapped to the current ones.

    Raises:
        KeyError: No list has this name. The message gives its new name, or the nearest name and all
            existing ones.
    """
    if name in lists:
        return lists[name]
    raise KeyError(no_such_list(lists, name, world, renamed or {}))


def no_such_list(lists: Iterable[str], name: str, world: str, renamed: Mapping[str, str]) -> str:
    """Return the error message for a list that does not exist or was renamed. See `named`."""
    if name in renamed:
        return f"{world}'s task list {name!r} is now called {renamed[name]!r}"
    lists = list(lists)
    close = difflib.get_close_matches(name, lists, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{world} has no task list {name!r}; {hint}there are: {', '.join(lists)}"


def described_lists(package: str) -> Mapping[str, str] | None:
    """Return the task lists that a world's package describes.

    Nothing is built, so this takes milliseconds.

    Args:
        package: The world's package, e.g. "environments.textcraft".

    Returns:
        List name to description. None if only a built world can list them: the package describes
        none, or an environment variable replaces its tasks.
    """
    about = import_module(package)
    replaced = getattr(about, "TASK_LISTS_REPLACED_BY", None)
    if replaced and os.environ.get(replaced):
        return None
    lists: Mapping[str, str] | None = getattr(about, "TASK_LISTS", None)
    return lists


def renamed_lists(package: str) -> Mapping[str, str]:
    """Return a world's former list names, mapped to the current ones."""
    renamed: Mapping[str, str] = getattr(import_module(package), "RENAMED_TASK_LISTS", {})
    return renamed
