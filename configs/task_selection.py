"""Which tasks: a named list of the world, indices, or a file of indices such as AgentGym's own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

_ITEM = re.compile(r"([A-Za-z0-9-]+)_(?:[^:]*_)?(\d+)(?:: (.+))?")
"""AgentGym's name of a task: the world's name and the index, e.g. "babyai_17", and where needed the goal: "textcraft_17: dark oak sign"."""
_GOAL = re.compile(r"Goal: craft ([a-z0-9 ]+)\.")
"""How a first observation of TextCraft names its goal."""


def _read(value: Any, info: ValidationInfo) -> Any:
    """The content of a file in place of its name: what was selected then stays known when the file changes or goes."""
    if isinstance(value, list | tuple):
        return [_checked(each) for each in value]
    if not isinstance(value, str) or not _names_a_file(value):
        return value
    folders = [Path(), *((info.context or {}).get("folders", ()))]
    path = next((found for folder in folders if (found := folder / Path(value).expanduser()).is_file()), None)
    if path is None:
        raise ValueError(f"there is no file {value!r}; a list of the world is named without a suffix or a slash, e.g. train")
    try:
        ids = read_ids(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as fault:
        raise ValueError(f"{path} is no list of tasks: {fault}; it is JSON such as [3, 5] or [{{'item_id': 'babyai_3'}}], or has one "
                         "index a line") from fault  # fmt: skip
    if not ids:
        raise ValueError(f"{path} lists no task")
    return [_checked(each) for each in ids]


def _checked(each: Any) -> int | str:
    if not isinstance(each, bool) and ((isinstance(each, int) and each >= 0) or (isinstance(each, str) and _ITEM.fullmatch(each))):
        return each
    raise ValueError(f'{each!r} is no task: write an index such as 17, or an id of AgentGym\'s such as "babyai_17"')


TaskSelection = Annotated[str | tuple[int | str, ...], Field(union_mode="left_to_right"), BeforeValidator(_read)]
"""The name of one of the world's lists; or indices, AgentGym's item ids ("babyai_17"), or a file of either."""


def read_ids(text: str) -> list[int | str]:
    """The task ids in the text of a file: JSON (a list of numbers, of ids or of objects with an `item_id`), or one of these a line.

    An object may also hold the task's first observation, as AgentGym's trajectories do. A goal of TextCraft that it names becomes part of
    the id.

    Raises:
        ValueError: It holds something else.
    """
    try:
        entries = json.loads(text)
    except ValueError:
        entries = [_line(line) for line in text.splitlines() if line.strip()]
    if not isinstance(entries, list):
        raise ValueError(f"it holds {type(entries).__name__}")
    ids: list[int | str] = []
    for entry in entries:
        each = entry.get("item_id") if isinstance(entry, dict) else entry
        if isinstance(each, bool) or not isinstance(each, int | str):
            raise ValueError(f"one entry is {entry!r}")
        goal = _GOAL.search(json.dumps(entry)) if isinstance(entry, dict) and isinstance(each, str) else None
        if goal:
            each = f"{each}: {goal[1]}"
        ids.append(int(each) if isinstance(each, str) and re.fullmatch(r"\d+", each) else each)
    return ids


def indices(selection: Sequence[int | str]) -> list[int]:
    """The indices of a selection that is no named list, as the world's servers count."""
    return [each if isinstance(each, int) else int(_parts(each)[1]) for each in selection]


def goal_of(item: str) -> str | None:
    """The goal that an item id names beside its index, e.g. "dark oak sign"; None where it names none."""
    return _parts(item)[2]


def _parts(item: str) -> tuple[str, str, str | None]:
    """World, index and goal of an item id.

    Raises:
        ValueError: It is none.
    """
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError(f"{item!r} is no item id of AgentGym's")
    return match[1], match[2], match[3]


def check_world(selection: str | Sequence[int | str], world: str, field: str) -> None:
    """Item ids name their world, which must be the one that is played.

    Args:
        selection: Which tasks.
        world: The world's name in the recipe.
        field: The selection's field, for the message.

    Raises:
        ValueError: An id is of another world.
    """
    if isinstance(selection, str) or ":" in world:
        return
    for each in selection:
        if isinstance(each, str) and each.partition("_")[0] != world:
            raise ValueError(f"{field} holds {each!r}, a task of {each.partition('_')[0]}, but the world is {world}")


def _names_a_file(value: str) -> bool:
    return "/" in value or Path(value).suffix in (".json", ".jsonl", ".txt")


def _line(line: str) -> Any:
    line = line.strip()
    return json.loads(line) if line.startswith("{") else line


def selection_name(selection: TaskSelection) -> str:
    """What a selection is called where people read: the list's name, or how many tasks were given."""
    return selection if isinstance(selection, str) else f"{len(selection)} given tasks"
