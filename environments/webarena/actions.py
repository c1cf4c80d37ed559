"""From the text of an action to what it means: a pure function of the text, whatever page is open.

The forms are WebArena's. The action may stand in triple backticks with any text around them, as AgentGym's prompts ask for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from environments.environment import InvalidActionError

MAX_CHARACTERS = 20_000
MAX_TYPED = 5_000
MAX_NUMBER = 6
"""Digits of an element's number."""
FORMS = (
    "The actions are: click [id], type [id] [text] [press_enter_after=0|1], hover [id], press [key_comb], scroll [down|up], new_tab, "
    "tab_focus [n], close_tab, goto [url], go_back, go_forward, stop [answer]."
)

_MODIFIERS = {"ctrl": "Control", "control": "Control", "shift": "Shift", "alt": "Alt", "meta": "Meta", "cmd": "Meta", "command": "Meta"}
_KEYS = {
    key.lower(): key
    for key in (
        "Enter", "Tab", "Escape", "Backspace", "Delete", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp",
        "PageDown", "Space",
    )
}  # fmt: skip
_KEYS |= {"return": "Enter", "esc": "Escape", "del": "Delete"}
_KEYS |= {"up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight"}


@dataclass(frozen=True, slots=True)
class Click:
    """Click on an element."""

    element: int


@dataclass(frozen=True, slots=True)
class Type:
    """Replace a field's text, then perhaps press Enter."""

    element: int
    text: str
    enter: bool


@dataclass(frozen=True, slots=True)
class Hover:
    """Move the mouse over an element."""

    element: int


@dataclass(frozen=True, slots=True)
class Press:
    """Press a key with modifiers, e.g. ("Control",), "a"."""

    modifiers: tuple[str, ...]
    key: str


@dataclass(frozen=True, slots=True)
class Scroll:
    """Move the page by one window's height."""

    direction: Literal["down", "up"]


@dataclass(frozen=True, slots=True)
class NewTab:
    """Open an empty tab."""


@dataclass(frozen=True, slots=True)
class TabFocus:
    """Go to the tab of that number."""

    tab: int


@dataclass(frozen=True, slots=True)
class CloseTab:
    """Close the tab that is in front."""


@dataclass(frozen=True, slots=True)
class Goto:
    """Open an address."""

    url: str


@dataclass(frozen=True, slots=True)
class GoBack:
    """Go to the page before."""


@dataclass(frozen=True, slots=True)
class GoForward:
    """Undo a going back."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the episode with an answer, which may be empty."""

    answer: str


Action = Click | Type | Hover | Press | Scroll | NewTab | TabFocus | CloseTab | Goto | GoBack | GoForward | Stop
_BARE: dict[str, Action] = {"new_tab": NewTab(), "close_tab": CloseTab(), "go_back": GoBack(), "go_forward": GoForward()}


def parse_action(reply: str) -> Action:
    """What `reply` asks for.

    Raises:
        InvalidActionError: It is not an action of this world; the message is for the agent.
    """
    if len(reply) > MAX_CHARACTERS:
        raise InvalidActionError(f"The reply has {len(reply)} characters; at most {MAX_CHARACTERS} are read. {FORMS}")
    reply = reply.encode("utf-8", "replace").decode()  # a lone surrogate can neither be typed nor be sent back
    fenced = re.search(r"```(.*?)```", reply, re.DOTALL)
    text = (fenced.group(1) if fenced else reply).strip()
    if not text:
        raise InvalidActionError(f"There is no action. {FORMS}")
    verb, rest = _split(text)
    if verb in _BARE and not rest:
        return _BARE[verb]
    if verb == "stop":
        return Stop(_inside(rest) if rest.startswith("[") else rest)
    if verb == "type":
        return _parse_type(rest)
    if verb in ("click", "hover"):
        element = _number(rest, verb)
        return Click(element) if verb == "click" else Hover(element)
    if verb == "scroll":
        direction = _inside(rest).lower().removeprefix("direction=")
        if direction in ("down", "up"):
            return Scroll("down" if direction == "down" else "up")
        raise InvalidActionError("Scroll which way? 'scroll [down]' or 'scroll [up]'.")
    if verb == "press":
        return _parse_press(_inside(rest))
    if verb == "tab_focus":
        return TabFocus(_number(rest, verb))
    if verb == "goto":
        return Goto(_inside(rest))
    raise InvalidActionError(f"The action '{_shown(text)}' is not understood. {FORMS}")


def _split(text: str) -> tuple[str, str]:
    found = re.match(r"[A-Za-z_]+", text)
    verb = found.group(0) if found else ""
    return verb.lower(), text[len(verb) :].strip()


def _inside(rest: str) -> str:
    """The text within one pair of brackets, which may be left out."""
    return (rest[1:-1] if rest.startswith("[") and rest.endswith("]") and len(rest) > 1 else rest).strip()


def _number(rest: str, verb: str) -> int:
    digits = _inside(rest)
    if not digits.isascii() or not digits.isdecimal() or len(digits) > MAX_NUMBER:
        raise InvalidActionError(f"'{verb}' needs a number in brackets, such as '{verb} [12]'.")
    return int(digits)


def _parse_type(rest: str) -> Type:
    found = re.fullmatch(rf"\[?(\d{{1,{MAX_NUMBER}}})\]?\s*\[(.*)\]", rest, re.DOTALL)
    if found is None or not found.group(1).isascii():
        raise InvalidActionError(
            "To type, name the field and the text: 'type [12] [some text] [1]'; 0 at the end presses no Enter afterwards."
        )
    text, enter = found.group(2), True
    flag = re.search(r"\]\s*\[(?:press_enter_after=)?([01])$", text)
    if flag is not None:
        text, enter = text[: flag.start()], flag.group(1) == "1"
    if len(text) > MAX_TYPED:
        raise InvalidActionError(f"The text has {len(text)} characters; at most {MAX_TYPED} can be typed at once.")
    if any(not letter.isprintable() and letter not in "\n\t" for letter in text):
        raise InvalidActionError("The text holds characters that no keyboard writes.")
    return Type(int(found.group(1)), text, enter)


def _parse_press(combination: str) -> Press:
    *before, last = combination.split("+") if combination not in ("+", "") else ["+"] if combination else [""]
    modifiers = tuple(_MODIFIERS.get(part.strip().lower(), "") for part in before)
    key = _KEYS.get(last.strip().lower(), last if len(last) == 1 and last.isascii() and last.isprintable() else "")
    if not key or "" in modifiers or len(set(modifiers)) < len(modifiers):
        raise InvalidActionError(
            f"The keys '{_shown(combination)}' are not known: a letter, a digit, Enter, Tab, Escape, Backspace, Delete, Home, End, PageUp, "
            "PageDown or an arrow such as ArrowDown, with Control+, Shift+, Alt+ or Meta+ before it."
        )
    return Press(modifiers, key)


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:60] + "..."
