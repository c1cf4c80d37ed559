"""Extensions in installed packages, found by entry points.

A package declares an extension in its `pyproject.toml`:

    [project.entry-points."agentgym.algorithms"]
    best-of-group = "best_of_group:BestOfGroup"

tasks/training/ADDING_AN_ALGORITHM.md shows a whole package.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENGINES = "agentgym.engines"
UPDATE_METRICS = "agentgym.update_metrics"


def plugin_names(group: str) -> list[str]:
    """Return the names of a group's extensions, sorted. Nothing is imported."""
    return sorted(_entry_points(group, tuple(sys.path)).names)


def plugin_targets(group: str, name: str) -> list[str]:
    """Return every "module:attribute" that packages declare under a name, sorted."""
    found = _entry_points(group, tuple(sys.path)).select(name=name)
    return sorted({each.value for each in found})


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of a group in the packages on `sys.path`.

    Reading them takes 10 ms or more.
    """
    from importlib.metadata import entry_points

    return entry_points(group=group)


def plugin_target(group: str, name: str) -> str | None:
    """Return the "module:attribute" of an extension, or None if no package declares it.

    Raises:
        ValueError: Several packages declare the name for different objects.
    """
    found = plugin_targets(group, name)
    if len(found) > 1:
        raise ValueError(
            f"several installed packages declare {name!r} in {group}: {', '.join(found)}; "
            "uninstall all but one"
        )
    return found[0] if found else None


def load(target: str) -> Any:
    """Import the object of a "module:attribute".

    Raises:
        ValueError: The module or the attribute does not exist.
    """
    try:
        return resolve_name(target)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ValueError(f"{target!r} cannot be imported: {problem}") from None


def load_plugin(group: str, name: str) -> Any:
    """Import an installed extension.

    Raises:
        ValueError: No installed package declares it, or it cannot be imported.
    """
    target = plugin_target(group, name)
    if target is None:
        raise ValueError(unknown(f"entry point of the group {group}", name, plugin_names(group)))
    return load(target)


def check_names(names: Iterable[str], what: str, known: Iterable[str]) -> None:
    """Check that all names are known.

    Raises:
        ValueError: A name is unknown. The message lists the known ones.
    """
    for name in names:
        if name not in (choices := list(known)):
            raise ValueError(unknown(what, name, choices))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a misspelt one. None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message about an unknown name, with the closest known one."""
    choices = list(known)
    hint = f"did you mean {near!r}? " if (near := nearest(name, choices)) else ""
    return f"there is no {what} {name!r}; {hint}use one of: {', '.join(choices) or '(none is installed)'}"
