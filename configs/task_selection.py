"""Task selections: a named list, indices, or a file of indices such as AgentGym's own."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from configs.files import file_of_field

_ITEM = re.compile(r"([A-Za-z0-9-]+)_(?:[^:]*_)?(\d+)(?:: (.+))?")
"""AgentGym's id of a task: environment and index, optionally with the goal.

Examples: "babyai_17", "textcraft_17: dark oak sign".
"""
_GOAL = re.compile(r"Goal: craft ([a-z0-9 ]+)\.")
"""Matches the goal in a first observation of TextCraft."""


def _read(value: Any, info: ValidationInfo) -> Any:
    """Replace a file name by the file's content.

    The selection then stays known when the file changes or is deleted.
    """
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("lists no tasks; name a task list, or give at least one index")
        return [_checked(each) for each in value]
    if not isinstance(value, str) or not _names_a_file(value):
        return value
    path = file_of_field(value, info)
    if path is None:
        raise ValueError(
            f"there is no file {value!r}; give an existing file, or a task list's name without "
            "suffix and slash, e.g. train"
        )
    try:
        ids = read_ids(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as fault:
        raise ValueError(
            f"{path} is not a list of tasks: {fault}; write JSON such as [3, 5] or [{{'item_id': "
            f"'babyai_3'}}], or one index per line"
        ) from fault
    if not ids:
        raise ValueError(f"{path} lists no tasks; add at least one")
    return [_checked(each) for each in ids]


def _checked(each: Any) -> int | str:
    if not isinstance(each, bool) and (
        (isinstance(each, int) and each >= 0) or (isinstance(each, str) and _ITEM.fullmatch(each))
    ):
        return each
    raise ValueError(
        f"{each!r} is not a task; write an index such as 17, or an AgentGym item id such as "
        '"babyai_17"'
    )


TaskSelection = Annotated[
    str | tuple[int | str, ...], Field(union_mode="left_to_right"), BeforeValidator(_read)
]
"""The name of a task list, or indices or AgentGym's item ids ("babyai_17"), or a file of either."""


def read_ids(text: str) -> list[int | str]:
    """Return the task ids in the text of a file.

    The text is JSON (a list of numbers, of ids or of objects with an `item_id`), or has one of
    these per line. An object may also hold the task's first observation, as AgentGym's trajectories
    do. If this names a TextCraft goal, the goal becomes part of the id.

    Raises:
        ValueError: The text has another form.
    """
    try:
        entries = json.loads(text)
    except ValueError:
        entries = [_line(line) for line in text.splitlines() if line.strip()]
    if not isinstance(entries, list):
        entries = [entries]  # a file of one line
    ids: list[int | str] = []
    for entry in entries:
        each = entry.get("item_id") if isinstance(entry, dict) else entry
        if isinstance(each, bool) or not isinstance(each, int | str):
            raise ValueError(f"the entry {entry!r} is not a task")
        if isinstance(entry, dict) and isinstance(each, str):
            goal = _GOAL.search(json.dumps(entry))
        else:
            goal = None
        if goal:
            each = f"{each}: {goal[1]}"
        ids.append(int(each) if isinstance(each, str) and re.fullmatch(r"\d+", each) else each)
    return ids


def indices(selection: Sequence[int | str]) -> list[int]:
    """Return the environment servers' indices of a selection that is not a named list."""
    return [each if isinstance(each, int) else int(_parts(each)[1]) for each in selection]


def goal_of(item: str) -> str | None:
    """Return the goal in an item id, e.g. "dark oak sign", or None."""
    return _parts(item)[2]


def _parts(item: str) -> tuple[str, str, str | None]:
    """Split an item id into environment, index and goal.

    Raises:
        ValueError: It is not an item id.
    """
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError(f"{item!r} is not an AgentGym item id")
    return match[1], match[2], match[3]


def check_world(selection: str | Sequence[int | str], world: str, field: str) -> None:
    """Check that the item ids belong to the environment of the recipe.

    Args:
        world: The environment's name in the recipe.
        field: The selection's field, for the message.

    Raises:
        ValueError: An id belongs to another environment.
    """
    if isinstance(selection, str) or ":" in world:
        return
    for each in selection:
        if isinstance(each, str) and each.partition("_")[0] != world:
            raise ValueError(
                f"{field} has {each!r}, a task of {each.partition('_')[0]}, but environment.name "
                f"is {world}; remove it"
            )


def check_distinct(selection: str | Sequence[int | str], field: str) -> None:
    """Check that a selection to evaluate names each task once.

    Two copies of a task would have the same sampling seeds, so they are no further samples.

    Args:
        field: The selection's field, for the message.

    Raises:
        ValueError: A task occurs twice.
    """
    if isinstance(selection, str):
        return
    for each, count in Counter(selection).items():
        if count > 1:
            raise ValueError(
                f"{field} has {each!r} {count} times; keep one, and set samples for more episodes "
                "of each task"
            )


def _names_a_file(value: str) -> bool:
    return "/" in value or Path(value).suffix in (".json", ".jsonl", ".txt")


def _line(line: str) -> Any:
    line = line.strip()
    return json.loads(line) if line.startswith("{") else line


def selection_name(selection: TaskSelection) -> str:
    """Return a selection's display name: the list's name, or the number of given tasks."""
    return selection if isinstance(selection, str) else f"{len(selection)} given tasks"
