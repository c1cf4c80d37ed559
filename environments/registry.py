"""The worlds by name. Adding one takes its folder and one line here; see ADDING_A_WORLD.md."""

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
    """The "module:Class" of the world called `name`. Nothing is imported.

    Args:
        name: A name of WORLDS, or "module:Class" for a world that is not of this package.

    Raises:
        UnknownWorldError: No world has this name; the message names the nearest one and those that exist.
    """
    entry = WORLDS.get(name, name)
    module, _, attribute = entry.partition(":")
    if module and attribute.isidentifier():
        return entry
    close = difflib.get_close_matches(name, WORLDS, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownWorldError(f"no world is called {name!r}; {hint}there are: {', '.join(sorted(WORLDS))}, and any other as module:Class")


def check_name(name: str) -> None:
    """Looks up a world's name, or the names of those of a mixture.

    Raises:
        UnknownWorldError: See `entry_of`.
    """
    for member in members(name):
        entry_of(member)


def load_world(name: str, rules: Rules = "ours") -> World:
    """Imports and builds the world called `name`; nothing is imported for the others.

    Args:
        name: See `entry_of`; or several of them as a mixture, e.g. "textcraft+searchqa".
        rules: Which rules it is played under.

    Raises:
        UnknownWorldError: No world has this name.
        ImportError: Its module, or a package that it needs, is not installed.
        WorldError: The world has no such rules.
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
    """List name to what it holds, of the world called `name`, without building the world; None where only the world itself knows."""
    package = _package(name)
    return described_lists(package) if package else None


def check_task_list(name: str, task_list: str) -> None:
    """Looks a task list up in what a world's package says of itself, which takes milliseconds; no more where only the world knows.

    Raises:
        KeyError: The world called `name` has no such list; the message says what it is called now, or names those that exist.
    """
    if len(mixed := members(name)) > 1:
        for member, (of_member, _) in zip(mixed, weighted_lists(name, task_list), strict=True):
            check_task_list(member, of_member)
        return
    known = task_lists_of(name)
    if known is not None and task_list not in known:
        raise KeyError(no_such_list(known, task_list, name, renamed_lists(_package(name))))


def task_indices_of(name: str, selection: Sequence[int | str]) -> list[int]:
    """The indices of given tasks on servers of ours.

    AgentGym's index of a TextCraft goal depends on the order of a folder on its server, so there the goal's text decides.

    Args:
        name: The world's name.
        selection: Indices and AgentGym's item ids, e.g. 17, "babyai_17" or "textcraft_17: dark oak sign".

    Raises:
        TaskIndexError: An item id names no goal where it must, or a goal that does not exist.
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
    """Which of our container images serves the world called `name`: "light", or what its package says that it needs, e.g. "java".

    Raises:
        WorldError: It is a mixture of which no image serves all.
    """
    packages = [package for member in members(name) if (package := _package(member))]
    images = {str(getattr(import_module(package), "IMAGE", "light")) for package in packages} - {"light"}
    if len(images) > 1:
        raise WorldError(f"no container image serves all of {name} ({', '.join(sorted(images))}); give one, or serve it by a local process")
    return images.pop() if images else "light"


def _package(name: str) -> str:
    return "" if len(members(name)) > 1 else entry_of(name).partition(":")[0].rpartition(".")[0]
