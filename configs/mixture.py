"""Several worlds played as one, e.g. "textcraft+searchqa": what a mixture, its task lists and its tasks are called."""

from __future__ import annotations

import re

SEPARATOR = "+"
_PART = re.compile(r"(?:(\d+)\*)?([A-Za-z0-9._-]+)")


def members(world: str) -> tuple[str, ...]:
    """The worlds of a mixture, in order; of any other world, itself."""
    return tuple(world.split(SEPARATOR))


def member_of(world: str, index: int) -> tuple[str, int]:
    """Which world a task is of, and its index there: a mixture of n worlds counts their first tasks, then their second ones."""
    names = members(world)
    return names[index % len(names)], index // len(names)


def weighted_lists(world: str, name: str) -> tuple[tuple[str, int], ...]:
    """A task list of each world of a mixture, and its weight: how often its tasks come beside the others' (default 1).

    Args:
        world: The mixture, e.g. "textcraft+searchqa".
        name: Of a list, e.g. "one-command-train+2*islands-train", in the order of the worlds; or of one that every one of them has.

    Raises:
        KeyError: It names another number of lists, or a part is no "name" or "weight*name".
    """
    worlds, parts = members(world), [_PART.fullmatch(part) for part in name.split(SEPARATOR)]
    lists = tuple((part.group(2), int(part.group(1) or 1)) for part in parts if part is not None)
    if len(lists) < len(parts) or len(parts) not in (1, len(worlds)) or any(weight < 1 for _, weight in lists):
        raise KeyError(
            f"{name!r} names no tasks of {world}: write a list of each of {', '.join(worlds)}, in this order, such as "
            f"{SEPARATOR.join(['train'] * len(worlds))}, with weights where wanted (2*train), or one that each of them has"
        )
    return lists * len(worlds) if len(lists) == 1 else lists
