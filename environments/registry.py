"""Registry of the worlds by name.

A new world needs a folder and one line here. See ADDING_A_WORLD.md.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from configs.mixture import members, weighted_lists
from configs.rules import Rules
from configs.task_selection import goal_of, indices
from environments.environment import TaskIndexError, UnknownWorldError, World, WorldError
from environments.mixture import Mixture
from environments.task_lists import described_lists, no_such_list, renamed_lists

WORLDS: dict[str, str] = {
    "babyai": "environments.babyai.world:BabyAI",
    "sciworld": "environments.sciworld.world:SciWorld",
    "searchqa": "environments.searchqa.world:SearchQA",
    "textcraft": "environments.textcraft.world:TextCraft",
    "webarena": "environments.webarena.world:WebArena",
}


def entry_of(name: str) -> str:
    """Return the "module:Class" of a world without importing it.

    Args:
        name: A name of WORLDS, or "module:Class" for a world outside this package.

    Raises:
        UnknownWorldError: No world has this name. The message suggests the nearest name and lists
            all.
    """
    entry = WORLDS.get(name, name)
    module, _, attribute = entry.partition(":")
    if module and attribute.isidentifier():
        return entry
    close = difflib.get_close_matches(name, WORLDS, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownWorldError(f"no world is called {name!r}; {hint}there are: {', '.join(sorted(WORLDS))}, and any other as module:Class")


def check_name(name: str) -> None:
    """Check a world's name, or the names in a mixture.

    Raises:
        UnknownWorldError: See `entry_of`.
    """
    for member in members(name):
        entry_of(member)


def load_world(name: str, rules: Rules = "ours") -> World:
    """Import and build a world. No other world is imported.

    Args:
        name: See `entry_of`. Also a mixture, e.g. "textcraft+searchqa".
        rules: The rule set.

    Raises:
        UnknownWorldError: No world has this name.
        ImportError: Its module or a dependency is not installed.
        WorldError: The world does not support these rules.
    """
    if len(mixed := members(name)) > 1:
        return Mixture(name, [load_world(member, rules) for member in mixed])
    module, _, attribute = entry_of(name).partition(":")
    try:
        make = getattr(import_module(module), attribute)
    except AttributeError:
        raise ImportError(f"the module {module!r} has no {attribute!r}", name=module) from None
    if rules == "ours":
        made: World = make()
    elif "rules" in inspect.signature(make).parameters:
        made = make(rules=rules)
    else:
        raise WorldError(f"{name} has one set of rules, without a choice of rules {rules!r}; leave rules out, or set rules: ours")
    return made


def task_lists_of(name: str) -> Mapping[str, str] | None:
    """Return the task lists of a world, name to description, without building it.

    None if only a built world can list them.
    """
    package = _package(name)
    return described_lists(package) if package else None


def check_task_list(name: str, task_list: str) -> None:
    """Check a task list's name against the world's package, which takes milliseconds.

    If only a built world can list its task lists, nothing is checked.

    Raises:
        KeyError: The world has no such list. The message gives the list's new name, or lists the
            existing names.
    """
    if len(mixed := members(name)) > 1:
        for member, (of_member, _) in zip(mixed, weighted_lists(name, task_list), strict=True):
            check_task_list(member, of_member)
        return
    known = task_lists_of(name)
    if known is not None and task_list not in known:
        raise KeyError(no_such_list(known, task_list, name, renamed_lists(_package(name))))


def task_indices_of(name: str, selection: Sequence[int | str]) -> list[int]:
    """Return the indices of given tasks on our servers.

    AgentGym's index of a TextCraft goal depends on the order of a folder on its server. So the
    goal's text is used there.

    Args:
        name: The world's name.
        selection: Indices and AgentGym's item ids, e.g. 17, "babyai_17" or "textcraft_17: dark oak
            sign".

    Raises:
        TaskIndexError: An item id lacks a required goal, or names a goal that does not exist.
    """
    package = _package(name)
    find = getattr(import_module(package), "task_of_goal", None) if package else None
    return [
        each if isinstance(each, int) else _index_of_goal(each, find) if find else index
        for each, index in zip(selection, indices(selection), strict=True)
    ]


def _index_of_goal(item: str, find: Callable[[str], int]) -> int:
    goal = goal_of(item)
    if goal is None:
        raise TaskIndexError(
            f"{item!r} does not say which goal it means: its number depends on the server of AgentGym's that it comes from; "
            f"write the goal too, e.g. '{item}: dark oak sign', give the file of trajectories, or write an index of ours"
        )
    return find(goal)


def image_of(name: str) -> str:
    """Return the container image that serves a world.

    It is "light", or the image that the world's package requires, e.g. "java".

    Raises:
        WorldError: No image serves all worlds of a mixture.
    """
    packages = [package for member in members(name) if (package := _package(member))]
    images = {str(getattr(import_module(package), "IMAGE", "light")) for package in packages} - {"light"}
    if len(images) > 1:
        raise WorldError(f"no container image serves all of {name} ({', '.join(sorted(images))}); give one, or serve it by a local process")
    return images.pop() if images else "light"


def _package(name: str) -> str:
    return "" if len(members(name)) > 1 else entry_of(name).partition(":")[0].rpartition(".")[0]
