"""Names of mixtures such as "textcraft+searchqa", and of their task lists and tasks."""

from __future__ import annotations

import re

SEPARATOR = "+"
_PART = re.compile(r"(?:(\d{1,6})\*)?([A-Za-z0-9._-]+)")


def members(world: str) -> tuple[str, ...]:
    """Return the environments of a mixture, in order. A single environment returns itself."""
    return tuple(world.split(SEPARATOR))


def member_of(world: str, index: int) -> tuple[str, int]:
    """Return the environment of a task, and the task's index there.

    A mixture interleaves its n environments: all their first tasks, then all their second tasks.
    """
    names = members(world)
    return names[index % len(names)], index // len(names)


def weighted_lists(world: str, name: str) -> tuple[tuple[str, int], ...]:
    """Return a task list and its weight for each environment of a mixture.

    The weight is the relative frequency of its tasks (default 1).

    Args:
        world: The mixture, e.g. "textcraft+searchqa".
        name: Lists in the order of the environments, e.g. "one-command-train+2*islands-train", or
            one list that every environment has.

    Raises:
        KeyError: The number of lists is wrong, or a part is not "name" or "weight*name".
    """
    worlds, parts = members(world), [_PART.fullmatch(part) for part in name.split(SEPARATOR)]
    lists = tuple((part.group(2), int(part.group(1) or 1)) for part in parts if part is not None)
    if (
        len(lists) < len(parts)
        or len(parts) not in (1, len(worlds))
        or any(weight < 1 for _, weight in lists)
    ):
        raise KeyError(
            f"{name!r} is not a task list of {world}; give one list each for {', '.join(worlds)}, "
            f"in this order, e.g. {SEPARATOR.join(['train'] * len(worlds))} (with weights: "
            "2*train), or one list that all of them have"
        )
    return lists * len(worlds) if len(lists) == 1 else lists
