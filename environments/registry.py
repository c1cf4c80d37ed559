"""The worlds by name. Adding one takes its folder and one line here; see ADDING_A_WORLD.md."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from environments.environment import World
from environments.task_lists import described_lists

WORLDS: dict[str, str] = {
    "babyai": "environments.babyai.world:BabyAI",
    "sciworld": "environments.sciworld.world:SciWorld",
    "searchqa": "environments.searchqa.world:SearchQA",
    "textcraft": "environments.textcraft.world:TextCraft",
    "webarena": "environments.webarena.world:WebArena",
}


def load_world(name: str) -> World:
    """Imports and builds the world called `name`; nothing is imported for the others.

    Args:
        name: A name of WORLDS, or "module:Class" for a world that is not of this package.

    Raises:
        KeyError: No world has this name; the message lists those that exist.
        ImportError: Its module, or a package that it needs, is not installed.
    """
    module, _, attribute = WORLDS.get(name, name).partition(":")
    if not attribute:
        raise KeyError(f"no environment is called {name!r}; there are: {', '.join(sorted(WORLDS))}, and any module:Class")
    world: World = getattr(import_module(module), attribute)()
    return world


def task_lists_of(name: str) -> Mapping[str, str] | None:
    """List name to what it holds, of the world called `name`, without building the world; None where only the world itself knows."""
    package = WORLDS.get(name, name).partition(":")[0].rpartition(".")[0]
    return described_lists(package) if package else None
