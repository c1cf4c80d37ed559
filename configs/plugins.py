"""Extensions in installed packages, found by entry points.

A package declares an extension in its `pyproject.toml`:

    [project.entry-points."agentgym.algorithms"]
    best-of-group = "best_of_group:BestOfGroup"

tasks/training/ADDING_AN_ALGORITHM.md shows a whole package.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any

ENGINES = "agentgym.engines"
UPDATE_METRICS = "agentgym.update_metrics"


def plugins(group: str) -> dict[str, str]:
    """Return the extensions of a group: name -> "module:attribute". Nothing is imported."""
    return {each.name: each.value for each in entry_points(group=group)}


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
    found = plugins(group)
    if name not in found:
        raise ValueError(unknown(f"entry point of the group {group!r}", name, found))
    return load(found[name])


def check_names(names: Iterable[str], what: str, known: Iterable[str]) -> None:
    """Check that all names are known.

    Raises:
        ValueError: A name is unknown. The message lists the known ones.
    """
    for name in names:
        if name not in (choices := list(known)):
            raise ValueError(unknown(what, name, choices))


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message about an unknown name, with the closest known one."""
    choices = list(known)
    close = difflib.get_close_matches(name, choices, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"there is no {what} {name!r}; {hint}use one of: {', '.join(choices) or '(none is installed)'}"
