"""Registry of the worlds by name.

A world is found in the table of this file, by an entry point of an installed package, or as
"module:Class". See ADDING_A_WORLD.md.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module

from configs.mixture import members, weighted_lists
from configs.plugins import nearest, plugin_names, plugin_targets
from configs.rules import Rules
from environments.environment import (
    ContractError,
    UnknownWorldError,
    World,
    WorldError,
)
from environments.mixture import Mixture
from environments.package import WorldPackage
from environments.task_lists import no_such_list

WORLDS: dict[str, str] = {
    "babyai": "environments.babyai.world:BabyAI",
    "openenv": "environments.openenv.world:OpenEnv",
    "sciworld": "environments.sciworld.world:SciWorld",
    "searchqa": "environments.searchqa.world:SearchQA",
    "textcraft": "environments.textcraft.world:TextCraft",
    "webarena": "environments.webarena.world:WebArena",
}
"""The worlds of this package."""
GROUP = "agentgym.worlds"
"""Group of the entry points of installed packages that offer a world."""


def world_names() -> list[str]:
    """Return the names of all installed worlds, sorted."""
    return sorted({*WORLDS, *plugin_names(GROUP)})


def entry_of(name: str) -> str:
    """Return the "module:Class" of a world without importing it.

    Args:
        name: A name of `WORLDS`, the name of an entry point, or "module:Class".

    Raises:
        UnknownWorldError: No world has this name, or several packages offer it. The message
            suggests the nearest name and lists all.
    """
    entry = WORLDS.get(name)
    if entry is None and ":" not in name:
        found = plugin_targets(GROUP, name)
        if len(found) > 1:
            raise UnknownWorldError(
                f"several installed packages offer a world {name!r}. Use one of these instead: "
                f"{', '.join(found)}",
                name=name,
                known=found,
            )
        entry = found[0] if found else None
    module, _, attribute = (entry or name).partition(":")
    if module and attribute.isidentifier():
        return entry or name
    names = world_names()
    hint = f" Did you mean {near!r}?" if (near := nearest(name, names)) else ""
    raise UnknownWorldError(
        f"there is no world {name!r}.{hint} Use one of {', '.join(names)}, or module:Class",
        name=name,
        known=names,
        nearest=near,
    )


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
        ContractError: It is not a complete `World`.
        WorldError: The world does not support these rules.
    """
    if len(mixed := members(name)) > 1:
        return Mixture(name, [load_world(member, rules) for member in mixed])
    module, _, attribute = entry_of(name).partition(":")
    try:
        make = getattr(import_module(module), attribute)
    except AttributeError:
        raise ImportError(f"the module {module!r} has no {attribute!r}", name=module) from None
    if inspect.isabstract(make):
        raise ContractError(f"{name} does not define {', '.join(sorted(make.__abstractmethods__))}")
    if rules == "ours":
        made = make()
    elif "rules" in inspect.signature(make).parameters:
        made = make(rules=rules)
    else:
        raise WorldError(
            f"{name} does not support the rules {rules!r}; omit rules, or set rules: ours"
        )
    if not isinstance(made, World):
        raise ContractError(f"{name} is not a subclass of environments.environment.World")
    if missing := sorted({"name", "version", "instruction"} - set(dir(made))):
        raise ContractError(f"{name} does not define {', '.join(missing)}")
    return made


def package_of(name: str) -> WorldPackage:
    """Return the facts that a world's package defines. For a mixture, return the defaults."""
    package = "" if len(members(name)) > 1 else entry_of(name).partition(":")[0].rpartition(".")[0]
    facts = vars(import_module(package)).values() if package else ()
    return next((each for each in facts if isinstance(each, WorldPackage)), WorldPackage())


def task_lists_of(name: str) -> Mapping[str, str] | None:
    """Return the task lists of a world, name to description, without building it.

    None if only a built world can list them.
    """
    package = package_of(name)
    replaced = package.task_lists_replaced_by and os.environ.get(package.task_lists_replaced_by)
    return None if replaced else package.task_lists


def check_task_list(name: str, task_list: str) -> None:
    """Check a task list's name against the world's package, which takes milliseconds.

    If only a built world can list its task lists, nothing is checked.

    Raises:
        UnknownTaskListError: The world has no such list.
    """
    if len(mixed := members(name)) > 1:
        for member, (of_member, _) in zip(mixed, weighted_lists(name, task_list), strict=True):
            check_task_list(member, of_member)
        return
    known = task_lists_of(name)
    if known is not None and task_list not in known:
        raise no_such_list(known, task_list, name)


def image_of(name: str) -> str:
    """Return the container image that serves a world.

    It is "light", or the image that the world's package requires, e.g. "java".

    Raises:
        WorldError: No image serves all worlds of a mixture.
    """
    images = {package_of(member).image for member in members(name)} - {"light"}
    if len(images) > 1:
        raise WorldError(
            f"no container image serves all of {name} ({', '.join(sorted(images))}); set an image, "
            "or serve it by a local process"
        )
    return images.pop() if images else "light"


def variables_of(name: str) -> dict[str, str]:
    """Return the variables of this process that the servers of a world read, with their values.

    For a mixture, these are the variables of all its worlds.
    """
    prefixes = tuple(f"{member.upper()}_" for member in members(name))
    listed = set[str]()
    for member in members(name):
        with suppress(ImportError, UnknownWorldError):  # its server says so when it starts
            listed |= set(package_of(member).variables)
    return {
        each: value
        for each, value in os.environ.items()
        if each in listed or each.startswith(prefixes)
    }
