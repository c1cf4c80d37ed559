"""Named lists of tasks: what every world answers when it is asked for one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
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
    raise KeyError(no_such_list(lists, name, world, renamed or {}))


def no_such_list(lists: Iterable[str], name: str, world: str, renamed: Mapping[str, str]) -> str:
    """What a person is told who named a list that does not exist, or not any more; see `named`."""
    if name in renamed:
        return f"{world}'s task list {name!r} is now called {renamed[name]!r}"
    lists = list(lists)
    close = difflib.get_close_matches(name, lists, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{world} has no task list {name!r}; {hint}there are: {', '.join(lists)}"


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


def renamed_lists(package: str) -> Mapping[str, str]:
    """Names that a world's lists once had, and those that they have now."""
    renamed: Mapping[str, str] = getattr(import_module(package), "RENAMED_TASK_LISTS", {})
    return renamed
