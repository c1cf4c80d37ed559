"""Named task lists of a world: lookup, messages for wrong names, and descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from configs.plugins import nearest

Tasks = TypeVar("Tasks")


class UnknownTaskListError(KeyError):
    """A world has no task list of this name.

    Attributes:
        known: The names of the world's lists.
        nearest: The most similar of these names. None if none is similar.
    """

    def __init__(
        self,
        message: str,
        *,
        world: str = "",
        name: str = "",
        known: Iterable[str] = (),
        nearest: str | None = None,
    ) -> None:
        super().__init__(message)
        self.world, self.name, self.known, self.nearest = world, name, tuple(known), nearest


def named(lists: Mapping[str, Tasks], name: str, world: str) -> Tasks:
    """Return the task indices of a list.

    Args:
        lists: Task indices by name.

    Raises:
        UnknownTaskListError: No list has this name.
    """
    if name in lists:
        return lists[name]
    raise no_such_list(lists, name, world)


def no_such_list(lists: Iterable[str], name: str, world: str) -> UnknownTaskListError:
    """Return the error for a list that does not exist. See `named`."""
    known = tuple(lists)
    near = nearest(name, known)
    hint = f" Did you mean {near!r}?" if near else ""
    message = f"{world} has no task list {name!r}.{hint} Its lists: {', '.join(known)}"
    return UnknownTaskListError(message, world=world, name=name, known=known, nearest=near)
