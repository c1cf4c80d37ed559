"""The worlds by name. Adding one takes its folder and one line here."""

from __future__ import annotations

from importlib import import_module

from environments.environment import World

WORLDS: dict[str, str] = {
    "babyai": "environments.babyai.world:BabyAI",
    "sciworld": "environments.sciworld.world:SciWorld",
    "searchqa": "environments.searchqa.world:SearchQA",
    "textcraft": "environments.textcraft.world:TextCraft",
    "webarena": "environments.webarena.world:WebArena",
}


def load_world(name: str) -> World:
    """Imports and builds the world called `name`; nothing is imported for the others.

    Raises:
        KeyError: No world has this name; the message lists those that exist.
    """
    if name not in WORLDS:
        raise KeyError(f"no environment is called {name!r}; there are: {', '.join(sorted(WORLDS))}")
    module, _, attribute = WORLDS[name].partition(":")
    world: World = getattr(import_module(module), attribute)()
    return world
