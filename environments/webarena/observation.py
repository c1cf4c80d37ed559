"""The observation text, in the layout of WebArena's prompts."""

from __future__ import annotations

from collections.abc import Sequence

from environments.webarena.accessibility import View
from environments.webarena.actions import (
    Action,
    Click,
    Goto,
    Hover,
    Navigate,
    Press,
    Scroll,
    Stop,
    TabFocus,
    Type,
)
from environments.webarena.addresses import Addresses

_SHOWN = 100
MAX_TITLE, MAX_URL = 200, 1_000


def observation(
    page: str, titles: Sequence[str], front: int, url: str, objective: str, previous: str
) -> str:
    """Format the observation.

    Args:
        page: The visible part of the page, or the current part of it.
        titles: The titles of the tabs. They are cut to `MAX_TITLE` characters.
        front: The number of the current tab.
        url: The page's address as the agent sees it. It is cut to `MAX_URL` characters.
        objective: The task's intent.
        previous: A description of the previous action. "None" at the start.
    """
    tabs = " | ".join(
        f"Tab {number}{' (current)' if number == front else ''}: {_short(title, MAX_TITLE)}"
        for number, title in enumerate(titles)
    )
    text = f"OBSERVATION:\n{tabs}\n\n{page}\nURL: {_short(url, MAX_URL)}\nOBJECTIVE: {objective}\nPREVIOUS ACTION: {previous}"
    # Pages may contain lone surrogates, which UTF-8 cannot encode.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def describe(action: Action, view: View, addresses: Addresses) -> str:
    """Describe an action in words, including the element that its number referred to."""
    match action:
        case Click(element) | Hover(element):
            verb = "click" if isinstance(action, Click) else "hover"
            return f"{verb} [{element}]" + _where(element, view)
        case Type(element, text, _):
            return f"type [{element}] [{_short(text)}]" + _where(element, view)
        case Press(modifiers, key):
            return f"press [{'+'.join((*modifiers, key))}]"
        case Scroll(direction):
            return f"scroll [{direction}]"
        case TabFocus(tab):
            return f"tab_focus [{tab}]"
        case Goto(url):
            return f"goto [{_short(addresses.to_shown(url))}]"
        case Stop(answer):
            return f"stop [{_short(answer)}]"
        case Navigate(verb):
            return verb


def _where(element: int, view: View) -> str:
    found = view.elements.get(element)
    return f" where [{element}] is {found.role} {_short(found.name)!r}" if found else ""


def _short(text: str, characters: int = _SHOWN) -> str:
    line = " ".join(text.split())
    return line if len(line) <= characters else line[:characters] + "..."
